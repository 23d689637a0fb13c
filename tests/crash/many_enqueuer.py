"""A process that enqueues webhooks with many callers at once for ever, and prints each row's id when its caller has the answer.

Argument: how many at once. Every eighth enqueues with an idempotency key, as hosts' own webhooks may.
"""

from __future__ import annotations

import asyncio
import os
import sys
from uuid import uuid4

from flowactions_hookspecs import FlowActions, Node
from tests.owning import own_webhook
from tests.support import SmallHost, a_walk


async def main(at_once: int) -> None:
    """Enqueue until killed."""
    actions = FlowActions.load(SmallHost(os.environ))
    node = Node(id="n", type="webhook", config={"webhookUrl": "http://127.0.0.1:9/", "webhookBody": "{}"})

    async def caller(number: int) -> None:
        while True:
            if number % 8:
                delivery_id = (await actions.reach(a_walk(), node)).delivery_id
            else:
                delivery_id = (await actions.enqueue(own_webhook(idempotency_key=uuid4().hex))).delivery_id
            # A line is written whole or not at all.
            os.write(1, f"{delivery_id}\n".encode())

    async with actions.lifespan():
        await asyncio.gather(*(caller(number) for number in range(at_once)))


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1])))
