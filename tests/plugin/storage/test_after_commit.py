"""What the plugin does once a transaction of the host's has been committed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress
from functools import partial
from typing import Any

import pytest
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncEngine
from sqlalchemy.util import await_only

from flowactions_plugin.storage.database import Database
from flowactions_plugin.storage.transactions import COMMIT_SECONDS
from tests.host_transactions import a_host_engine
from tests.waiting import until


@pytest.fixture
async def engine(database_url: str) -> AsyncIterator[AsyncEngine]:
    made = a_host_engine("asyncpg" if database_url.startswith("postgresql") else "sqlite", database_url)
    yield made
    await made.dispose()


@pytest.fixture
async def database(engine: AsyncEngine) -> AsyncIterator[Database]:
    async with Database("sqlite+aiosqlite:///unused.db", engine) as opened:
        yield opened


async def settled(calls: list[str]) -> list[str]:
    """Give the calls that were made, after a time in which one more would have been."""
    await asyncio.sleep(COMMIT_SECONDS * 5)
    return calls


async def test_calls_after_commit_wait_for_the_hosts_commit(
    database: Database, engine: AsyncEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However long the transaction stays open, and however slow its commit is."""
    calls: list[str] = []
    async with engine.connect() as connection:
        async with database.write(connection) as joined:
            database.transactions.after_commit(joined, lambda: calls.append("joined"))
        database.transactions.after_commit(connection, lambda: calls.append("own"))
        assert await settled(calls) == []
        commit = engine.sync_engine.dialect.do_commit

        def slow(given: Any) -> None:
            await_only(settled(calls))
            assert calls == []
            commit(given)

        monkeypatch.setattr(engine.sync_engine.dialect, "do_commit", slow)
        await connection.commit()
    assert await until(lambda: len(calls) == 2)
    assert sorted(await settled(calls)) == ["joined", "own"]


async def test_a_rollback_drops_the_calls_after_commit(database: Database, engine: AsyncEngine) -> None:
    """Also at a later commit of the same connection, which is of another transaction."""
    calls: list[str] = []
    async with engine.connect() as connection:
        for end in (connection.rollback, connection.commit):
            async with database.write(connection) as joined:
                database.transactions.after_commit(joined, partial(calls.append, end.__name__))
            await end()
            await connection.execute(text("SELECT 1"))
            await connection.commit()
    await until(lambda: calls)
    assert await settled(calls) == ["commit"]


async def test_calls_follow_the_commit_of_an_own_transaction(
    database: Database, engine: AsyncEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There is no call after a block that raised or a commit that failed."""
    calls: list[str] = []
    dialect, commit = engine.sync_engine.dialect, engine.sync_engine.dialect.do_commit

    def committed(given: Any) -> None:
        assert calls == []
        commit(given)
        assert calls == []

    def fail(_: Any) -> None:
        raise dialect.loaded_dbapi.OperationalError("disk full")

    async with database.write() as connection:
        monkeypatch.setattr(dialect, "do_commit", committed)
        database.transactions.after_commit(connection, partial(calls.append, "committed"))
    assert calls == ["committed"]
    monkeypatch.setattr(dialect, "do_commit", fail)
    with suppress(Exception):
        async with database.write() as connection:
            database.transactions.after_commit(connection, partial(calls.append, "not committed"))
    monkeypatch.undo()
    with suppress(LookupError):
        async with database.write() as connection:
            database.transactions.after_commit(connection, partial(calls.append, "raised"))
            raise LookupError
    assert await settled(calls) == ["committed"]
