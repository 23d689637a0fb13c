"""Rows that cannot be sent as they are stored: each ends dead with its defect, and the others go on."""

from __future__ import annotations

import json
import logging
from collections.abc import AsyncIterator
from typing import Any

import httpx
import msgspec
import pytest
from sqlalchemy import event, text
from sqlalchemy.ext.asyncio import create_async_engine

from flowactions_plugin.deliveries.filters import Filter
from flowactions_plugin.deliveries.operator_queries import OperatorQueries
from flowactions_plugin.deliveries.views import detail
from flowactions_plugin.egress.attempt import Outcome
from flowactions_plugin.operators.scope import Scope
from flowactions_plugin.queue.claimed import read_headers, read_origin
from flowactions_plugin.queue.rules import Transition
from flowactions_plugin.queue.worker import Worker
from flowactions_plugin.settings.model import read_settings
from flowactions_plugin.storage.database import Database
from tests.queueing import ORIGIN, Queue, a_schedule
from tests.rings import sampled

INT_MAX = 2**31 - 1
TEXTS = [
    "id",
    "organization_id",
    "agent_id",
    "origin",
    "event_id",
    "event_type",
    "url",
    "destination",
    "method",
    "headers",
]
NOT_UTF8 = "CAST(x'61ff62' AS TEXT)"


@pytest.fixture(params=["own", "shared"])
async def embedded(request: pytest.FixtureRequest, tmp_path: Any) -> AsyncIterator[Queue]:
    """A queue on SQLite, by the plugin's own engine and by the host's."""
    url = read_settings({"FLOWACTIONS_DATABASE_URL": f"sqlite:///{tmp_path / 'f.db'}"}).database_url
    shared = create_async_engine(url) if request.param == "shared" else None
    async with Database(url, shared) as database:
        yield Queue(database)
    if shared is not None:
        await shared.dispose()


async def states(queue: Queue) -> dict[Any, tuple[str, str]]:
    """Give state and reason of each row, by SQLite's row number or by id."""
    key = "rowid" if queue.database.dialect == "sqlite" else "id"
    query = f"SELECT {key}, status, coalesce(last_error, '') FROM flowactions_outbox"  # noqa: S608
    async with queue.database.read() as connection:
        return {row[0]: (row[1], row[2]) for row in (await connection.execute(text(query))).all()}


def ok(request: httpx.Request) -> httpx.Response:
    return httpx.Response(200)


@pytest.mark.parametrize("per_destination", [None, 10])
@sampled("column", TEXTS, size=3)
async def test_text_that_is_no_utf_8_ends_its_row_and_no_other(
    embedded: Queue, column: str, per_destination: int | None, caplog: pytest.LogCaptureFixture
) -> None:
    """In whatever column of SQLite: that row is dead and one line says so, its neighbours are delivered."""
    broken = await embedded.put()
    for _ in range(3):
        await embedded.put()
    await embedded.run(f"UPDATE flowactions_outbox SET {column} = {NOT_UTF8} WHERE id = '{broken}'")  # noqa: S608
    await a_schedule(embedded, ok, per_destination=per_destination).tick()
    found = await states(embedded)
    status, reason = found.pop(1)
    assert (status, f"cannot be read: {column} is not text" in reason) == ("dead", True)
    assert set(found.values()) == {("delivered", "")}
    said = [record for record in caplog.records if "is dead" in record.getMessage()]
    assert [record.levelno for record in said] == [logging.WARNING]


@sampled("value", ["x'00ff'", "'text'", "2.5", "99999999999999", "-1"], size=3)
@sampled(
    "column",
    ["attempts", "earlier_attempts", "max_attempts", "takeovers", "quarantine_rounds", "body", "id"],
    size=3,
)
async def test_any_value_in_any_column_of_sqlite_ends_its_row_only(
    embedded: Queue, column: str, value: str
) -> None:
    """SQLite stores any type anywhere: a row that has the wrong one never keeps the others from being delivered."""
    broken = await embedded.put()
    others = [await embedded.put() for _ in range(2)]
    await embedded.run(f"UPDATE flowactions_outbox SET {column} = {value} WHERE id = '{broken}'")  # noqa: S608
    claims = a_schedule(embedded, ok)
    await claims.tick()
    await Worker(embedded.store, claims._executor, claims)._quarantine()
    for row_id in others:
        assert (await embedded.row(row_id)).status == "delivered"
    status, reason = (await states(embedded))[1]
    if status == "dead":
        assert column in reason
    else:
        assert (column, status) in {("body", "delivered"), ("id", "delivered")}


@sampled("column", ["attempts", "earlier_attempts", "max_attempts", "takeovers", "quarantine_rounds"], size=2)
@pytest.mark.parametrize("value", [INT_MAX, -5])
async def test_a_counter_out_of_bounds_ends_its_row_only(queue: Queue, column: str, value: int) -> None:
    """A counter at the database's limit: no statement fails for the rows beside it."""
    broken = await queue.put()
    others = [await queue.put() for _ in range(3)]
    await queue.run(
        f"UPDATE flowactions_outbox SET claimed_by = 'x', {column} = {value} WHERE id = '{broken}'"  # noqa: S608
    )
    claims = a_schedule(queue, ok)
    await claims.tick()
    await Worker(queue.store, claims._executor, claims)._quarantine()
    assert [(await queue.row(row_id)).status for row_id in others] == ["delivered"] * 3
    row = await queue.row(broken)
    assert row.status == "dead"
    assert column in row.last_error or row.takeovers == 0
    # A replay that counts anew repairs it, and does not fail for the others.
    assert await queue.queries.retry_many("acme", Filter(), reset_attempts=True, limit=10) == 1
    if column != "max_attempts":
        await a_schedule(queue, ok).tick()
        assert (await queue.row(broken)).status == "delivered"


@pytest.mark.parametrize(
    ("column", "value", "said"),
    [
        ("origin", "garbage", "origin"),
        ("origin", "[]", "origin"),
        ("origin", '{"kind": 7}', "origin"),
        ("origin", '{"kind": "flow_node"}', "origin"),
        ("origin", "[" * 100_000, "origin"),
        ("headers", "garbage", "headers"),
        ("headers", '[["a"]]', "headers"),
        ("headers", '[["a b", "c"]]', "headers"),
        ("headers", '[["a", "b\\r\\nc: d"]]', "headers"),
        ("headers", '[["a", "\\ud800"]]', "headers"),
        ("method", "GET / HTTP/1.1", "method"),
    ],
)
async def test_a_corrupt_row_ends_with_its_defect(queue: Queue, column: str, value: str, said: str) -> None:
    """What cannot be read or sent is dead at once, without an attempt, and says what is wrong."""
    broken, healthy = await queue.put(), await queue.put()
    sent: list[httpx.Request] = []
    async with queue.database.write() as connection:
        await connection.execute(
            text(f"UPDATE flowactions_outbox SET {column} = :value WHERE id = :id"),  # noqa: S608
            {"value": value, "id": broken},
        )

    def answer(request: httpx.Request) -> httpx.Response:
        sent.append(request)
        return httpx.Response(200)

    await a_schedule(queue, answer).tick()
    row = await queue.row(broken)
    assert (row.status, row.attempts, len(sent)) == ("dead", 0, 1)
    assert row.last_error.startswith(f"the stored row cannot be read: {said}")
    assert (await queue.row(healthy)).status == "delivered"


@pytest.mark.parametrize(
    "origin",
    [
        {"kind": "planet", "name": "x"},
        {"kind": "logic_action", "ref": {"source": "timer_trigger"}},
    ],
)
async def test_an_origin_of_another_release_waits(
    queue: Queue, origin: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    """A kind that this process does not know is no defect: the row waits for a process that does, said once a kind."""
    ids = [await queue.put() for _ in range(3)]
    await queue.run(f"UPDATE flowactions_outbox SET origin = '{json.dumps(origin)}'".replace(":", r"\:"))  # noqa: S608
    claims = a_schedule(queue, ok)
    for _ in range(2):
        await claims.tick()
        await queue.run("UPDATE flowactions_outbox SET next_attempt_at = 0")
    for row_id in ids:
        row = await queue.row(row_id)
        assert (row.status, row.attempts, row.claimed_by) == ("pending", 0, None)
        assert "which this process cannot read" in row.last_error
        assert row.waiting_since is not None
    assert caplog.text.count("which this process cannot read") == 1


async def test_an_outcome_that_cannot_be_stored_ends_its_row_only(
    queue: Queue, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """PostgreSQL refuses a whole statement for one value: the other outcomes are written all the same."""
    ids = [await queue.put(url=f"http://127.0.0.1/{number}") for number in range(9)]
    told: list[Any] = []

    async def finished(delivery: Any) -> None:
        told.append((delivery.id, delivery.status))

    claims = a_schedule(queue, ok, delivery_finished=finished)
    send = claims._executor._sender.send

    async def unstorable(delivery: Any, *others: Any) -> Any:
        outcome = await send(delivery, *others)
        assert isinstance(outcome, Outcome)
        return msgspec.structs.replace(outcome, duration_ms=2**40) if delivery.url.endswith("/4") else outcome

    monkeypatch.setattr(claims._executor._sender, "send", unstorable)
    await claims.tick()
    found = {row_id: (await queue.row(row_id)).status for row_id in ids}
    expected = dict.fromkeys(ids, "delivered")
    if queue.database.dialect == "postgresql":  # SQLite stores any number
        expected[ids[4]] = "dead"
        assert "its outcome cannot be stored" in (await queue.row(ids[4])).last_error
        assert caplog.text.count("is dead: its outcome cannot be stored") == 1
    assert found == expected
    assert sorted(told) == sorted(expected.items())


@sampled("column", [*TEXTS, "last_error", "idempotency_key", "body", "attempts", "created_at"], size=6)
async def test_a_corrupt_row_can_be_listed_and_shown(embedded: Queue, column: str) -> None:
    """What can be read of it is there, with replacement characters where text is none, and the rest is named."""
    row_id = await embedded.put()
    columns = "delivery_id, number, started_at, duration_ms, error"
    await embedded.run(
        f"INSERT INTO flowactions_attempts ({columns}) VALUES ('{row_id}', 1, 'x', 1.5, {NOT_UTF8})"  # noqa: S608
    )
    await embedded.run(f"UPDATE flowactions_outbox SET {column} = {NOT_UTF8}")  # noqa: S608
    organization = "a\ufffdb" if column == "organization_id" else "acme"
    if column not in {"organization_id", "id"}:
        (listed,) = (
            await OperatorQueries(embedded.database).deliveries(Scope(organization), Filter(), None, 5)
        ).rows
        found = await embedded.queries.detail(row_id, organization)
        assert found is not None
        whole = detail(*found)
        for each in (listed, whole):
            msgspec.json.encode(each)
            if column in each.__struct_fields__ and column not in {"body", "origin", "headers"}:
                assert getattr(each, column) in {"a\ufffdb", 0, None}
                assert column in str(each.defect)
        (attempt,) = whole.attempt_log
        assert (attempt.error, attempt.started_at, attempt.duration_ms) == ("a\ufffdb", None, 0)


async def test_a_corrupt_row_is_pruned(embedded: Queue) -> None:
    """An id that is not text keeps neither its row nor the rows beside it."""
    await embedded.put()
    await embedded.put()
    await a_schedule(embedded, ok).tick()
    await embedded.run(f"UPDATE flowactions_outbox SET id = {NOT_UTF8} WHERE rowid = 1")  # noqa: S608
    assert await embedded.queries.prune("delivered", -1000, 10) == 2
    assert await states(embedded) == {}


async def test_a_hosts_connection_reads_text_as_before(embedded: Queue) -> None:
    """The queue reads whatever is there; nobody else's reading changes."""
    if embedded.database._engines.shared is None:
        pytest.skip("the plugin's own engine")
    seen: list[Any] = []

    def note(connection: Any, _record: Any) -> None:
        seen.append(connection.driver_connection.text_factory)

    event.listen(embedded.database._engines.shared.sync_engine, "checkin", note)
    await embedded.put()
    await a_schedule(embedded, ok).tick()
    assert set(seen) == {str}


def test_known_and_unknown_origins_are_distinguished() -> None:
    """What is read, what waits and what is a defect."""
    known = msgspec.json.encode(ORIGIN).decode().replace("}", ',"more":1}')
    assert read_origin(known)[0] is not None
    for text_, index in (('{"kind":"new"}', 1), ('{"kind":null}', 2), ("{}", 2), ("null", 2), ("\udc80", 2)):
        found = read_origin(text_)
        assert [each is not None for each in found] == [number == index for number in range(3)], text_
    assert read_headers('[["a","b"]]') == ([("a", "b")], None)


async def test_a_dead_row_has_no_counters_of_faults_here(queue: Queue) -> None:
    """However a row ends, its counts of reclaims and quarantine and its wait are cleared: a retry begins anew."""
    fault = "takeovers = 4, quarantine_rounds = 2, waiting_since = 5"
    ways: dict[str, Any] = {
        "marked dead": lambda claim: queue.mark_dead(claim, "no"),
        "used up": lambda claim: queue.complete(claim, Outcome(0, 0, status_code=500), Transition("dead")),
        "delivered": lambda claim: queue.complete(
            claim, Outcome(0, 0, status_code=200), Transition("delivered")
        ),
        "tried": lambda claim: queue.complete(claim, Outcome(0, 0, status_code=500), Transition("retrying", 5)),
        "cancelled": lambda claim: _cancelled(queue, claim.id),
    }
    for name, end in ways.items():
        row_id = await queue.put()
        (claim,) = await queue.store.claim(1)
        await queue.run(f"UPDATE flowactions_outbox SET {fault} WHERE id = '{row_id}'")  # noqa: S608
        assert await end(claim), name
        row = await queue.row(row_id)
        assert (row.takeovers, row.quarantine_rounds, row.waiting_since) == (0, 0, None), name


async def _cancelled(queue: Queue, row_id: str) -> bool:
    await queue.run(f"UPDATE flowactions_outbox SET claimed_by = NULL WHERE id = '{row_id}'")  # noqa: S608
    return await queue.queries.cancel(row_id, "acme", "by Ada")
