"""Enqueues that wait at the same time share a transaction, and each caller gets the result of its own row."""

from __future__ import annotations

import asyncio
import sqlite3
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, closing
from functools import partial
from typing import Any, TypeVar

import asyncpg
import pytest
from sqlalchemy import event, text
from sqlalchemy.engine import Connection
from sqlalchemy.exc import IntegrityError
from sqlalchemy.ext.asyncio import create_async_engine

from flowactions_hookspecs import FlowActions, Node, Receipt
from flowactions_plugin.clock import new_id
from flowactions_plugin.egress.guard import EgressGuard
from flowactions_plugin.errors import StorageUnavailable
from flowactions_plugin.queue.enqueue import Outbox, row_of
from flowactions_plugin.queue.items import Item, write_items
from flowactions_plugin.queue.keys import FirstUse, KeyUse
from flowactions_plugin.queue.lanes import Due
from flowactions_plugin.queue.notifier import CHANNEL
from flowactions_plugin.queue.prepared import PreparedDelivery
from flowactions_plugin.settings.model import read_settings
from flowactions_plugin.storage.database import Database
from flowactions_plugin.storage.sqlite import Deadline
from tests.outages import Outage
from tests.queueing import OutboxStore, a_delivery
from tests.support import SmallHost, a_walk, development
from tests.waiting import until

T = TypeVar("T")


class Counted(Database):
    """Counts the plugin's short transactions."""

    count = 0

    async def in_transaction(
        self, work: Callable[[Connection], T], deadline: Deadline | None = None, **options: Any
    ) -> T:
        self.count += 1
        return await super().in_transaction(work, deadline, **options)


class Callers:
    """Callers of one process that enqueue at the same time, each one row."""

    def __init__(self, database: Database) -> None:
        self.store = OutboxStore(database)
        self.ids: list[str] = []

    def start(self, count: int, *, bad: Sequence[int] = (), body: bytes = b"{}") -> list[asyncio.Task[Any]]:
        """Start so many; the rows of the bad ones lack their event type."""
        calls = []
        for number in range(count):
            row_id = new_id(1_700_000_000)
            self.ids.append(row_id)
            changes: dict[str, Any] = {"event_type": None} if number in bad else {}
            calls.append(
                asyncio.create_task(self.store.enqueue(a_delivery(id=row_id, body=body, **changes), None))
            )
        return calls


async def results(calls: Sequence[asyncio.Task[Any]]) -> list[Any]:
    return await asyncio.gather(*calls, return_exceptions=True)


@asynccontextmanager
async def a_database(url: str, **options: Any) -> AsyncIterator[Counted]:
    async with Counted(read_settings({"FLOWACTIONS_DATABASE_URL": url}).database_url, **options) as database:
        yield database


async def written(database: Database) -> list[str]:
    """Give the ids of all rows, sorted."""
    async with database.read() as connection:
        return list((await connection.execute(text("SELECT id FROM flowactions_outbox ORDER BY id"))).scalars())


@asynccontextmanager
async def nothing_can_be_written(url: str) -> AsyncIterator[None]:
    """Hold the lock that every enqueue needs."""
    if url.startswith("sqlite"):
        path = url.removeprefix("sqlite:///")
        with closing(sqlite3.connect(path, isolation_level=None)) as connection:
            connection.execute("BEGIN IMMEDIATE")
            yield
        return
    other = await asyncpg.connect(url)
    try:
        async with other.transaction():
            await other.execute("LOCK TABLE flowactions_outbox IN SHARE MODE")
            yield
    finally:
        await other.close()


async def test_many_callers_share_a_transaction(database_url: str) -> None:
    """While one transaction is under way, all who come wait for the next; none returns before its commit."""
    async with a_database(database_url) as database:
        callers = Callers(database)
        async with nothing_can_be_written(database_url):
            calls = callers.start(64)
            await until(lambda: database.count == 2)
            assert not any(call.done() for call in calls)
        assert set(await results(calls)) == {None}
        assert database.count == 2
        assert await written(database) == sorted(callers.ids)


async def test_a_row_that_is_written_again_is_the_same_row(database_url: str) -> None:
    """As when the answer to a group's commit was lost: one by one, nothing is there twice, and nobody gets an error."""
    async with a_database(database_url) as database:
        store = OutboxStore(database)
        twice = a_delivery()
        await asyncio.gather(*(store.enqueue(twice, None) for _ in range(8)))
        assert await written(database) == [twice.id]


@pytest.mark.parametrize("shares_engine", [False, True])
async def test_without_the_database_every_caller_gets_an_error(outage: Outage, *, shares_engine: bool) -> None:
    """A row is there exactly when its caller got no error; when the database is back, so are enqueues."""
    full = read_settings({"FLOWACTIONS_DATABASE_URL": outage.url}).database_url
    engine = outage.engine() or create_async_engine(full, pool_pre_ping=True)
    async with a_database(outage.url, engine=engine if shares_engine else None) as database:
        thread = database._engines.thread
        if thread is not None and outage.kind in {"disk full", "read-only file"}:
            outage.take_from(thread.engine)
        callers = Callers(database)
        assert set(await results(callers.start(8))) == {None}
        async with outage.lasting():
            found = await results(callers.start(32, body=b"x" * 100_000))
            assert {type(each) for each in found} == {StorageUnavailable}
        known = callers.ids[:8]
        # The first connections may have been cut.
        while (await results(callers.start(1)))[0] is not None:
            pass
        known.append(callers.ids[-1])
        assert set(await results(callers.start(8))) == {None}
        assert await written(database) == sorted(known + callers.ids[-8:])
    await engine.dispose()


async def test_a_connection_that_is_cut_is_one_callers_fault_at_most(postgres_url: str) -> None:
    """When the group's connection is lost, its rows are written over others."""
    async with a_database(postgres_url) as database:
        callers = Callers(database)
        async with nothing_can_be_written(postgres_url):
            calls = callers.start(16)
            await until(lambda: database.count == 2)
            other = await asyncpg.connect(postgres_url)
            cut = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE wait_event_type = 'Lock'"
            cut += " AND datname = current_database()"
            await until(lambda: _waits(other, 2))
            await other.execute(cut)
            await other.close()
            await until(lambda: database.count > 2)
        found = await results(calls)
        assert [type(each) for each in found] == [StorageUnavailable, *[type(None)] * 15]
        assert await written(database) == sorted(callers.ids[1:])


async def _waits(connection: Any, count: int) -> bool:
    query = (
        "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()"
    )
    return bool(await connection.fetchval(query) == count)


async def test_a_cancelled_caller_ends_at_once_and_alone(database_url: str) -> None:
    """While its group waits for the lock: the others get their rows. On SQLite, its own is not written."""
    async with a_database(database_url) as database:
        callers = Callers(database)
        async with nothing_can_be_written(database_url):
            calls = callers.start(16)
            await until(lambda: database.count == 2)
            calls[5].cancel()
            assert isinstance((await results(calls[5:6]))[0], asyncio.CancelledError)
        assert set(await results([*calls[:5], *calls[6:]])) == {None}
        rows = set(await written(database))
        assert rows >= set(callers.ids) - {callers.ids[5]}
        if database.dialect == "sqlite":
            assert callers.ids[5] not in rows


async def test_a_hosts_transaction_is_shared_with_nobody(database_url: str) -> None:
    """What a host enqueues in its transaction stays there, and goes with it."""
    engine = create_async_engine(read_settings({"FLOWACTIONS_DATABASE_URL": database_url}).database_url)
    async with a_database(database_url, engine=engine) as database:
        callers = Callers(database)
        joined = a_delivery()
        async with engine.connect() as connection:
            await connection.begin()
            await callers.store.enqueue(joined, connection)
            calls = callers.start(16)
            await until(lambda: database.count >= 1)
            await connection.rollback()
        assert set(await results(calls)) == {None}
        assert await written(database) == sorted(callers.ids)
    await engine.dispose()


async def test_a_closed_database_is_told_to_each(database_url: str) -> None:
    """Nobody waits for ever."""
    async with a_database(database_url) as database:
        callers = Callers(database)
    found = await results(callers.start(16))
    assert {type(each) for each in found} == {StorageUnavailable}


async def test_a_group_is_one_notification(postgres_url: str) -> None:
    """Workers of other processes are notified of a group once."""
    host = SmallHost(
        development(postgres_url, FLOWACTIONS_HOST_WORKER="off", FLOWACTIONS_DELIVERY="continuous")
    )
    actions = FlowActions.load(host)
    node = Node(id="n", type="webhook", config={"webhookUrl": "http://127.0.0.1:9/", "webhookBody": "{}"})
    heard: list[Any] = []
    listener = await asyncpg.connect(postgres_url)
    try:
        await listener.add_listener(CHANNEL, lambda *_: heard.append(1))
        async with actions.lifespan():
            async with nothing_can_be_written(postgres_url):
                calls = [asyncio.create_task(actions.reach(a_walk(), node)) for _ in range(64)]
                await until(lambda: _waits(listener, 2))
            assert {each.status for each in await asyncio.gather(*calls)} == {"queued"}
            await until(lambda: heard)
        # The first caller's, the group's, and one for what came while that was sent.
        assert len(heard) <= 3
    finally:
        await listener.close()


class Keyed:
    """Callers that enqueue with idempotency keys at the same time."""

    def __init__(self, database: Database) -> None:
        self._outbox = Outbox(database, EgressGuard(development=True, resolve=None))

    async def enqueue(self, key: str, **changes: Any) -> Receipt:
        use = KeyUse(self._outbox.keys, "acme", "host", key)
        delivery = a_delivery(id=new_id(1_700_000_000), idempotency_key=key, **changes)
        return await PreparedDelivery(self._outbox, delivery, use).enqueue(None)

    def start(self, keys: Sequence[str], **changes: Any) -> list[asyncio.Task[Receipt]]:
        return [asyncio.create_task(self.enqueue(key, **changes)) for key in keys]


async def test_racing_keys_are_used_once(database_url: str) -> None:
    """Of the callers with one key one enqueues, and the others learn which, also where they share a transaction."""
    async with a_database(database_url) as database, a_database(database_url) as elsewhere:
        async with nothing_can_be_written(database_url):
            names = [f"key-{number % 8}" for number in range(64)]
            calls = Keyed(database).start(names) + Keyed(elsewhere).start(names[::-1])
            await asyncio.sleep(0.3)
            assert not any(call.done() for call in calls)
        receipts = await asyncio.gather(*calls)
        found = list(zip(names + names[::-1], receipts, strict=True))
        first = {key: receipt.delivery_id for key, receipt in found if receipt.status == "queued"}
        assert Counter(receipt.status for receipt in receipts) == {"queued": 8, "duplicate": 120}
        assert all(receipt.delivery_id == first[key] for key, receipt in found)
        assert await written(database) == sorted(map(str, first.values()))


async def test_rates_are_counted_in_the_order_of_keys(database_url: str) -> None:
    """Each counts with a lock: two groups that count the same agents never wait for each other."""
    counted: list[str] = []
    async with a_database(database_url) as database:
        outbox = Outbox(database, EgressGuard(development=True, resolve=None))
        items = [
            Item(
                row_of(a_delivery(id=new_id(1_700_000_000))),
                KeyUse(outbox.keys, "acme", f"api:{agent}", "k"),
                lambda _, agent=agent: counted.append(agent),  # type: ignore[misc]
            )
            for agent in "cab"
        ]
        async with database.write() as connection:
            await connection.run_sync(partial(write_items, database), items)
        assert (counted, len(await written(database))) == (["a", "b", "c"], 3)


async def test_a_key_goes_with_its_row(database_url: str) -> None:
    """A row that cannot be written leaves its key unused, and the others' rows are there."""
    async with a_database(database_url) as database:
        keyed = Keyed(database)
        async with nothing_can_be_written(database_url):
            calls = [*keyed.start(["a", "b"]), *keyed.start(["bad"], event_type=None), *keyed.start(["c"])]
            await asyncio.sleep(0.3)
        found = await asyncio.gather(*calls, return_exceptions=True)
        assert isinstance(found.pop(2), IntegrityError)
        assert [receipt.status for receipt in found if isinstance(receipt, Receipt)] == ["queued"] * 3
        assert (await keyed.enqueue("bad")).status == "queued"
        assert len(await written(database)) == 4


async def test_keys_share_their_statements(database_url: str) -> None:
    """A group has as many statements as one caller, and each row wakes the worker; used keys name their first row."""
    async with a_database(database_url) as database:
        keyed, woken = Keyed(database), list[Due]()
        before = [await keyed.enqueue(key) for key in ("used", "old")]
        async with database.write() as connection:
            await connection.execute(
                text("UPDATE flowactions_enqueue_keys SET created_at = 1 WHERE idempotency_key = 'old'")
            )
        keyed._outbox.on_commit = woken.append
        async with nothing_can_be_written(database_url):
            calls = [*keyed.start(["first"])]
            await asyncio.sleep(0.3)
            statements = counted(database)
            calls += keyed.start(["used", "old", *(f"key-{number}" for number in range(10)), "key-1"])
            await asyncio.sleep(0.05)
        receipts = await asyncio.gather(*calls)
        statuses = [receipt.status for receipt in receipts]
        assert statuses == ["queued", "duplicate", *["queued"] * 11, "duplicate"]
        assert receipts[1].delivery_id == before[0].delivery_id
        assert receipts[-1].delivery_id == receipts[4].delivery_id
        assert receipts[-1].event_id == receipts[4].event_id
        assert len(woken) == 12
        about_keys = [each for each in statements if "flowactions_enqueue_keys" in each]
        assert len(about_keys) <= 4  # of the first caller, and of the group: those that are used were looked up


def counted(database: Database) -> list[str]:
    """Note each statement of a database from now on."""
    statements: list[str] = []

    def note(_connection: Any, _cursor: Any, statement: str, *_: Any) -> None:
        statements.append(statement)

    engine = database._engines.current
    assert engine is not None
    event.listen(engine.sync_engine, "before_cursor_execute", note)
    return statements


async def test_a_key_that_a_host_holds_delays_its_callers_only(postgres_url: str) -> None:
    """A host's open transaction has used one key: callers with other keys do not wait for it."""
    engine = create_async_engine(read_settings({"FLOWACTIONS_DATABASE_URL": postgres_url}).database_url)
    errors: list[str | None] = []
    event.listen(
        engine.sync_engine,
        "handle_error",
        lambda context: errors.append(getattr(context.original_exception, "sqlstate", None)),
    )
    async with a_database(postgres_url, engine=engine) as database:
        keyed = Keyed(database)
        async with engine.connect() as connection:
            await connection.begin()
            keys = keyed._outbox.keys
            async with database.write(connection) as joined:
                use = KeyUse(keys, "acme", "host", "held"), FirstUse("first", "evt_1")
                await joined.run_sync(keys.use_all, [use])
            calls = keyed.start([*"abc", "held", *"def"])
            await asyncio.gather(*calls[:3], *calls[4:])
            assert not calls[3].done()
            assert errors == ["55P03"]  # the group has given up the lock, long before its callers would
            await connection.commit()
        assert (await calls[3]).delivery_id == "first"
    await engine.dispose()
