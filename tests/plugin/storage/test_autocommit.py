"""Connections that are kept for the next statement."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import asyncpg
import pytest
from sqlalchemy import delete, func, select, text
from sqlalchemy.engine import Connection, make_url
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncConnection

from flowactions_plugin.errors import StorageUnavailable
from flowactions_plugin.storage import postgresql, waiting
from flowactions_plugin.storage.connections import MOST_KEPT
from flowactions_plugin.storage.database import Database
from flowactions_plugin.storage.schema import inbound_events
from tests.outages import a_database, execute
from tests.waiting import SAFETY_SECONDS, Limits, until


@pytest.fixture
async def database(postgres_url: str) -> AsyncIterator[Database]:
    async with a_database(postgres_url) as opened:
        yield opened


def backend(connection: Connection) -> int:
    """Give the server's process of a connection."""
    return int(connection.execute(select(func.pg_backend_pid())).scalar_one())


def held(connection: Connection) -> int:
    """Give it once the lock is free."""
    found: int = connection.execute(
        text("SELECT pg_backend_pid() FROM pg_advisory_xact_lock_shared(7)")
    ).scalar_one()
    return found


@asynccontextmanager
async def holding(database: Database, postgres_url: str, count: int) -> AsyncIterator[list[asyncio.Task[int]]]:
    """Have so many statements wait for the lock until the block ends."""
    holder = await asyncpg.connect(postgres_url)
    try:
        await holder.execute("SELECT pg_advisory_lock(7)")
        tasks = [asyncio.create_task(database.in_transaction(held)) for _ in range(count)]
        waiting = f"SELECT count(*) = {count} FROM pg_stat_activity WHERE wait_event = 'advisory'"  # noqa: S608
        waiting += " AND datname = current_database()"
        await until(lambda: holder.fetchval(waiting))
        yield tasks
    finally:
        await holder.close()


async def until_gone(database: Database, backends: Sequence[int]) -> None:
    """Wait until the server has ended these processes."""
    alive = text("SELECT count(*) FROM pg_stat_activity WHERE pid = ANY(:pids)").bindparams(pids=backends)

    async def are_gone() -> bool:
        async with database.read() as connection:
            return bool(await connection.scalar(alive) == 0)

    await until(are_gone)


async def test_one_statement_after_the_other_uses_one_connection(database: Database) -> None:
    """Each is a transaction of its own."""
    backends = {await database.in_transaction(backend) for _ in range(10)}
    moments = [
        await database.in_transaction(
            lambda connection: connection.execute(select(func.txid_current())).scalar_one()
        )
        for _ in range(2)
    ]
    assert len(backends) == 1
    assert moments[0] != moments[1]


async def test_statements_side_by_side_leave_the_pool_what_it_needs(
    database: Database, postgres_url: str
) -> None:
    """Few connections are kept of however many were used at once; all others can be had by transactions."""
    async with holding(database, postgres_url, MOST_KEPT + 6) as tasks:
        pass
    backends = await asyncio.gather(*tasks)
    assert len(set(backends)) == MOST_KEPT + 6
    assert len(database._engines._kept) == MOST_KEPT


@pytest.mark.parametrize("idle", [False, True])
async def test_a_connection_that_was_lost_is_replaced(
    database: Database, monkeypatch: pytest.MonkeyPatch, idle: bool
) -> None:
    """Before it is used again, whether it has been idle for long or not."""
    lost = await database.in_transaction(backend)
    if idle:
        monkeypatch.setattr(postgresql, "IDLE_SECONDS", -1.0)
    async with database.read() as connection:
        await connection.execute(select(func.pg_terminate_backend(lost)))
    await until_gone(database, [lost])
    assert await database.in_transaction(backend) != lost


async def test_a_connection_whose_loss_nobody_has_noticed_is_replaced_after_an_idle_time(
    database: Database, postgres_url: str
) -> None:
    """The pool tests it, also if it was kept: its end has come while the event loop stood still, or not at all."""
    lost = await database.in_transaction(backend)
    (kept,) = database._engines._kept
    postgresql.mark_unused(kept.sync_connection)
    ending = f"SELECT pg_terminate_backend({lost}, 60000)"  # waits for the end
    with ThreadPoolExecutor(1) as thread:
        assert thread.submit(asyncio.run, execute(postgres_url, ending)).result() is None
    assert await database.in_transaction(backend) != lost


def write(connection: Connection) -> int:
    """Write nothing, where it may be written, and give the server's process."""
    connection.execute(delete(inbound_events).where(inbound_events.c.received_at < 0))
    return backend(connection)


class FormerPrimary:
    """A database whose URL leads to a server that takes no writes, until the failover."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._setting = f'ALTER DATABASE "{make_url(url).database}" SET default_transaction_read_only = '

    @asynccontextmanager
    async def opened(self) -> AsyncIterator[Database]:
        async with a_database(self._url):
            pass  # its tables are there
        await execute(self._url, self._setting + "on")
        async with a_database(self._url) as database:
            yield database

    async def fail_over(self, database: Database) -> None:
        """Have new connections lead to a server that takes writes. One write through an older one is refused."""
        await execute(self._url, "SET default_transaction_read_only = off", self._setting + "off")
        with pytest.raises(StorageUnavailable, match="read-only") as failed:
            await database.in_transaction(write)
        assert not failed.value.may_be_written  # the server did answer


async def test_after_a_failover_one_write_fails_and_no_other(postgres_url: str) -> None:
    """All connections that were opened before are replaced: kept ones, others, those in use, the one of LISTEN."""
    former = FormerPrimary(postgres_url)
    async with former.opened() as database:
        listening = asyncio.create_task(database.listen("flowactions", lambda _payload: None))
        async with holding(database, postgres_url, MOST_KEPT + 3) as tasks:
            pass
        before = await asyncio.gather(*tasks)
        async with holding(database, postgres_url, 1) as in_use, database.read() as reading:
            assert await reading.run_sync(backend) in before
            await former.fail_over(database)
        assert await in_use[0] in before
        await asyncio.wait_for(listening, SAFETY_SECONDS)
        async with holding(database, postgres_url, MOST_KEPT + 3) as tasks:
            pass
        assert set(await asyncio.gather(*tasks)).isdisjoint(before)
        await asyncio.gather(*(database.in_transaction(write) for _ in range(MOST_KEPT + 3)))
        async with database.write() as transaction:
            await transaction.run_sync(write)


async def test_nobody_listens_on_a_connection_from_before_a_failover(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The failover may come after the connection was checked out, and before LISTEN."""
    former = FormerPrimary(postgres_url)
    async with former.opened() as database:
        await database.in_transaction(backend)  # so the failover's write has an older connection
        check_out = database._engines._check_out

        async def while_it_happens() -> AsyncConnection:
            monkeypatch.setattr(database._engines, "_check_out", check_out)
            connection = await check_out()
            await former.fail_over(database)
            return connection

        monkeypatch.setattr(database._engines, "_check_out", while_it_happens)
        await asyncio.wait_for(database.listen("flowactions", lambda _payload: None), SAFETY_SECONDS)


async def test_a_connection_that_began_to_listen_does_not_return_to_the_pool(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever listens may be cancelled before it knows that the server has begun to notify it."""
    listen, begun = asyncpg.Connection.add_listener, asyncio.Event()

    async def answered_late(connection: asyncpg.Connection, *given: Any) -> None:
        await listen(connection, *given)
        begun.set()
        await asyncio.Event().wait()

    monkeypatch.setattr(asyncpg.Connection, "add_listener", answered_late)
    listening = asyncio.create_task(database.listen("flowactions", lambda _payload: None))
    await begun.wait()
    listening.cancel()
    await asyncio.wait({listening})
    async with database.read() as connection:
        assert (await connection.scalars(text("SELECT pg_listening_channels()"))).all() == []


async def test_an_error_of_a_statement_leaves_the_next_one_alone(database: Database, postgres_url: str) -> None:
    """A statement that fails, and one whose caller is cancelled."""
    await database.in_transaction(backend)
    with pytest.raises((DBAPIError, StorageUnavailable)):
        await database.in_transaction(lambda connection: connection.execute(text("SELECT 1 / 0")))
    async with holding(database, postgres_url, 1) as (task,):
        task.cancel()
        await asyncio.wait({task})
    assert task.cancelled()
    assert await database.in_transaction(backend) > 0


async def test_no_connection_outlives_the_database(postgres_url: str) -> None:
    """Neither one that was kept nor those that were in use when it was closed."""
    of_this = text("SELECT pid FROM pg_stat_activity WHERE datname = current_database()")
    async with AsyncExitStack() as stack, a_database(postgres_url) as database:
        (late,) = await stack.enter_async_context(holding(database, postgres_url, 1))
        reading = await stack.enter_async_context(database.read())
        writing = await stack.enter_async_context(database.write())
        in_use = [await each.run_sync(backend) for each in (reading, writing)]
        await database.in_transaction(backend)
        async with database.read() as connection:
            backends = (await connection.scalars(of_this)).all()
        pool = reading.sync_engine.pool  # would be collected as garbage, with what it keeps
    assert len(backends) == 6  # with those that hold the lock and that look
    assert {await late, *in_use} < {*backends}
    async with a_database(postgres_url) as database:
        await until_gone(database, backends)
    del pool


@pytest.mark.parametrize("way", ["statement", "statements", "transaction"])
@pytest.mark.parametrize("is_begun", [True, False])
async def test_what_was_committed_is_not_denied_because_its_connection_comes_back_late(
    database: Database, monkeypatch: pytest.MonkeyPatch, way: str, is_begun: bool
) -> None:
    """Whoever waits for no longer than an answer may take learns that it may be written: otherwise it is written twice.

    What no connection was free for was not written, and is told as that.
    """
    engines = database._engines
    monkeypatch.setattr(engines, "_most_kept", 0)
    name = "_check_in" if is_begun else "_check_out"
    on_time = getattr(engines, name)
    monkeypatch.setattr(waiting, "ANSWER_SECONDS", Limits.SECONDS)

    async def late(*given: object) -> None:
        limits.end()
        try:
            await asyncio.Event().wait()
        finally:
            if is_begun:
                await on_time(*given)

    monkeypatch.setattr(engines, name, late)

    async def write() -> None:
        async with database.answering():
            if way == "transaction":
                async with database.write() as transaction:
                    await transaction.run_sync(backend)
            else:
                await database.in_transaction(backend, several=way == "statements")

    with Limits() as limits, pytest.raises(StorageUnavailable) as caught:
        await write()
    assert caught.value.may_be_written is is_begun
