"""What reaching a node costs the flow walk.

    python -m tests.benchmarks.node [--database sqlite postgres] [--count 1000] [--json]

``webhook``: the node enqueues; ``chat``: it posts to a chat provider on loopback, whose part is in the figure;
``recorded``: a webhook node of a client-paced flow is only recorded, to run at its step.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import tempfile
import time
from typing import Any

import httpx

from flowactions_conformance.chat_provider import FakeChatProvider
from flowactions_conformance.serving import serve
from flowactions_hookspecs import FlowActions, Node
from tests.benchmarks.field import a_database, machine, percentile, show
from tests.support import SmallHost, a_walk, development

NODES = {
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
        {"pacing": "deferred", "next_step_id": "step-1"},
    ),
    "chat": (
        Node(
            id="n",
            type="chat_message",
            config={"chatChannelId": "C0ORDERS", "chatMessageText": "Hello {{content}}"},
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
        settings = development(
            url,
            FLOWACTIONS_HOST_WORKER="off",
            CHAT_BOT_TOKEN=token.value,
            CHAT_API_URL=f"{provider_url}/api/",
            BACKEND_PUBLIC_URL="http://host",
        )
        actions = FlowActions.load(SmallHost(settings))
        async with actions.lifespan():
            transport = httpx.ASGITransport(app=actions.asgi_app())  # type: ignore[arg-type]
            async with httpx.AsyncClient(transport=transport, base_url="http://host") as client:
                started = await client.get("/integrations/chat/install")
                await client.get(started.headers["location"])
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
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--database", choices=["sqlite", "postgres"], nargs="+", default=["sqlite", "postgres"])
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    found: dict[str, Any] = {"count": options.count, "machine": machine()}
    with tempfile.TemporaryDirectory() as directory:
        os.chdir(directory)  # where a development host writes its key
        for kind in options.database:
            with a_database(kind) as url:
                measured = asyncio.run(measure(url, options.count))
            found |= {f"{kind}_{name}": value for name, value in measured.items()}
    show(found, as_json=options.json)


if __name__ == "__main__":
    main()
