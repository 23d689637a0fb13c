"""A process that reaches a webhook node so often, and tells how it went.

Arguments: how often, and how many at once.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections import Counter

from flowactions_hookspecs import FlowActions, Node
from tests.support import SmallHost, a_walk


async def main(count: int, at_once: int) -> None:
    """Reach the node and print how often each status came."""
    actions = FlowActions.load(SmallHost(os.environ))
    node = Node(id="n", type="webhook", config={"webhookUrl": "http://127.0.0.1:9/", "webhookBody": "{}"})
    statuses: Counter[str] = Counter()
    left = iter(range(count))

    async def reach_some() -> None:
        for _ in left:
            result = await actions.reach(a_walk(), node)
            statuses[f"{result.status} {result.message or ''}".strip()] += 1

    async with actions.lifespan():
        print("ready", flush=True)  # noqa: T201
        sys.stdin.readline()
        await asyncio.gather(*(reach_some() for _ in range(at_once)))
    print(json.dumps(statuses), flush=True)  # noqa: T201


if __name__ == "__main__":
    asyncio.run(main(*map(int, sys.argv[1:])))
