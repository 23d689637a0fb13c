"""Transactions of the plugin's own that conflict with others are no outage, whatever a database's default isolation is."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

import pytest
from sqlalchemy import text
from sqlalchemy.engine import make_url
from sqlalchemy.ext.asyncio import AsyncConnection

from flowactions_hookspecs import FlowActions, NotQueued
from flowactions_plugin.errors import StorageUnavailable
from flowactions_plugin.storage.database import Database
from flowactions_plugin.storage.waiting import CONFLICTS, REPETITIONS, repeated
from tests.host_transactions import SharingHost, a_host_engine, before, order, webhook
from tests.outages import a_database, execute
from tests.owning import engine_of, own_webhook
from tests.queueing import Queue
from tests.support import a_walk

LEVELS = ("serializable", "repeatable read")


@pytest.fixture(params=LEVELS)
def strict_url(request: pytest.FixtureRequest, postgres_url: str) -> str:
    """The URL of a database whose transactions have another isolation, unless they ask for one."""
    name = make_url(postgres_url).database
    changed = f"ALTER DATABASE \"{name}\" SET default_transaction_isolation = '{request.param}'"
    asyncio.run(execute(postgres_url, changed))
    return postgres_url


@asynccontextmanager
async def databases(url: str, number: int, *, shared: bool) -> AsyncIterator[list[Database]]:
    """Open several, as several processes do, with engines of the host's or of the plugin's own."""
    async with AsyncExitStack() as stack:
        opened = []
        for _ in range(number):
            engine = engine_of(url) if shared else None
            if engine is not None:
                stack.push_async_callback(engine.dispose)
            opened.append(await stack.enter_async_context(a_database(url, engine=engine)))
        yield opened


@pytest.mark.parametrize("shared", [False, True])
async def test_own_transactions_are_read_committed(strict_url: str, shared: bool) -> None:
    """Also single statements, and what is only read; but what a host writes in has the default of its engine."""
    level = text("SHOW transaction_isolation")
    async with databases(strict_url, 1, shared=shared) as (database,):
        async with database.read() as connection:
            found = [await connection.scalar(level)]
        async with database.write() as connection:
            found.append(await connection.scalar(level))
        found.append(await database.in_transaction(lambda connection: connection.scalar(level)))
        async with database.write(as_host=True) as connection:
            hosts = await connection.scalar(level)
    assert found == ["read committed"] * 3
    assert (hosts == "read committed") is not shared


async def crossed(database: Database, first: str, second: str, met: asyncio.Barrier) -> int:
    """Change two rows in this order, and count how often that was tried."""
    tries = 0

    @repeated
    async def change() -> None:
        nonlocal tries
        tries += 1
        async with database.write() as connection:
            await rename(connection, first)
            if tries == 1:
                await met.wait()
            await rename(connection, second)

    await change()
    return tries


async def rename(connection: AsyncConnection, row_id: str) -> None:
    await connection.execute(
        text("UPDATE flowactions_outbox SET event_type = 'x' WHERE id = :id"), {"id": row_id}
    )


async def test_a_deadlock_of_own_transactions_is_repeated(
    postgres_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    """One of the two is run again, perhaps both, nothing is raised, and nothing is logged."""
    async with databases(postgres_url, 2, shared=False) as (one, other):
        first, second = await Queue(one).put(), await Queue(one).put()
        met = asyncio.Barrier(2)
        tries = await asyncio.gather(crossed(one, first, second, met), crossed(other, second, first, met))
    # What is run again may meet the other before that has gone on.
    assert sum(tries) > 2
    assert not [each for each in caplog.records if each.levelno >= logging.WARNING]


@pytest.mark.parametrize("code", CONFLICTS)
async def test_repetitions_end(database_url: str, code: str) -> None:
    """Five come after the first try; what fails for another reason is not repeated, nor is a joined transaction."""
    async with a_database(database_url) as database:
        tries = 0

        @repeated
        async def fails(kind: str) -> None:
            nonlocal tries
            tries += 1
            async with database.write() as connection:
                if kind == "joined":
                    async with database.write(connection):
                        pass
                raise StorageUnavailable("it", code if kind != "other" else "57014")

        @repeated
        async def around() -> None:
            await fails("own")

        for call, wanted in ((around(), 1 + REPETITIONS), (fails("other"), 1)):
            tries = 0
            with pytest.raises(StorageUnavailable):
                await call
            assert tries == wanted


@pytest.mark.parametrize("call", ["reach", "enqueue"])
async def test_a_conflict_in_a_hosts_transaction_is_the_hosts(postgres_url: str, call: str) -> None:
    """Nothing is repeated; the answer names the conflict, and the transaction can still be committed."""
    engine = a_host_engine("asyncpg, serializable", postgres_url)
    try:
        host = SharingHost(engine)
        await host.make_table()
        actions = FlowActions.load(host)
        walk, own = before(a_walk(), "later"), own_webhook(idempotency_key="k")
        async with actions.lifespan(), engine.connect() as connection:
            await order(connection, "before")
            # What the transaction sees is older than this.
            await actions.reach(walk, webhook())
            await actions.enqueue(own)
            if call == "reach":
                result = await actions.reach(walk, webhook(), connection)
                assert result.reason == "storage_unavailable"
                answer = str(result.message)
            else:
                with pytest.raises(NotQueued) as raised:
                    await actions.enqueue(own, connection)
                answer = str(raised.value)
            await order(connection, "after")
            await connection.commit()
        assert "serialization conflict" in answer
        assert "repeat your transaction" in answer
        assert await host.ids() == {"before", "after"}
    finally:
        await engine.dispose()
