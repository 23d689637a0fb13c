"""The purge of an organization: nothing of it is left, and nothing of another is touched."""

from __future__ import annotations

import asyncio
from functools import partial
from types import SimpleNamespace
from typing import Any

import httpx
import msgspec
import pytest
from sqlalchemy import Table, insert, select, text

from flowactions_hookspecs import FlowActions, Node
from flowactions_plugin.egress.attempt import Outcome
from flowactions_plugin.errors import ActionInvalid, StorageUnavailable
from flowactions_plugin.operations import purge as purging
from flowactions_plugin.operations.changes import WITHDRAWN_SECONDS
from flowactions_plugin.operations.purge import Purge
from flowactions_plugin.operators.scope import Actor
from flowactions_plugin.queue.rules import HELD_SECONDS
from flowactions_plugin.settings.model import read_settings
from flowactions_plugin.storage.database import Database
from flowactions_plugin.storage.schema import attempts, metadata, outbox
from flowactions_plugin.watch.monitor import Monitor
from tests.outages import waiting_for_locks
from tests.pausing import rows_of
from tests.plugin.bulk.holding import a_worker_that_holds, look_again
from tests.plugin.health.test_status import completion
from tests.plugin.stored import a_row
from tests.queueing import Queue, an_executor
from tests.support import SmallHost, a_walk, development
from tests.waiting import until

OPERATOR = Actor("root", "Op", "command")
WITHOUT = {
    "flowactions_attempts",
    "flowactions_inbound_events",
    "flowactions_inbound_requests",
    "flowactions_installation",
    "flowactions_workers",
    "flowactions_alembic",
}
"""Tables that name no organization: attempts belong to deliveries, the others to nobody."""


async def fill(queue: Queue, organization_id: str, rows: int) -> None:
    """Write so many rows of an organization into each table that names one, and an attempt for each delivery."""
    made: list[dict[str, Any]] = []
    async with queue.database.write() as connection:
        for table in metadata.sorted_tables:
            if "organization_id" not in table.c:
                assert table.name in WITHOUT
                continue
            count = 1 if table.name == "flowactions_chat_connections" else rows
            written = [_values(table, organization_id, number) for number in range(count)]
            await connection.execute(insert(table), written)
            if table is outbox:
                made = [
                    {"delivery_id": each["id"], "number": 1, "started_at": 1, "duration_ms": 1}
                    for each in written
                ]
        await connection.execute(insert(attempts), made)


def _values(table: Table, organization_id: str, number: int) -> dict[str, Any]:
    known: dict[str, Any] = {
        "organization_id": organization_id,
        "status": "dead" if table is outbox else "active",
    }
    if table.name == "flowactions_deferred":
        known["id"] = number + 1000 * len(organization_id)
    return a_row(table, f"{organization_id}-{number}", known, number=number)


async def kept(queue: Queue) -> dict[str, list[Any]]:
    async with queue.database.read() as connection:
        return {
            table.name: list((await connection.execute(select(table).order_by(*table.primary_key))).all())
            for table in metadata.sorted_tables
        }


async def test_nothing_of_an_organization_is_left(queue: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    """In no table, by batches; others keep everything, and the audit says who did it, with numbers only."""
    monkeypatch.setattr(purging, "BATCH", 2)
    monkeypatch.setattr(purging, "asyncio", None)  # no worker has claimed any of it: nothing is waited for
    await fill(queue, "globex", 3)
    others = await kept(queue)
    await fill(queue, "acme", 5)
    counted = await Purge(queue.database, "acme").count()
    assert len(counted) == 14
    assert counted == dict.fromkeys(counted, 5) | {"chat_connection": 1, "alerts": 0}  # tests/plugin/alerts
    disconnected: list[str] = []

    async def disconnect(organization_id: str) -> None:
        from flowactions_plugin.chat.store import ConnectionStore  # noqa: PLC0415

        disconnected.append(organization_id)
        await ConnectionStore(queue.database).pop(organization_id)

    removed = await Purge(queue.database, "acme").run(OPERATOR, disconnect)
    assert removed == counted
    assert disconnected == ["acme"]
    left = await kept(queue)
    (line,) = [row for row in left["flowactions_audit"] if row.organization_id == "acme"]
    left["flowactions_audit"].remove(line)
    assert left == others
    assert (line.action, line.actor_id, line.number) == ("purge", "root", 61)
    assert set(msgspec.json.decode(line.before).values()) == {0, 1, 5}
    # Again, there is nothing, and both lines stay.
    again = await Purge(queue.database, "acme").run(OPERATOR, disconnect)
    assert again == dict.fromkeys(counted, 0)
    assert disconnected == ["acme"]
    assert len((await kept(queue))["flowactions_audit"]) == 5


async def test_a_connection_goes_even_when_chat_is_not_configured(queue: Queue) -> None:
    """Its token cannot be revoked then."""
    await fill(queue, "acme", 1)
    removed = await Purge(queue.database, "acme").run(OPERATOR)
    assert removed["chat_connection"] == 1
    assert not (await kept(queue))["flowactions_chat_connections"]


@pytest.mark.parametrize("name", ["", "a\0b"])
async def test_an_organization_has_to_be_named(queue: Queue, name: str) -> None:
    """No name stands for all of them."""
    with pytest.raises(ActionInvalid):
        await Purge(queue.database, name).run(OPERATOR)


class SlowReceiver(httpx.AsyncBaseTransport):
    """Answers 500 at once, and the requests to /held when it may."""

    def __init__(self) -> None:
        self.held = 0
        self.may_answer = asyncio.Event()

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        if request.url.path == "/held":
            self.held += 1
            await self.may_answer.wait()
            return httpx.Response(200)
        return httpx.Response(500)


@pytest.mark.parametrize("delivery", ["continuous", "scheduled"])
async def test_nothing_comes_back_from_a_worker_that_delivers(database_url: str, delivery: str) -> None:
    """Neither what it has counted, nor what is on its way, of which the host is told once; others keep their statistics."""
    receiver = SlowReceiver()
    settings = development(database_url, FLOWACTIONS_DELIVERY=delivery)
    host = SmallHost(settings, transport=receiver)
    actions = FlowActions.load(host)

    async def reach(path: str, organization_id: str = "acme") -> None:
        config = {"webhookUrl": f"http://127.0.0.1:9/{path}", "webhookBody": "{}"}
        node = Node(id="n", type="webhook", config=config)
        assert (await actions.reach(a_walk(organization_id=organization_id), node)).status == "queued"

    async with Database(read_settings(settings).database_url) as elsewhere:
        other = Queue(elsewhere)
        async with actions.lifespan():
            for organization_id in ("acme", "globex"):
                await reach("answered", organization_id)
            await reach("held")
            await until(lambda: receiver.held == 1 and len(host.finished) == 2)
            removed = await Purge(elsewhere, "acme").run(OPERATOR)
            assert removed["deliveries"] == 2
            receiver.may_answer.set()
            (gone,) = await until(lambda: [each for each in host.finished if each.url.endswith("held")])
            assert (gone.status, gone.error, gone.status_code, gone.attempts) == ("dead", "purged", 200, 1)
        # Its last statistics were written when it stopped.
        left = await kept(other)
    assert len(host.finished) == 3
    mine = [
        (name, row)
        for name, rows in left.items()
        for row in rows
        if getattr(row, "organization_id", None) == "acme"
    ]
    assert [(name, row.action) for name, row in mine] == [("flowactions_audit", "purge")]
    assert {row.delivery_id for row in left["flowactions_attempts"]} == {
        row.id for row in left["flowactions_outbox"]
    }
    assert "globex" in {row.organization_id for row in left["flowactions_statistics"]}
    assert [row.organization_id for row in left["flowactions_destinations"]] == ["globex"]


@pytest.mark.parametrize("waits_for", ["a slot", "its secret"])
async def test_a_worker_begins_nothing_of_it_after_the_purge(
    queue: Queue, waits_for: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it has claimed and not begun, it drops while the purge waits for it; what it has begun, it finishes."""
    monkeypatch.setattr(
        "flowactions_plugin.queue.executor.HELD_SECONDS", 0.0
    )  # every wait for a secret is a long one
    monkeypatch.setattr("flowactions_plugin.queue.host_calls.HOST_SECONDS", 300.0)
    sent, going_on, waited = list[str](), asyncio.Event(), list[float]()

    async def answer(request: httpx.Request) -> httpx.Response:
        sent.append(request.url.path)
        await going_on.wait()
        return httpx.Response(200)

    async def secret(_origin: Any) -> None:
        if waits_for == "its secret":
            await going_on.wait()

    async def wait(seconds: float) -> None:
        waited.append(seconds)
        await look_again(claims)

    executor = an_executor(queue, answer, signing_secret=secret)
    for _ in range(10):
        await queue.put()
    claims = await a_worker_that_holds(queue, executor, 10)
    begun = 2 if waits_for == "a slot" else 0
    await until(lambda: len(sent) == begun and len(claims._tasks) == 2, seconds=300)
    assert claims._lanes.total.waiting == 2
    with monkeypatch.context() as patched:
        patched.setattr("flowactions_plugin.operations.purge.asyncio", SimpleNamespace(sleep=wait))
        await Purge(queue.database, "acme").run(OPERATOR)
    assert waited == [WITHDRAWN_SECONDS]
    assert WITHDRAWN_SECONDS >= 2 * HELD_SECONDS
    assert claims._lanes.total.waiting == 0
    going_on.set()
    await claims.quiesce()
    await executor.completer.flush()
    assert len(sent) == begun


async def test_no_table_has_its_id_or_its_destinations(queue: Queue) -> None:
    """In any column, also what workers limit, and when the worker writes that again; but for the lines of the audit."""
    place = "http://acme-only.example:80"
    executor = an_executor(queue, lambda _request: httpx.Response(200))
    executor.load.limits.record(
        1, ("acme", place), Outcome(0, 0, error="timed out after 10 s while connecting")
    )
    beat = partial(Monitor(queue.database, "continuous", 1, None)._beat, executor.load)

    async def found() -> set[str]:
        return {
            name
            for name, rows in (await kept(queue)).items()
            for row in rows
            for value in row
            if ("acme" in str(value) or place in str(value)) and getattr(row, "action", None) != "purge"
        }

    await beat()
    assert [*executor.load.limits.limited()["acme"]] == [place]
    await fill(queue, "acme", 2)
    await queue.put(url=f"{place}/hook", destination=place)
    assert "flowactions_workers" in await found()
    await Purge(queue.database, "acme").run(OPERATOR)
    assert not await found()
    for _ in range(2):
        await beat()
        assert not await found()
    assert executor.load.limits.limited() == {}
    # One that limits nothing forgets once, too.
    await Purge(queue.database, "acme").run(OPERATOR)
    await beat()
    assert [row.limited for row in (await kept(queue))["flowactions_workers"]] == [None]


async def test_what_a_worker_sent_when_it_was_purged_leaves_no_limit(queue: Queue) -> None:
    """It ended after the purge: the worker learns of the purge when it writes the outcome."""
    answering = asyncio.Event()

    async def answer(request: httpx.Request) -> httpx.Response:
        await answering.wait()
        return httpx.Response(500)

    await queue.put()
    executor = an_executor(queue, answer)
    (claim,) = executor.take(await queue.store.claim(1))
    sending = asyncio.create_task(executor.execute(claim))
    await queue.run("DELETE FROM flowactions_outbox")
    await Purge(queue.database, "acme").begin(OPERATOR)
    answering.set()
    await sending
    executor.load.limits.record(
        claim.lane, ("acme", claim.destination), Outcome(0, 0, error="timed out after 10 s")
    )
    assert executor.load.limits.limited() != {}
    await executor.completer.flush()
    assert executor.load.limits.limited() == {}


async def test_statistics_that_could_not_be_written_are_dropped_all_the_same(queue: Queue) -> None:
    """What was counted long before the purge, and is written long after it; what is counted later is kept."""
    now = queue.database.clock()
    monitor = Monitor(queue.database, "scheduled", 1, None)
    monitor._clock = lambda: now - 600
    monitor.record([completion(), completion(organization_id="globex")])
    await Purge(queue.database, "acme").run(OPERATOR)
    await queue.run("ALTER TABLE flowactions_statistics RENAME TO away")
    with pytest.raises(StorageUnavailable):
        await monitor.write()
    await queue.run("ALTER TABLE away RENAME TO flowactions_statistics")
    await monitor.write()
    organizations = "DISTINCT organization_id FROM flowactions_statistics"
    assert {*await rows_of(queue, organizations)} == {("",), ("globex",)}
    monitor._clock = lambda: now + 600
    monitor.record([completion()])
    await monitor.write()
    assert {*await rows_of(queue, organizations)} == {("",), ("acme",), ("globex",)}


async def test_statistics_that_are_being_written_are_waited_for(postgres_url: str) -> None:
    """A purge that begins meanwhile removes them: it does not pass them by because it cannot see them."""
    url = read_settings({"FLOWACTIONS_DATABASE_URL": postgres_url}).database_url
    async with Database(url) as database, Database(url) as elsewhere:
        monitor = Monitor(database, "scheduled", 1, None)
        monitor.record([completion()])
        waiting = text("SELECT 1 FROM pg_locks WHERE NOT granted AND relation = CAST(:name AS regclass)")

        async def waits_for(name: str) -> bool:
            async with database.read() as connection:
                return bool((await connection.execute(waiting, {"name": name})).all())

        async with elsewhere.write() as blocking:
            await blocking.execute(text("LOCK TABLE flowactions_destinations IN SHARE MODE"))
            writing = asyncio.create_task(monitor.write())
            await until(lambda: waits_for("flowactions_destinations"))
            purging = asyncio.create_task(Purge(database, "acme").run(OPERATOR))
            await until(lambda: purging.done() or waits_for("flowactions_statistics"))
        await asyncio.gather(writing, purging)
        left = await kept(Queue(database))
    assert {row.organization_id for row in left["flowactions_statistics"]} == {""}
    assert left["flowactions_destinations"] == []


async def test_what_somebody_else_removes_meanwhile_is_not_the_end(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Retention may delete a row of a batch before the purge does. The rows after it are deleted all the same."""
    monkeypatch.setattr(purging, "BATCH", 2)
    url = read_settings({"FLOWACTIONS_DATABASE_URL": postgres_url}).database_url
    async with Database(url) as database:
        queue = Queue(database)
        await fill(queue, "acme", 5)
        async with database.write() as connection:
            oldest = "(SELECT min(idempotency_key) FROM flowactions_enqueue_keys)"
            await connection.execute(
                text(f"DELETE FROM flowactions_enqueue_keys WHERE idempotency_key = {oldest}")  # noqa: S608
            )
            removing = asyncio.create_task(Purge(database, "acme").remove())
            await until(lambda: waiting_for_locks(database))
        assert (await removing)["idempotency_keys"] == 4
        assert (await kept(queue))["flowactions_enqueue_keys"] == []
