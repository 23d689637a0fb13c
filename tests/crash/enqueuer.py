"""A process that enqueues webhooks with many callers at once, and prints each row's id when its caller has the answer.

Arguments: how many callers enqueue at the same time, and how many webhooks in all (without it, until the process is killed). One
caller in eight has idempotency keys, as a host's own webhooks may have. The process begins when it reads a line.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import sys
from uuid import uuid4

from flowactions_hookspecs import FlowActions, Node
from tests.owning import own_webhook
from tests.support import SmallHost, a_walk


async def main(at_once: int, count: int | None = None) -> None:
    """Enqueue, and print ids."""
    actions = FlowActions.load(SmallHost(os.environ))
    node = Node(id="n", type="webhook", config={"webhookUrl": "http://127.0.0.1:9/", "webhookBody": "{}"})
    left = itertools.count() if count is None else iter(range(count))

    async def caller(number: int) -> None:
        for _ in left:
            if number % 8:
                result = await actions.reach(a_walk(), node)
                assert result.status == "queued", result.message
                delivery_id = result.delivery_id
            else:
                delivery_id = (await actions.enqueue(own_webhook(idempotency_key=uuid4().hex))).delivery_id
            # A line is written whole or not at all.
            os.write(1, f"{delivery_id}\n".encode())

    async with actions.lifespan():
        os.write(1, b"ready\n")
        sys.stdin.readline()
        await asyncio.gather(*(caller(number) for number in range(at_once)))


if __name__ == "__main__":
    asyncio.run(main(*map(int, sys.argv[1:])))
