"""What an enqueue costs, beside a bare INSERT of the same bytes.

    python -m tests.benchmarks.enqueue [--database sqlite postgres] [--count 2000] [--json]

Each is measured with 1, 8 and 64 concurrent callers:

- ``bare``: an INSERT of a row of the same bytes into the same table by the bare driver, committed;
- ``alone``: the plugin's enqueue in a transaction of its own;
- ``keyed``: the same with an idempotency key, each time another one;
- ``joined``: the plugin's enqueue inside a host's transaction that writes a row of its own, less that transaction
  without the enqueue.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from typing import Any

import aiosqlite
import asyncpg
from sqlalchemy import text

from flowactions_plugin.egress.guard import EgressGuard
from flowactions_plugin.egress.resolver import Resolver
from flowactions_plugin.queue.enqueue import Outbox
from flowactions_plugin.queue.keys import KeyUse
from flowactions_plugin.queue.prepared import PreparedDelivery
from flowactions_plugin.storage.database import Database
from tests.benchmarks.field import a_webhook, on_each_database, opened, percentile

URL = "http://127.0.0.1:9/hook"


class Bench:
    """A database of the plugin's, and a host's table in it."""

    def __init__(self, database: Database) -> None:
        self.database = database
        self.outbox = Outbox(database, EgressGuard(development=True, resolve=Resolver(1)))
        self._number = 0
        self._values: list[Any] = []
        self._insert: Callable[[list[Any]], Awaitable[Any]]

    async def prepare(self, stack: AsyncExitStack, url: str) -> None:
        """Make the host's table, and learn the statement and the values of a bare INSERT."""
        async with self.database.write() as connection:
            await connection.execute(text("CREATE TABLE runs (id INTEGER, state TEXT)"))
        await self.alone()
        async with self.database.read() as connection:
            row = (await connection.execute(text("SELECT * FROM flowactions_outbox"))).mappings().one()
        names = [name for name in row if name != "id"]
        self._values = [row[name] for name in names]
        columns = f"INSERT INTO flowactions_outbox (id, {', '.join(names)}) VALUES"
        if self.database.dialect == "postgresql":
            pool = await stack.enter_async_context(asyncpg.create_pool(url, min_size=15, max_size=15))
            places = ", ".join(f"${number + 1}" for number in range(len(row)))
            self._insert = lambda values: pool.execute(f"{columns} ({places})", *values)
            return
        path = url.removeprefix("sqlite:///")
        driver = await stack.enter_async_context(aiosqlite.connect(path, isolation_level=None, timeout=30))
        self._insert = lambda values: driver.execute(f"{columns} ({', '.join('?' * len(row))})", values)

    async def bare(self) -> None:
        """Insert the same bytes without the plugin."""
        self._number += 1
        await self._insert([f"bare-{self._number}", *self._values])

    async def alone(self) -> None:
        """Enqueue as a webhook node does."""
        self._number += 1
        delivery = await self.outbox.new_delivery(a_webhook(URL, self._number))
        await self.outbox.write(delivery)

    async def keyed(self) -> None:
        """Enqueue as a host does with an idempotency key."""
        self._number += 1
        delivery = await self.outbox.new_delivery(a_webhook(URL, self._number))
        use = KeyUse(self.outbox.keys, "acme", "host", f"key-{self._number}")
        receipt = await PreparedDelivery(self.outbox, delivery, use).enqueue(None)
        assert receipt.status == "queued"

    async def host(self) -> None:
        """Write a host's row in its own transaction."""
        async with self.database.write() as connection:
            await connection.execute(text("INSERT INTO runs VALUES (1, 'x')"))

    async def joined(self) -> None:
        """Write a host's row and enqueue in one transaction."""
        self._number += 1
        delivery = await self.outbox.new_delivery(a_webhook(URL, self._number))
        async with self.database.write() as connection:
            await connection.execute(text("INSERT INTO runs VALUES (1, 'x')"))
            await self.outbox.write(delivery, connection)


async def times(call: Callable[[], Awaitable[Any]], count: int, callers: int) -> list[float]:
    """Give the milliseconds of so many calls by so many callers."""
    took: list[float] = []

    async def caller() -> None:
        for _ in range(count // callers):
            started = time.perf_counter()
            await call()
            took.append((time.perf_counter() - started) * 1000)

    await asyncio.gather(*(caller() for _ in range(callers)))
    return took


async def measure(url: str, count: int) -> dict[str, float]:
    """Measure all of them on one database, in turns, so that what disturbs one disturbs all."""
    found: dict[str, float] = {}
    async with AsyncExitStack() as stack:
        bench = Bench(await stack.enter_async_context(opened(url)))
        await bench.prepare(stack, url)
        calls = {
            "bare": bench.bare,
            "alone": bench.alone,
            "keyed": bench.keyed,
            "host": bench.host,
            "joined": bench.joined,
        }
        for callers in (1, 8, 64):
            took: dict[str, list[float]] = {name: [] for name in calls}
            for _ in range(4):
                for name, call in calls.items():
                    took[name] += await times(call, count // 4, callers)
            middle = {name: percentile(values, 0.5) for name, values in took.items()}
            for name in ("bare", "alone", "keyed", "joined"):
                found[f"{name}_{callers}_p50_ms"] = middle[name]
                found[f"{name}_{callers}_p99_ms"] = percentile(took[name], 0.99)
            found[f"alone_{callers}_to_bare"] = middle["alone"] / middle["bare"]
            found[f"keyed_{callers}_to_bare"] = middle["keyed"] / middle["bare"]
            found[f"joined_{callers}_to_bare"] = (middle["joined"] - middle["host"]) / middle["bare"]
    return found


def main() -> None:
    """Measure and print."""
    on_each_database(__doc__, measure, count=2000)


if __name__ == "__main__":
    main()
