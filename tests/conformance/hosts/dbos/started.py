"""Starts a host beside a transaction that is open in its event loop: ``python -m tests.conformance.hosts.dbos.started URL``.

The transaction is of the same PostgreSQL database, and ends by itself soon. Prints ``started``.
"""

from __future__ import annotations

import asyncio
import sys

import sqlalchemy as sa
from sqlalchemy.engine import make_url
from sqlalchemy.ext.asyncio import create_async_engine

from tests.conformance.hosts.dbos.small import opened_host


async def start(place: str) -> None:
    """Start, and stop."""
    engine = create_async_engine(make_url(place).set(drivername="postgresql+asyncpg"))
    begun = asyncio.Event()

    async def beside() -> None:
        async with engine.begin() as connection:
            await connection.execute(sa.text("SELECT txid_current()"))
            begun.set()
            for _ in range(100):
                await asyncio.sleep(0.01)

    transaction = asyncio.create_task(beside())
    await begun.wait()
    async with opened_host(place, lambda _: None):
        sys.stdout.write("started\n")
    await transaction
    await engine.dispose()


if __name__ == "__main__":
    asyncio.run(start(sys.argv[1]))
