from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
from sqlalchemy import select, text
from sqlalchemy.exc import IntegrityError, ProgrammingError

from flowactions_plugin.errors import StorageUnavailable
from flowactions_plugin.settings import read_settings
from flowactions_plugin.storage.database import Database

ROW = "INSERT INTO flowactions_oauth_states (id, expires_at) VALUES ('{}', 1)"


def a_database(url: str) -> Database:
    return Database(read_settings({"FLOWACTIONS_DATABASE_URL": url}).database_url)


@pytest.fixture
async def database(database_url: str) -> AsyncIterator[Database]:
    async with a_database(database_url) as opened:
        yield opened


async def count(database: Database) -> int:
    async with database.read() as connection:
        found = await connection.execute(text("SELECT count(*) FROM flowactions_oauth_states"))
        return int(found.scalar_one())


async def test_processes_that_start_together_all_start(database_url: str) -> None:
    """On an empty database, simultaneous starts make the tables once and none fails."""
    async with AsyncExitStack() as stack:
        databases = [a_database(database_url) for _ in range(6)]
        await asyncio.gather(*(stack.enter_async_context(each) for each in databases))
        assert [await count(each) for each in databases] == [0] * 6


async def test_a_block_that_raises_leaves_nothing(database: Database) -> None:
    """What was written before an error is rolled back."""

    async def fail() -> None:
        async with database.write() as connection:
            await connection.execute(text(ROW.format("a")))
            raise LookupError

    with pytest.raises(LookupError):
        await fail()
    assert await count(database) == 0


async def test_a_cancelled_block_leaves_nothing_and_holds_up_nobody(database: Database) -> None:
    """A writer that is cancelled rolls back and lets the next one in."""

    async def write_for_ever() -> None:
        async with database.write() as connection:
            await connection.execute(text(ROW.format("a")))
            await asyncio.Event().wait()

    writing = asyncio.create_task(write_for_ever())
    await asyncio.sleep(0.05)
    writing.cancel()
    await asyncio.wait({writing})
    async with asyncio.timeout(5), database.write() as connection:
        await connection.execute(text(ROW.format("b")))
    assert await count(database) == 1


async def test_many_writers_wait_for_each_other(database: Database) -> None:
    """Simultaneous writers all get through; none hears of a lock."""

    async def write(name: int) -> None:
        async with database.write() as connection:
            await connection.execute(text(ROW.format(name)))

    await asyncio.gather(*(write(name) for name in range(100)))
    assert await count(database) == 100


async def test_a_broken_constraint_is_not_called_an_outage(database: Database) -> None:
    """A mistake of ours shows as what it is."""

    async def write_twice() -> None:
        async with database.write() as connection:
            await connection.execute(text(ROW.format("a")))
            await connection.execute(text(ROW.format("a")))

    with pytest.raises(IntegrityError):
        await write_twice()


async def test_wrong_sql_is_not_called_an_outage(postgres_url: str) -> None:
    """Where the database says that a statement is wrong, that is what is raised."""
    async with a_database(postgres_url) as database, database.read() as connection:
        with pytest.raises(ProgrammingError, match="nowhere"):
            await connection.execute(text("SELECT * FROM nowhere"))


async def test_the_clock_of_the_database_gives_milliseconds(database: Database) -> None:
    """Both engines tell the time in the same unit."""
    async with database.read() as connection:
        now = (await connection.execute(select(database.now()))).scalar_one()
    assert abs(now - database.clock() * 1000) < 5000


async def test_a_database_that_is_not_there_is_unavailable() -> None:
    """A refused connection is one clear error."""
    with pytest.raises(StorageUnavailable, match="the database failed"):
        await a_database("postgresql://nobody@127.0.0.1:1/x").__aenter__()


async def test_a_lost_database_is_unavailable_until_it_is_back(tmp_path: Path) -> None:
    """SQLite on a read-only connection fails clearly, and works again afterwards."""
    async with a_database(f"sqlite:///{tmp_path / 'f.db'}") as database:
        async with database.write() as connection:
            await connection.exec_driver_sql("SELECT 1")
        async with database.read() as connection:
            await connection.exec_driver_sql("PRAGMA query_only = ON")
        with pytest.raises(StorageUnavailable):
            async with database.write() as connection:
                await connection.execute(text(ROW.format("a")))
        async with database.read() as connection:
            await connection.exec_driver_sql("PRAGMA query_only = OFF")
        async with database.write() as connection:
            await connection.execute(text(ROW.format("b")))
        assert await count(database) == 1
