"""What reaching a node costs the flow walk.

    python -m tests.benchmarks.node [--database sqlite postgres] [--count 1000] [--json]

``webhook``: the node enqueues; ``chat``: it posts to a chat provider on loopback, whose part is in the figure;
``recorded``: a webhook node of a client-paced flow is only recorded, to run at its step.
"""

from __future__ import annotations

import os
import tempfile
import time
from typing import Any

from flowactions_conformance.chat_provider import FakeChatProvider
from flowactions_conformance.serving import serve
from flowactions_hookspecs import Deferred, FlowActions, Node
from tests.benchmarks.field import on_each_database, percentile
from tests.chatting import adopt, adopting_settings
from tests.support import SmallHost, a_walk

NODES: dict[str, tuple[Node, dict[str, Any]]] = {
    "webhook": (
        Node(
            id="n",
            type="webhook",
            config={"webhookUrl": "http://127.0.0.1:9/hook", "webhookBody": '{"content": "{{content}}"}'},
        ),
        {"content": "x" * 250},
    ),
    "recorded": (
        Node(id="n", type="webhook", config={"webhookUrl": "http://127.0.0.1:9/hook"}),
        {"pacing": Deferred("step-1")},
    ),
    "chat": (
        Node(
            id="n",
            type="chat_message",
            config={"chatChannelId": "C00ORDERS", "chatMessageText": "Hello {{content}}"},
        ),
        {},
    ),
}


async def measure(url: str, count: int) -> dict[str, float]:
    """Give the milliseconds of each node."""
    provider = FakeChatProvider()
    workspace = provider.state.workspaces[0]
    token = provider.state.add_token(workspace)
    found: dict[str, float] = {}
    async with serve(provider.app) as provider_url:
        settings = adopting_settings(url, provider_url, token.value)
        actions = FlowActions.load(SmallHost({**settings, "FLOWACTIONS_HOST_WORKER": "off"}))
        async with actions.lifespan():
            await adopt(actions)
            for name, (node, walk) in NODES.items():
                took = []
                for _ in range(count):
                    began = time.perf_counter()
                    result = await actions.reach(a_walk(**walk), node)
                    took.append((time.perf_counter() - began) * 1000)
                    assert result.status in {"queued", "sent", "recorded"}, result
                found[f"{name}_p50_ms"] = percentile(took, 0.5)
                found[f"{name}_p99_ms"] = percentile(took, 0.99)
    return found


def main() -> None:
    """Measure and print."""
    with tempfile.TemporaryDirectory() as directory:
        os.chdir(directory)  # where a development host writes its key
        on_each_database(__doc__, measure, count=1000)


if __name__ == "__main__":
    main()
