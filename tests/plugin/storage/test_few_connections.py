"""A server, a role or a setting that allows few connections: callers wait for one of the process."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager
from unittest import mock

import asyncpg
import pytest
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection, create_async_engine

from flowactions_hookspecs import FlowActions, Node
from flowactions_plugin.errors import StorageUnavailable
from flowactions_plugin.storage import postgresql, sqlite
from flowactions_plugin.storage.database import Database
from tests.outages import Door, a_database, a_role, parsed
from tests.rings import sampled
from tests.support import SmallHost, a_walk, development, services_of
from tests.waiting import SAFETY_SECONDS, Limits, until

BURST = 60

OWNER = "CREATE, USAGE ON SCHEMA public"
"""The rights of a role that makes the tables."""

NODE = Node(id="n", type="webhook", config={"webhookUrl": "http://127.0.0.1:1/"})


@asynccontextmanager
async def few(url: str, limit: int) -> AsyncIterator[Database]:
    """Open a database as a role with so many connections."""
    async with a_role(url, OWNER, limit=limit) as given, a_database(given) as database:
        yield database


async def open_connections(url: str) -> int:
    """Count the connections of others to the database."""
    # Not those that have counted before: the server may still be closing them.
    query = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND application_name <> 'count'"
    connection = await asyncpg.connect(url, server_settings={"application_name": "count"})
    try:
        return int(await connection.fetchval(query))
    finally:
        await connection.close()


async def reached(actions: FlowActions) -> set[str]:
    nodes = (actions.reach(a_walk(run_id=f"r{number}"), NODE) for number in range(BURST))
    return {result.status for result in await asyncio.gather(*nodes)}


@sampled("limit", [1, 2, 3, 4, 5], size=1)
@sampled("delivery", ["continuous", "scheduled"], size=1)
async def test_a_burst_waits_for_the_connections_that_the_role_may_have(
    postgres_url: str, limit: int, delivery: str
) -> None:
    """All of sixty nodes at once are enqueued, twice, beside a worker that listens."""
    async with a_role(postgres_url, OWNER, limit=limit) as url:
        settings = development(url) | {"FLOWACTIONS_DELIVERY": delivery}
        async with (actions := FlowActions.load(SmallHost(settings))).lifespan():
            assert await reached(actions) == {"queued"}
            assert await reached(actions) == {"queued"}


async def test_a_burst_waits_in_the_pool_of_a_host_too(postgres_url: str) -> None:
    """An engine that may open more than its role does not lose a node, nor one in the host's own transaction."""
    async with a_role(postgres_url, OWNER, limit=2) as url:
        engine = create_async_engine(parsed(url), pool_size=10)
        host = SmallHost(development("sqlite:///never.db"), database=engine)
        async with (actions := FlowActions.load(host)).lifespan():
            assert await reached(actions) == {"queued"}
        await engine.dispose()


@sampled("most", [2, 3, 8], size=1)
async def test_a_process_opens_no_more_connections_than_its_setting_says(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch, most: int
) -> None:
    """Beside a listening worker, with nodes, statements and transactions at once; and none of these fails."""
    # One that the driver has given up is counted until the server has ended it.
    monkeypatch.setattr(postgresql, "CLOSE_SECONDS", SAFETY_SECONDS)
    settings = development(postgres_url) | {
        "FLOWACTIONS_DELIVERY": "continuous",
        "FLOWACTIONS_DATABASE_CONNECTIONS": str(most),
    }
    host = SmallHost(settings)
    seen = 0
    async with (actions := FlowActions.load(host)).lifespan():
        database = services_of(host)._database

        async def transact() -> None:
            async with database.write() as transaction:
                await transaction.execute(text("SELECT pg_sleep(0.01)"))

        working = asyncio.gather(reached(actions), *(transact() for _ in range(BURST)))
        while not working.done():
            seen = max(seen, await open_connections(postgres_url))
        assert (await working)[0] == {"queued"}
    assert 0 < seen <= most


class Waits(Limits):
    """How callers wait for a connection of a database, until their time is up.

    Attributes:
        vain: how many tries found none to spare.
        ends: whether their time is up as soon as a try has found none.
        hangs: whether the next try does not end before their time is up.
    """

    def __init__(self, database: Database) -> None:
        super().__init__()
        self.vain = 0
        self.ends = self.hangs = False
        self._spare = database._engines._spare
        self._changes = ExitStack()
        self._changes.enter_context(mock.patch.object(sqlite, "WAIT_SECONDS", self.SECONDS))
        self._changes.enter_context(mock.patch.object(database._engines, "_spare", self._try))

    def __exit__(self, *_: object) -> None:
        self._changes.close()
        super().__exit__()

    async def _try(self) -> AsyncConnection | None:
        if self.hangs:
            self.end()
            await asyncio.Event().wait()
        found = await self._spare()
        self.vain += found is None
        assert self.begun or self.vain < 2, "it waits without a limit"
        if self.ends:
            self.end()
        return found


async def test_who_waits_in_vain_is_told_what_to_do(postgres_url: str) -> None:
    """A caller waits no longer than others do for a lock; another one that comes later is served."""
    async with few(postgres_url, 1) as database:
        async with database.read():
            with Waits(database) as waits:
                waits.ends = True
                with pytest.raises(
                    StorageUnavailable, match=r"no connection to spare.*FLOWACTIONS_DATABASE_CONNECTIONS"
                ) as told:
                    await database.time()
            assert (waits.vain, len(waits.begun)) == (2, 1)
        assert told.value.code == "53300"
        assert await database.time() > 0


@pytest.mark.parametrize("how", ["its network was lost", "it did not answer in time"])
async def test_who_waits_for_a_connection_that_then_does_not_open_is_told_that(
    postgres_url: str, how: str
) -> None:
    """The server had none to spare at first."""
    async with a_role(postgres_url, OWNER, limit=1) as limited:
        door = Door(limited)
        async with door.url() as url, a_database(url) as database, database.read():
            with Waits(database) as waits:
                waiting = asyncio.create_task(database.time())
                await until(lambda: waits.vain > 1)
                door.is_open, waits.hangs = False, how == "it did not answer in time"
                with pytest.raises(StorageUnavailable) as told:
                    await waiting
            assert "to spare" not in str(told.value)
            assert (how in str(told.value)) == waits.hangs
            door.is_open = True
        assert told.value.code != "53300"


async def test_a_caller_that_is_cancelled_while_it_waits_leaves_the_connection_to_the_next(
    postgres_url: str,
) -> None:
    """The queue of those that wait goes on."""
    async with few(postgres_url, 1) as database:
        async with database.read():
            waiting = [asyncio.create_task(database.time()) for _ in range(3)]
            await until(database._engines._turn.locked)
            waiting[0].cancel()
        assert await asyncio.gather(*waiting[1:])
        assert waiting[0].cancelled()


async def test_a_caller_that_is_cancelled_as_a_connection_comes_back_ends(postgres_url: str) -> None:
    """It does not begin with it after that."""
    async with few(postgres_url, 1) as database:
        async with database.read():
            waiting = asyncio.create_task(database.time())
            await database._engines.unlisten.wait()  # it waits, because there is no connection to spare
            database._engines._returned.set()
            await asyncio.sleep(0)
            waiting.cancel()
        await asyncio.wait({waiting})
        assert waiting.cancelled()


async def test_a_connection_that_is_kept_for_statements_is_given_to_who_waits(postgres_url: str) -> None:
    """A transaction gets it, and the next statement another one."""
    async with few(postgres_url, 1) as database:
        for _ in range(3):
            await database.in_transaction(lambda connection: connection.execute(text("SELECT 1")))
            assert await database.time() > 0
