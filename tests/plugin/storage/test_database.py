from __future__ import annotations

import asyncio
import gc
import sqlite3
import threading
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, closing, suppress
from functools import partial
from pathlib import Path
from typing import Any, cast

import aiosqlite
import httpx
import pytest
from sqlalchemy import Connection, select, text
from sqlalchemy.engine import make_url

from flowactions_hookspecs import FlowActions, Node
from flowactions_plugin.errors import StorageUnavailable
from flowactions_plugin.storage import sqlite
from flowactions_plugin.storage.connections import SQLiteThread
from flowactions_plugin.storage.database import Database
from flowactions_plugin.storage.sqlite import Deadline, switch_to_wal, watch_inserts
from tests.outages import Door, a_database
from tests.queueing import Queue
from tests.recorder import recorder
from tests.support import SmallHost, a_walk, development, transport_of
from tests.waiting import SAFETY_SECONDS, until, within

COPIED = """
    INSERT INTO flowactions_outbox (id, claimed_by, organization_id, agent_id, origin, event_id, event_type, url, destination,
        lane, method, headers, status, attempts, earlier_attempts, max_attempts, next_attempt_at, takeovers, created_at, updated_at)
    SELECT 'claimed', '00000000', organization_id, agent_id, origin, event_id, event_type, url, destination, lane, method, headers,
        status, attempts, earlier_attempts, max_attempts, next_attempt_at, takeovers, created_at, updated_at
    FROM flowactions_outbox WHERE id = '{}'"""

ROW = "INSERT INTO flowactions_oauth_states (id, expires_at) VALUES ('{}', 1)"


@pytest.fixture
async def database(database_url: str) -> AsyncIterator[Database]:
    async with a_database(database_url) as opened:
        yield opened


async def count(database: Database) -> int:
    async with database.read() as connection:
        found = await connection.execute(text("SELECT count(*) FROM flowactions_oauth_states"))
        return int(found.scalar_one())


async def test_concurrent_first_starts_succeed(database_url: str) -> None:
    """Concurrent starts on an empty database create the tables once, and none fails."""
    async with AsyncExitStack() as stack:
        databases = [a_database(database_url) for _ in range(6)]
        await asyncio.gather(*(stack.enter_async_context(each) for each in databases))
        assert [await count(each) for each in databases] == [0] * 6


async def test_a_transaction_that_raises_is_rolled_back(database: Database) -> None:
    """Writes before the error are not stored."""

    async def fail() -> None:
        async with database.write() as connection:
            await connection.execute(text(ROW.format("a")))
            raise LookupError

    with pytest.raises(LookupError):
        await fail()
    assert await count(database) == 0


async def test_a_cancelled_transaction_is_rolled_back_and_releases_the_lock(database: Database) -> None:
    """A cancelled writer rolls back, and the next one proceeds."""
    written = asyncio.Event()

    async def write_for_ever() -> None:
        async with database.write() as connection:
            await connection.execute(text(ROW.format("a")))
            written.set()
            await asyncio.Event().wait()

    writing = asyncio.create_task(write_for_ever())
    await written.wait()
    writing.cancel()
    await asyncio.wait({writing})
    async with asyncio.timeout(SAFETY_SECONDS), database.write() as connection:
        await connection.execute(text(ROW.format("b")))
    assert await count(database) == 1


async def test_concurrent_writers_wait_for_each_other(database: Database) -> None:
    """All of them succeed; none gets an error about a lock."""

    async def write(name: int) -> None:
        async with database.write() as connection:
            await connection.execute(text(ROW.format(name)))

    await asyncio.gather(*(write(name) for name in range(100)))
    assert await count(database) == 100


async def test_the_database_clock_returns_milliseconds(database: Database) -> None:
    """On both engines."""
    async with database.read() as connection:
        now = (await connection.execute(select(database.now()))).scalar_one()
    assert abs(now - database.clock() * 1000) < 5000


async def test_an_unreachable_database_is_unavailable(caplog: pytest.LogCaptureFixture) -> None:
    """A refused connection is one clear error, and a host starts without it."""
    async with a_database("postgresql://nobody@127.0.0.1:1/x") as database:
        assert "starting without the database" in caplog.text
        with pytest.raises(StorageUnavailable, match="the database failed"):
            await count(database)


async def test_a_host_that_starts_before_its_database_recovers(postgres_url: str) -> None:
    """Until the database answers, nodes fail open and routes answer 503; then everything works."""
    door = Door(postgres_url, is_open=False)
    async with door.url() as away:
        actions = FlowActions.load(SmallHost(development(away)))
        async with recorder() as receiver, actions.lifespan():
            node = Node(id="n", type="webhook", config={"webhookUrl": receiver.url})
            failed = await actions.reach(a_walk(), node)
            assert (failed.status, failed.reason, failed.halt) == ("failed", "storage_unavailable", False)
            transport = transport_of(actions)
            async with httpx.AsyncClient(transport=transport, base_url="http://host") as client:
                answer = await client.get("/v1/webhooks/outbox")
                assert (answer.status_code, answer.json()["code"]) == (503, "storage_unavailable")
                door.is_open = True
                assert (await actions.reach(a_walk(), node)).status == "queued"
                await until(lambda: receiver.requests)
                assert (await client.get("/v1/webhooks/outbox")).status_code == 200


async def answers(database: Database) -> bool:
    try:
        return await count(database) == 0
    except StorageUnavailable:
        return False  # a busy machine may take longer than the test gives the server


@pytest.mark.ci
async def test_a_server_that_stops_answering_is_an_outage(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A network that drops all packets is an outage, and over when it ends."""
    monkeypatch.setattr("flowactions_plugin.storage.urls.CONNECT_SECONDS", 1)
    door = Door(postgres_url)
    async with door.url() as through, a_database(through, statement_seconds=1) as database:
        await until(partial(answers, database))
        door.is_open = False
        for _ in range(2):
            with pytest.raises(StorageUnavailable):
                async with within(5):
                    await count(database)
        door.is_open = True
        await until(partial(answers, database))


@pytest.mark.ci
async def test_waiting_for_sqlites_lock_does_not_block_the_event_loop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor does the garbage collection of a cursor that an earlier, failed wait left."""
    monkeypatch.setattr("flowactions_plugin.storage.sqlite.WAIT_SECONDS", 2.0)
    path = tmp_path / "f.db"
    turns = 0

    async def watch() -> None:
        nonlocal turns
        while True:
            await asyncio.sleep(0.01)
            gc.collect()
            turns += 1

    async with a_database(f"sqlite:///{path}") as database, AsyncExitStack() as stack:
        assert await count(database) == 0
        # What earlier tests have left is not collected, which would take as long as a turn may.
        gc.freeze()
        stack.callback(gc.unfreeze)
        watching = asyncio.create_task(watch())
        with closing(sqlite3.connect(path)) as other:
            other.execute("BEGIN IMMEDIATE")
            for _ in range(2):
                before = turns
                with pytest.raises(StorageUnavailable, match="locked"):
                    async with database.write():
                        pass
                assert turns - before > 2
        watching.cancel()
        async with database.write() as connection:
            await connection.execute(text(ROW.format("a")))
        assert await count(database) == 1


async def test_in_transaction_rolls_back_on_error_and_releases_the_lock_on_cancellation(
    database: Database,
) -> None:
    """Failed work stores nothing; after a cancellation the next caller proceeds."""

    def fail(connection: Connection) -> None:
        connection.execute(text(ROW.format("a")))
        raise LookupError

    if database.dialect == "sqlite":  # on PostgreSQL each statement is by itself
        with pytest.raises(LookupError):
            await database.in_transaction(fail)
        assert await count(database) == 0
    task = asyncio.create_task(
        database.in_transaction(lambda connection: connection.execute(text(ROW.format("b"))))
    )
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    task.cancel()
    await asyncio.wait({task})
    await database.in_transaction(lambda connection: connection.execute(text(ROW.format("c"))))
    assert await count(database) in {1, 2}


async def test_a_cancelled_caller_waits_until_the_connection_is_closed(
    sqlite_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SQLAlchemy would close a connection that is being closed, and the first closing would wait for ever.

    Whoever ends the event loop cancels all tasks and waits for them: that one, too.
    """
    begun = asyncio.Event()
    close = aiosqlite.Connection.close

    async def closes(connection: aiosqlite.Connection) -> None:
        begun.set()
        await asyncio.sleep(0.01)
        await close(connection)

    async def fail(database: Database) -> None:
        async with database.read() as connection:
            await connection.execute(text("SELECT * FROM no_such_table"))

    async with a_database(sqlite_url) as opened:
        monkeypatch.setattr(aiosqlite.Connection, "close", closes)
        before = asyncio.all_tasks()
        failing = asyncio.create_task(fail(opened))
        await begun.wait()
        failing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await failing
        assert asyncio.all_tasks() == before


@pytest.mark.parametrize("how", ["cancelled", "failed", "failed in the thread"])
async def test_a_statement_that_was_cut_off_keeps_no_lock(
    sqlite_url: str, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    """Its rows are not read any more, and its cursor may exist until the process ends."""
    reading, cursors = asyncio.Event(), list[object]()
    several = text(ROW.format("a") + ", ('b', 1) RETURNING id")

    async def never_read(cursor: aiosqlite.Cursor) -> None:
        cursors.append(cursor._cursor)
        reading.set()
        if how == "failed":
            raise sqlite3.OperationalError("disk I/O error")
        await asyncio.Event().wait()

    def fail(connection: Connection) -> None:
        driver: Any = connection.connection.driver_connection
        cursors.append(driver.execute(str(several)))
        connection.execute(text("SELECT * FROM no_such_table"))

    async def write(database: Database) -> None:
        if how == "failed in the thread":
            await database.in_transaction(fail)
        async with database.write() as connection:
            await connection.execute(several)

    async with a_database(sqlite_url) as opened:
        with monkeypatch.context() as patched:
            patched.setattr(aiosqlite.Cursor, "fetchall", never_read)
            writing = asyncio.create_task(write(opened))
            if how == "cancelled":
                await reading.wait()
                writing.cancel()
            (ended,) = await asyncio.gather(writing, return_exceptions=True)
        assert isinstance(ended, asyncio.CancelledError if how == "cancelled" else StorageUnavailable)
        assert len(cursors) == 1
        with closing(sqlite3.connect(str(make_url(sqlite_url).database), timeout=0)) as other:
            other.execute("BEGIN IMMEDIATE")
            other.rollback()
        assert await count(opened) == 0


async def test_a_driver_that_cannot_listen_raises_an_outage(sqlite_url: str) -> None:
    """The worker then polls."""
    async with a_database(sqlite_url) as opened:
        with pytest.raises(StorageUnavailable, match="cannot listen"):
            await opened.listen("flowactions", lambda _payload: None)


@asynccontextmanager
async def watched(queue: Queue) -> AsyncIterator[list[None]]:
    """Watch the outbox of an SQLite file; yields a list that gets an item for each call."""
    calls: list[None] = []
    watching = asyncio.create_task(queue.database.watch_inserts(lambda: calls.append(None)))
    try:
        yield calls
    finally:
        watching.cancel()
        await asyncio.wait({watching})


async def test_new_rows_of_an_sqlite_file_are_noticed(sqlite_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Once for what is due and nobody has; not for what its enqueue claims, nor for changes of rows."""
    looks, usual = list[float](), asyncio.sleep

    async def sleep(seconds: float) -> None:
        looks.extend({seconds} & {sqlite.WATCH_SECONDS})
        await usual(seconds)

    monkeypatch.setattr(asyncio, "sleep", sleep)
    async with a_database(sqlite_url) as opened:
        queue = Queue(opened)
        async with watched(queue) as calls:
            for number in (1, 2):
                row_id = await queue.put()
                await until(lambda number=number: len(calls) == number)  # type: ignore[misc]
            await queue.run("UPDATE flowactions_outbox SET attempts = 1")
            await queue.run(COPIED.format(row_id))
            before = len(looks)
            await until(lambda: len(looks) >= before + 2)
            assert len(calls) == 2
            await queue.put()
            await until(lambda: len(calls) == 3)


async def test_looks_are_seldom_when_no_rows_came_lately(
    sqlite_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And frequent for a while after some came."""
    often, seldom, usual = 0.0021, 0.0042, asyncio.sleep
    waited: list[float] = []

    async def sleep(seconds: float) -> None:
        waited.extend({seconds} & {often, seldom})
        await usual(seconds)

    monkeypatch.setattr(asyncio, "sleep", sleep)
    for name, value in (("WATCH", often), ("IDLE_WATCH", seldom), ("RECENT", 0.2)):
        monkeypatch.setattr(sqlite, f"{name}_SECONDS", value)
    async with a_database(sqlite_url) as opened:
        queue = Queue(opened)
        async with watched(queue) as calls:
            await until(lambda: seldom in waited)
            assert often not in waited
            await queue.put()
            await until(lambda: calls and often in waited)
            await queue.run("UPDATE flowactions_outbox SET attempts = 1")
            await until(lambda: waited[-1] == seldom)


async def test_a_file_that_is_locked_is_watched_on(tmp_path: Path) -> None:
    """Where others lock it wholly, as in the journal mode of a host's own, nothing is seen for so long."""
    path, calls = tmp_path / "outbox.db", list[None]()
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("CREATE TABLE flowactions_outbox (claimed_by, status)")
        watching = asyncio.create_task(watch_inserts(path, lambda: calls.append(None)))
        for number in (1, 2):
            other.execute("BEGIN EXCLUSIVE")
            other.execute("INSERT INTO flowactions_outbox VALUES (NULL, 'pending')")
            await asyncio.sleep(0.1)
            assert len(calls) == number - 1
            other.execute("COMMIT")
            await until(lambda number=number: len(calls) == number)  # type: ignore[misc]
        watching.cancel()
        await asyncio.wait({watching})


async def test_a_file_that_cannot_be_watched_is_told(sqlite_url: str, tmp_path: Path) -> None:
    """Whoever watches looks for due rows now and then all the same."""
    async with a_database(sqlite_url) as opened:
        opened.file = tmp_path / "missing" / "x.db"
        with pytest.raises(StorageUnavailable, match="cannot be watched"):
            await opened.watch_inserts(lambda: None)


async def test_a_thread_that_cannot_start_is_an_outage_and_leaves_no_work(
    sqlite_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a caller was told to have failed is not written later."""

    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", refuse)
        with pytest.raises(StorageUnavailable, match="did not start: can't start new thread"):
            SQLiteThread(make_url(sqlite_url))
    thread = SQLiteThread(make_url(sqlite_url))
    monkeypatch.setattr(threading.Thread, "start", refuse)
    try:
        assert await thread.run(lambda connection: connection.execute(text("SELECT 1")).scalar_one(), None) == 1
    finally:
        thread.close()


@pytest.mark.parametrize("use", ["read", "write", "thread"])
async def test_the_file_is_closed_although_it_was_in_use_when_the_database_was_closed(
    sqlite_url: str, use: str
) -> None:
    """The last connection that is closed removes the log of the file."""
    log = Path(f"{make_url(sqlite_url).database}-wal")
    begun, may_end = threading.Event(), threading.Event()

    def work(connection: Connection) -> None:
        begun.set()
        may_end.wait(SAFETY_SECONDS)

    async with AsyncExitStack() as stack:
        async with a_database(sqlite_url) as opened:
            if use == "thread":
                assert opened._engines.thread is not None
                pool = opened._engines.thread.engine.pool  # would be collected as garbage, with what it keeps
                writing = asyncio.create_task(opened.in_transaction(work))
                await until(begun.is_set)
            else:
                connection = await stack.enter_async_context(opened.read() if use == "read" else opened.write())
                pool = connection.sync_engine.pool
        assert log.exists()
        may_end.set()
    if use == "thread":
        await writing
    await until(lambda: not log.exists())
    del pool


async def test_who_waits_to_write_while_the_database_is_closed_is_told_so(sqlite_url: str) -> None:
    """As who comes after that."""

    def work(connection: Connection) -> None:
        connection.execute(text(ROW.format("a")))

    async with AsyncExitStack() as stack, a_database(sqlite_url) as opened:
        await stack.enter_async_context(opened.transactions.turn(Deadline()))
        waiting = asyncio.create_task(opened.in_transaction(work))
        await until(lambda: opened.transactions._writer._waiters)
    for each in (waiting, opened.in_transaction(work)):
        with pytest.raises(StorageUnavailable, match="not open"):
            await each


async def test_the_thread_replaces_a_connection_after_an_error(sqlite_url: str) -> None:
    """A statement of it may not have ended."""
    used: list[object] = []

    def work(connection: Connection) -> None:
        used.append(connection.connection.driver_connection)
        if len(used) == 2:
            connection.execute(text("SELECT * FROM no_such_table"))

    async with a_database(sqlite_url) as opened:
        await opened.in_transaction(work)
        with pytest.raises(StorageUnavailable):
            await opened.in_transaction(work)
        await opened.in_transaction(work)
    assert used[0] is used[1]
    assert used[2] is not used[1]


async def test_a_close_beside_a_forced_stop_ends(sqlite_url: str) -> None:
    """SQLAlchemy stops the connection of a cancelled caller so: the event loop's end must not wait for the close for ever."""
    async with a_database(sqlite_url) as opened, opened.read() as connection:
        driver = cast("Any", (await connection.get_raw_connection()).driver_connection)
        if not hasattr(driver, "stop"):
            pytest.skip("this release of aiosqlite has no forced stop, so SQLAlchemy waits for the close")
        busy = asyncio.create_task(driver.execute("SELECT 1"))
        closing_it = asyncio.create_task(driver.close())
        await asyncio.sleep(0)
        driver.stop()
        closing_it.cancel()
        await until(closing_it.done)
        await until(busy.done)
        with suppress(Exception):
            busy.result()


@pytest.mark.parametrize("pooled", [False, True])
async def test_nothing_is_compiled_on_own_connections(postgres_url: str, pooled: bool) -> None:
    """JIT is off, by a statement; but not behind a pooler in transaction mode, which would have it off for others."""
    url = make_url(postgres_url)
    if pooled:
        url = url.update_query_dict({"statement_cache_size": "0", "prepared_statement_cache_size": "0"})
    given = url.render_as_string(hide_password=False)
    async with a_database(given) as database, AsyncExitStack() as stack:
        own = [await stack.enter_async_context(database.read()) for _ in range(3)]
        own.append(await stack.enter_async_context(database._engines.autocommit()))
        query = text("SELECT source, setting FROM pg_settings WHERE name = 'jit'")
        found = {tuple((await each.execute(query)).one()) for each in own}
        assert found == {("session", "off")} or (pooled and {source for source, _ in found} == {"default"})


def test_a_new_file_that_others_keep_locked_is_given_up_in_time(tmp_path: Path) -> None:
    """Its journal mode is changed once nobody has it locked."""
    url = make_url(f"sqlite:///{tmp_path / 'f.db'}")
    with closing(sqlite3.connect(tmp_path / "f.db", isolation_level=None, check_same_thread=False)) as other:
        other.execute("CREATE TABLE t (i)")
        other.execute("BEGIN EXCLUSIVE")
        freed = threading.Timer(SAFETY_SECONDS, other.rollback)
        freed.start()
        with pytest.raises(sqlite3.OperationalError, match="locked"):
            switch_to_wal(url, Deadline(0.1))
        freed.cancel()
        other.rollback()
    switch_to_wal(url, Deadline())
    with closing(sqlite3.connect(tmp_path / "f.db")) as later:
        assert later.execute("PRAGMA journal_mode").fetchone() == ("wal",)
