"""Rows that their enqueue claims for the worker of its process."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Any

import httpx
import pytest
from sqlalchemy import text

from flowactions_hookspecs import UnsignedTestOrigin
from flowactions_plugin.clock import new_id
from flowactions_plugin.errors import StorageUnavailable
from flowactions_plugin.queue.items import MOST_CLAIMED_BYTES
from flowactions_plugin.queue.lanes import Due
from flowactions_plugin.queue.rules import HELD_SECONDS, NewDelivery
from flowactions_plugin.storage.schema import pauses
from tests.queueing import Queue, a_delivery, continuously, delivering
from tests.waiting import until

DESTINATION = "http://127.0.0.1/"


class Process:
    """What enqueues, and the worker of the same process, which makes no claim after its first.

    Attributes:
        asked: the bodies that have arrived.
        answers: is set where receivers answer.
        woken: what was enqueued and is not claimed.
    """

    def __init__(self, queue: Queue, slots: int, per_destination: int, *, claims_all: bool = True) -> None:
        self.asked: list[bytes] = []
        self.answers = asyncio.Event()
        self.answers.set()
        self.woken: list[Due] = []
        self.queue = queue
        self.claims = continuously(queue, self.answer, slots, per_destination, claims_all=claims_all)
        self.executor = self.claims._executor
        self.outbox = queue.store._outbox
        self.outbox.claimant = self.claims
        self.outbox.on_commit = self.woken.append

    async def answer(self, request: httpx.Request) -> httpx.Response:
        self.asked.append(request.content)
        await self.answers.wait()
        return httpx.Response(200)

    async def enqueue(self, **changes: Any) -> NewDelivery:
        delivery = a_delivery(**{"id": new_id(1_700_000_000), "url": DESTINATION, **changes})
        await self.outbox.write(delivery)
        return delivery

    async def together(self, count: int) -> list[NewDelivery]:
        return await asyncio.gather(
            *(self.enqueue(event_id=f"evt_{number}", body=b"%d" % number) for number in range(count))
        )

    async def proves(self, *destinations: str) -> None:
        """Have destinations answer once: until then they get one row at a time."""
        for each in destinations:
            await self.enqueue(destination=each)
        await self.is_done()
        self.asked.clear()
        self.woken.clear()

    async def is_done(self) -> None:
        await until(lambda: not self.claims._tasks)
        await self.executor.completer.flush()

    async def states(self) -> Sequence[Any]:
        async with self.queue.database.read() as connection:
            query = "SELECT status, claimed_by FROM flowactions_outbox ORDER BY id"
            return (await connection.execute(text(query))).all()


@pytest.fixture
async def process(queue: Queue) -> AsyncIterator[Process]:
    """One with twenty slots, five of them for a destination."""
    made = Process(queue, 20, 5)
    await made.claims.run_once()
    yield made
    await made.claims.quiesce()
    assert made.claims._lanes.total.held == 0


def makes_no_claim(process: Process, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process.queue.store, "claim", None)


def waiting_transactions(process: Process, monkeypatch: pytest.MonkeyPatch) -> asyncio.Event:
    """Have transactions wait for the event that is returned."""
    in_transaction, may_begin = process.queue.database.in_transaction, asyncio.Event()

    async def waits(*arguments: Any, **options: Any) -> Any:
        await may_begin.wait()
        return await in_transaction(*arguments, **options)

    monkeypatch.setattr(process.queue.database, "in_transaction", waits)
    return may_begin


async def test_a_host_that_sends_its_own_claims_nothing_else(queue: Queue) -> None:
    """Whatever is due stays for workers; what it cannot send at once does, too."""
    process = Process(queue, 1, 1, claims_all=False)
    other = await queue.put()
    async with delivering(queue, process.claims):
        await until(lambda: process.claims._claiming)
        process.answers.clear()
        await process.enqueue(body=b"own")
        await until(lambda: process.asked)
        for _ in range(3):
            await process.enqueue()
        process.claims.wake()
        await asyncio.sleep(2 * HELD_SECONDS)
        process.answers.set()
        await process.is_done()
    assert (process.asked[0], (await queue.row(other)).claimed_by) == (b"own", None)
    assert process.woken


async def test_what_can_be_sent_at_once_needs_no_claim(
    process: Process, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One row, and rows that share a transaction."""
    makes_no_claim(process, monkeypatch)
    await process.enqueue(body=b"first")
    await process.is_done()
    await process.together(10)
    await process.is_done()
    assert process.asked[0] == b"first"
    assert sorted(process.asked[1:]) == [b"%d" % number for number in range(10)]
    assert {state for state, _ in await process.states()} == {"delivered"}
    assert process.woken == []
    assert process.executor.load.claimed == 11


async def test_a_row_is_held_while_it_is_sent(process: Process) -> None:
    """By a claim as any other, so that no other worker can have it."""
    process.answers.clear()
    await process.enqueue()
    await until(lambda: process.asked)
    ((status, token),) = await process.states()
    assert (status, len(token)) == ("pending", 32)
    assert await process.queue.store.claim(10) == []
    process.answers.set()


@pytest.mark.parametrize("organization", ["", "acme"])
async def test_a_paused_destination_gets_nothing(process: Process, organization: str) -> None:
    """Whoever paused it, and in whatever process."""
    other = "http://other/"
    await process.proves(DESTINATION, other)
    paused = {
        "organization_id": organization,
        "destination": DESTINATION,
        "paused_at": 1,
        "paused_by": "",
        "reason": "",
    }
    async with process.queue.database.write() as connection:
        await connection.execute(pauses.insert().values(paused))
    await asyncio.gather(process.enqueue(body=b"paused"), process.enqueue(body=b"sent", destination=other))
    await process.is_done()
    assert process.asked == [b"sent"]
    assert ("pending", None) in await process.states()


async def test_a_destination_has_no_more_than_its_places(process: Process) -> None:
    """Rows beyond them wait here, twice the limit at the most in all; the rest is claimed later as any other."""
    await process.proves(DESTINATION)
    process.answers.clear()
    await process.together(20)
    await until(lambda: len(process.asked) == 5)
    held = [token for status, token in await process.states() if status == "pending" and token is not None]
    assert (len(held), len(process.woken)) == (10, 10)
    process.answers.set()


async def test_of_a_lane_that_has_not_answered_one_row_is_claimed(process: Process) -> None:
    """And nothing is enqueued ahead for it."""
    process.answers.clear()
    await process.together(8)
    await until(lambda: process.asked)
    assert (len(process.asked), len(process.woken)) == (1, 7)
    process.answers.set()


@pytest.mark.parametrize("reason", ["more is due", "behind", "the worker pauses"])
async def test_nothing_is_claimed_before_what_waits_longer(
    process: Process, monkeypatch: pytest.MonkeyPatch, reason: str
) -> None:
    """While rows may be due that this process has not claimed, and while it should claim nothing."""
    if reason == "more is due":
        process.claims.enqueued(Due(a_delivery(DESTINATION).lane, "acme", DESTINATION))
    elif reason == "behind":
        monkeypatch.setattr(process.executor.completer, "_failed", True)
    else:
        await process.claims.quiesce()
    await process.enqueue()
    assert await process.states() == [("pending", None)]
    assert len(process.woken) == 1


async def test_a_backlog_of_a_destination_goes_first(process: Process) -> None:
    """Where a claim has left rows to it, because it brought as many as its limit allows, new ones wait behind them."""
    await process.proves(DESTINATION)
    process.answers.clear()
    process.outbox.claimant = None
    await process.together(20)
    process.claims.wake()
    await process.claims.run_once()
    process.outbox.claimant = process.claims
    process.woken.clear()
    await process.enqueue(body=b"new")
    assert len(process.woken) == 1
    process.answers.set()


@pytest.mark.parametrize(
    "body", [None, b"", b"\xff\x00", b"\0", "ä€😀".encode(), b"x" * (MOST_CLAIMED_BYTES + 1)]
)
async def test_a_row_is_the_same_with_a_claim_and_without(process: Process, body: bytes | None) -> None:
    """In each column but those of the claim and the times; and so is what is sent."""
    await process.proves(DESTINATION)
    await process.queue.run("DELETE FROM flowactions_outbox")
    process.answers.clear()
    changes = {
        "headers": (("x-quotes", "\\ \" ' %"), ("content-type", "text/plain")),
        "body": body,
        "agent_id": None,
        "event_type": "ä.€",
        "idempotency_key": "key\u2028",
        "trace": "00-" + "a" * 52,
        "origin": UnsignedTestOrigin(organization_id="acme", agent_id="a", flow_id="fä", node_id="n"),
    }
    ids = []
    for claimant in (process.claims, None):
        process.outbox.claimant = claimant
        ids.append((await process.enqueue(**changes)).id)
    async with process.queue.database.read() as connection:
        found = (await connection.execute(text("SELECT * FROM flowactions_outbox"))).mappings()
        rows = {row["id"]: dict(row) for row in found}
    with_claim, without = (rows[each] for each in ids)
    fits = (
        len(body or b"") <= MOST_CLAIMED_BYTES
        and process.queue.database.sql.bytes_value(body or b"") is not None
    )
    assert (with_claim["claimed_by"] is not None, without["claimed_by"]) == (fits, None)
    differing = {name for name in without if with_claim[name] != without[name]}
    assert differing <= {"id", "created_at", "updated_at", "next_attempt_at", "claimed_by", "claimed_until"}
    process.answers.set()
    await process.is_done()


async def test_a_row_that_is_written_again_is_not_sent_again(process: Process) -> None:
    """A caller that got no answer may write the same row once more."""
    delivery = await process.enqueue()
    await process.is_done()
    await process.outbox.write(delivery)
    await process.is_done()
    assert len(process.asked) == 1
    assert [status for status, _ in await process.states()] == ["delivered"]


@pytest.mark.parametrize("is_sent", [False, True])
async def test_a_row_that_is_written_again_meanwhile_takes_no_second_place(
    queue: Queue, monkeypatch: pytest.MonkeyPatch, is_sent: bool
) -> None:
    """The first enqueue is being written, or its request is being sent. No caller gets an error, also none in the same transaction."""
    process = Process(queue, 20, 5)
    await process.claims.run_once()
    await process.proves(DESTINATION)
    process.answers.clear()
    may_begin = waiting_transactions(process, monkeypatch)
    lanes, twice = process.claims._lanes, a_delivery(url=DESTINATION)
    writing: list[asyncio.Task[Any]] = [asyncio.create_task(process.outbox.write(twice))]
    await until(lambda: lanes.total.asked == 1)
    if is_sent:
        may_begin.set()
        await until(lambda: process.asked)
        may_begin.clear()
    writing += [asyncio.create_task(process.outbox.write(twice)) for _ in range(2)]
    writing.append(asyncio.create_task(process.enqueue(body=b"other")))
    places = 1 if is_sent else 2
    await until(lambda: lanes.total.asked == places or any(each.done() for each in writing[1:]))
    may_begin.set()
    errors = await asyncio.gather(*writing, return_exceptions=True)
    process.answers.set()
    await process.is_done()
    assert errors[:3] == [None, None, None]
    assert (sorted(process.asked), lanes.total.held) == ([b"other", b"{}"], 0)


@pytest.mark.parametrize("is_written", [True, False])
async def test_an_enqueue_without_an_answer_leaves_no_claim(
    process: Process, monkeypatch: pytest.MonkeyPatch, is_written: bool
) -> None:
    """Where the commit may have been made, the claim is given back at once: nobody waits for the end of its lease."""
    in_transaction = process.queue.database.in_transaction

    async def loses_the_answer(*arguments: Any, **options: Any) -> Any:
        monkeypatch.setattr(process.queue.database, "in_transaction", in_transaction)
        if is_written:
            await in_transaction(*arguments, **options)
        error = StorageUnavailable("the connection was lost")
        error.may_be_written = is_written
        raise error

    monkeypatch.setattr(process.queue.database, "in_transaction", loses_the_answer)
    with pytest.raises(StorageUnavailable):
        await process.enqueue()
    await process.claims.quiesce()
    assert await process.states() == ([("pending", None)] if is_written else [])
    assert process.asked == []


async def test_an_answer_after_the_lease_sends_nothing_twice(
    process: Process, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The worker claims the row again while it is sent, and writes its outcome under that claim."""
    in_transaction, may_answer = process.queue.database.in_transaction, asyncio.Event()

    async def answers_late(*arguments: Any, **options: Any) -> Any:
        monkeypatch.setattr(process.queue.database, "in_transaction", in_transaction)
        done = await in_transaction(*arguments, **options)
        await may_answer.wait()
        return done

    await process.proves(DESTINATION)
    process.answers.clear()
    monkeypatch.setattr(process.queue.database, "in_transaction", answers_late)
    caller = asyncio.create_task(process.enqueue())
    await until(lambda: _is_pending(process))
    await process.queue.expire_claims()
    (again,) = process.executor.take(await process.queue.store.claim(10))
    lanes = process.claims._lanes
    assert lanes.reserve(Due(again.lane, again.organization_id, again.destination))
    lanes.unreserve([again], [again])
    process.claims._start()
    await until(lambda: process.asked)
    may_answer.set()
    await caller
    await process.claims.run_once()
    process.answers.set()
    await process.is_done()
    assert len(process.asked) == 1
    assert {status for status, _ in await process.states()} == {"delivered"}


async def _is_pending(process: Process) -> bool:
    return any(status == "pending" for status, _ in await process.states())


async def test_a_caller_that_has_gone_keeps_no_slot(process: Process, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that is cancelled before its transaction has begun; those that wait for it then get slots of their own."""
    await process.proves(DESTINATION)
    may_begin = waiting_transactions(process, monkeypatch)
    callers = [asyncio.create_task(process.enqueue(body=b"%d" % number)) for number in range(3)]
    await until(lambda: process.claims._lanes.total.asked == 1)
    callers[0].cancel()
    await asyncio.wait({callers[0]})
    await until(lambda: process.claims._lanes.total.asked == 2)
    callers[1].cancel()
    await asyncio.wait({callers[1]})
    may_begin.set()
    await callers[2]
    await until(lambda: process.asked)
    assert process.asked == [b"2"]
    assert process.claims._lanes.total.asked == 0


async def test_a_worker_that_stops_waits_for_what_it_is_to_send(
    process: Process, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise a row that is enqueued meanwhile would wait for the end of a lease."""
    may_commit = waiting_transactions(process, monkeypatch)
    caller = asyncio.create_task(process.enqueue())
    await until(lambda: process.claims._lanes.total.asked == 1)
    stopping = asyncio.create_task(process.claims.quiesce())
    await asyncio.sleep(0.01)
    assert not stopping.done()
    process.executor.stopping = True
    may_commit.set()
    await asyncio.gather(caller, stopping)
    await process.executor.completer.flush()
    assert await process.states() == [("pending", None)]
    assert process.asked == []
