"""What the transport can do without a queue: a queue's rows, posted as often at once as a worker would.

    FLOWACTIONS_DATABASE_URL=… python -m tests.benchmarks.ceiling

`deliver` runs it in a process of its own. It changes nothing in the queue, and prints requests a second.
"""

from __future__ import annotations

import asyncio
import os
import time

import msgspec
from sqlalchemy import select

from flowactions_plugin.egress.attempt import Progress, Request
from flowactions_plugin.egress.destination import parse_destination
from flowactions_plugin.egress.guard import EgressGuard
from flowactions_plugin.egress.resolver import Resolver
from flowactions_plugin.egress.signature import SIGNATURE_HEADER, TIMESTAMP_HEADER, sign
from flowactions_plugin.egress.transport import OutboundTransport
from flowactions_plugin.settings.model import read_settings
from flowactions_plugin.storage.schema import outbox
from tests.benchmarks.bare import SECRET
from tests.benchmarks.field import opened


async def measure() -> float:
    """Give requests a second."""
    settings = read_settings(os.environ)
    async with opened(settings.database_url) as database, database.read() as connection:
        rows = (await connection.execute(select(outbox.c.url, outbox.c.headers, outbox.c.body))).all()
    # All that a request is made of is made before: the signature too.
    signed = [(TIMESTAMP_HEADER, "1"), (SIGNATURE_HEADER, sign(SECRET, 1, rows[0].body))]
    prepared = [
        Request(
            "POST",
            parse_destination(row.url),
            [*msgspec.json.decode(row.headers), *signed],
            row.body,
            Progress(),
        )
        for row in rows
    ]
    left = iter(prepared)
    transport = OutboundTransport(EgressGuard(development=True, resolve=Resolver(1)), settings.concurrency)

    async def send() -> None:
        for request in left:
            answer = await transport.send(request)
            assert answer.status_code == 200

    started = time.perf_counter()
    await asyncio.gather(*(send() for _ in range(settings.concurrency)))
    seconds = time.perf_counter() - started
    await transport.aclose()
    return len(rows) / seconds


if __name__ == "__main__":
    print(asyncio.run(measure()))
