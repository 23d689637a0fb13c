"""A host that enqueues webhooks at a steady rate, and delivers them itself unless told not to.

    FLOWACTIONS_DATABASE_URL=… python -m tests.benchmarks.steady --url URL --rate 200 --seconds 15

`deliver` runs it in a process of its own. Each webhook node has a path of its own; printed is one JSON object, the Unix
time by path at which the walk reached the node.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import time

from flowactions_hookspecs import FlowActions, Node
from tests.benchmarks.bare import SECRET
from tests.support import SmallHost, a_walk
from tests.waiting import until


async def enqueue(url: str, rate: float, seconds: float) -> dict[str, float]:
    """Reach a webhook node so often, each time in a run of its own."""
    host = SmallHost(os.environ)
    host.secret = SECRET
    actions = FlowActions.load(host)
    reached: dict[str, float] = {}
    delivers = os.environ.get("FLOWACTIONS_HOST_WORKER") != "off"

    async def one(path: str) -> None:
        config = {
            "webhookUrl": url + path,
            "webhookBody": '{"content": "{{content}}"}',
            "webhookSecret": SECRET,
        }
        reached[path] = time.time()
        result = await actions.reach(
            a_walk(run_id=path, content="x" * 250), Node(id="n", type="webhook", config=config)
        )
        assert result.status == "queued", result

    async with actions.lifespan(), asyncio.TaskGroup() as group:
        await asyncio.sleep(1)
        started = time.perf_counter()
        for number in range(int(rate * seconds)):
            await asyncio.sleep(started + number / rate - time.perf_counter())
            group.create_task(one(f"/{number}"))
        if delivers:
            # However slow the machine is, none is left when the host stops.
            await until(lambda: len(host.finished) >= int(rate * seconds), seconds=300)
    return reached


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--url", required=True)
    parser.add_argument("--rate", type=float, required=True)
    parser.add_argument("--seconds", type=float, required=True)
    options = parser.parse_args()
    print(json.dumps(asyncio.run(enqueue(options.url, options.rate, options.seconds))))
