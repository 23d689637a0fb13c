"""Rows that cannot be sent as they are stored: each ends dead with its defect, and the others go on."""

from __future__ import annotations

import json
from typing import Any

import httpx
import msgspec
import pytest
from sqlalchemy import text

from flowactions_plugin.queue.claimed import SMALL_BYTES, read_headers, read_origin
from flowactions_plugin.queue.enqueue import row_of
from flowactions_plugin.queue.rules import TOO_LATE
from tests.queueing import ORIGIN, Queue, a_delivery, a_schedule, claimed, ok


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


def test_known_and_unknown_origins_are_distinguished() -> None:
    """What is read, what waits and what is a defect."""
    known = msgspec.json.encode(ORIGIN).decode().replace("}", ',"more":1}')
    assert read_origin(known)[0] is not None
    for text_, index in (('{"kind":"new"}', 1), ('{"kind":null}', 2), ("{}", 2), ("null", 2), ("\udc80", 2)):
        found = read_origin(text_)
        assert [each is not None for each in found] == [number == index for number in range(3)], text_
    assert read_headers('[["a","b"]]') == ([("a", "b")], None)


async def test_a_claim_says_whose_a_row_is_and_whether_its_body_was_left_out(queue: Queue) -> None:
    """An alert's delivery has no agent; a body of more than 64 KiB is read when its delivery begins."""
    bodies = [each * size for each in (b"x", b"y") for size in (SMALL_BYTES, SMALL_BYTES + 1)]
    for body in bodies:
        await queue.put(agent_id=None if len(body) > SMALL_BYTES else "a", headers=(("x", "1"),), body=body)
    found = []
    for row in await queue.store.claim(4):
        assert (row.agent_id, row.size > SMALL_BYTES + 11) == ((None, True) if row.lacks_body else ("a", False))
        whole = await queue.store.whole(row) if row.lacks_body else row
        assert whole is not None
        assert not whole.lacks_body
        found.append(whole.body or b"")
    assert sorted(found) == sorted(bodies)
    made = a_delivery(headers=(("x", "1"),), body=b"12345")
    assert queue.store.claim_with_enqueue(row_of(made)).size == len('[["x","1"]]12345')
    assert [claimed(left_ms=left).hopeless for left in (None, 1, 0)] == [None, None, TOO_LATE]


async def test_a_cancelled_row_has_no_counters_of_faults_here(queue: Queue) -> None:
    """Its counts of reclaims and quarantine and its wait are cleared: a retry begins anew."""
    row_id = await queue.put(state={"takeovers": 4, "quarantine_rounds": 2, "waiting_since": 5})
    assert await queue.queries.cancel(row_id, "acme", "by Ada")
    row = await queue.row(row_id)
    assert (row.takeovers, row.quarantine_rounds, row.waiting_since) == (0, 0, None)
