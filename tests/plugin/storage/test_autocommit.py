"""Connections that are kept for the next statement."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
from sqlalchemy import func, select, text
from sqlalchemy.engine import Connection
from sqlalchemy.exc import DBAPIError

from flowactions_plugin.errors import StorageUnavailable
from flowactions_plugin.storage import postgresql
from flowactions_plugin.storage.connections import MOST_KEPT
from flowactions_plugin.storage.database import Database
from tests.outages import a_database
from tests.waiting import SAFETY_SECONDS


@pytest.fixture
async def database(postgres_url: str) -> AsyncIterator[Database]:
    async with a_database(postgres_url) as opened:
        yield opened


def backend(connection: Connection) -> int:
    """Give the server's process of a connection."""
    return int(connection.execute(select(func.pg_backend_pid())).scalar_one())


def slowly(connection: Connection) -> int:
    """Give it after a while."""
    found: int = connection.execute(text("SELECT pg_backend_pid() FROM pg_sleep(0.2)")).scalar_one()
    return found


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


async def test_statements_side_by_side_leave_the_pool_what_it_needs(database: Database) -> None:
    """Few connections are kept of however many were used at once; all others can be had by transactions."""
    backends = await asyncio.gather(*(database.in_transaction(slowly) for _ in range(MOST_KEPT + 6)))
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
    await asyncio.sleep(0.1)
    assert await database.in_transaction(backend) != lost


async def test_an_error_of_a_statement_leaves_the_next_one_alone(database: Database) -> None:
    """A statement that fails, and one whose caller is cancelled."""
    await database.in_transaction(backend)
    with pytest.raises((DBAPIError, StorageUnavailable)):
        await database.in_transaction(lambda connection: connection.execute(text("SELECT 1 / 0")))
    task = asyncio.create_task(database.in_transaction(slowly))
    await asyncio.sleep(0.05)
    task.cancel()
    await asyncio.wait({task})
    assert task.cancelled()
    assert await database.in_transaction(backend) > 0


async def test_no_connection_outlives_the_database(postgres_url: str) -> None:
    """Neither one that was kept nor one that was in use when it was closed."""
    async with a_database(postgres_url) as database:
        backends = [await database.in_transaction(backend)]
        late = asyncio.create_task(database.in_transaction(slowly))
        await asyncio.sleep(0.05)
    backends += [each for each in await asyncio.gather(late, return_exceptions=True) if isinstance(each, int)]
    await asyncio.sleep(0.1)
    async with a_database(postgres_url) as database, database.read() as connection:
        alive = select(func.count()).select_from(text("pg_stat_activity"))
        assert await connection.scalar(alive.where(text("pid = ANY(:pids)").bindparams(pids=backends))) == 0


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

    limits: list[asyncio.Timeout] = []
    limit = asyncio.timeout

    def limited(seconds: float | None) -> asyncio.Timeout:
        limits.append(limit(seconds and SAFETY_SECONDS))
        return limits[-1]

    monkeypatch.setattr(asyncio, "timeout", limited)

    async def late(*given: object) -> None:
        limits[0].reschedule(0)  # the caller's time is up now, however busy the machine is
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

    with pytest.raises(StorageUnavailable) as caught:
        await write()
    assert caught.value.may_be_written is is_begun
