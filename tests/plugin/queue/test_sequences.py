from __future__ import annotations

import asyncio
import random
from collections import defaultdict
from collections.abc import Sequence
from functools import partial
from typing import Final

import httpx
import pytest
from sqlalchemy import text

from flowactions_plugin.clock import new_id
from flowactions_plugin.egress.attempt import Outcome
from flowactions_plugin.insights.filters import Filter
from flowactions_plugin.operators.scope import Scope
from flowactions_plugin.queue.claimed import ClaimedDelivery
from flowactions_plugin.queue.enqueue import row_of
from flowactions_plugin.queue.items import Item, statements_of, write_items
from flowactions_plugin.queue.lanes import Due
from flowactions_plugin.queue.rules import DEAD, DELIVERED, WAIT_LIMIT_SECONDS, NewDelivery, Transition
from flowactions_plugin.queue.sequences import Sequences, release, sequence_of
from flowactions_plugin.storage.dialect import PARAMSTYLES
from flowactions_plugin.storage.schema import BEHIND_MS
from tests.outages import a_database
from tests.queueing import PATIENT, Queue, a_delivery, a_schedule, continuously, delivering, ok
from tests.waiting import until

SEQUENCE: Final = 7
URL: Final = "http://127.0.0.1/"


async def put(queue: Queue, *names: str, sequence: int | None = SEQUENCE) -> list[str]:
    """Write rows one after the other, as by a process that is killed after each commit; a name is a row's body."""
    made = [a_delivery(id=new_id(1_700_000_000), body=name.encode(), sequence=sequence) for name in names]
    for delivery in made:
        await write(queue, delivery)
    return [delivery.id for delivery in made]


async def write(queue: Queue, delivery: NewDelivery) -> None:
    async with queue.database.write() as connection:
        await connection.run_sync(partial(write_items, queue.database), [Item(row_of(delivery))])


async def due(queue: Queue) -> list[str]:
    """Return the bodies of the rows that are due or in flight."""
    query = text(
        "SELECT body FROM flowactions_outbox WHERE next_attempt_at < :behind AND status IN ('pending', 'retrying') ORDER BY id"
    )
    async with queue.database.read() as connection:
        rows = (await connection.execute(query, {"behind": BEHIND_MS})).all()
    return [bytes(row.body).decode() for row in rows]


async def claim(queue: Queue) -> list[ClaimedDelivery]:
    return await queue.store.claim(50)


async def end(queue: Queue, row: ClaimedDelivery, change: Transition) -> None:
    await queue.complete(row, Outcome(0, 0, status_code=200 if change is DELIVERED else 500), change)


ENDS: Final = {"delivered": DELIVERED, "fails": Transition("retrying", 3600), "dies": DEAD}
IN_FLIGHT: Final = "put a b; release; claim a; cancel a; release; due; {}; release; due b"

SCENARIOS: Final = {
    "no claim sees a row before it is released, also if it is alone": "put a; due; claim",
    "none is due while one is": "put a b; release; due a; release; due a; claim a; release; due a; fails; release; due a",
    "the next is due when one is delivered": "put a b; release; claim a; delivered; release; due b",
    "the next is due when one is dead": "put a b; release; claim a; dies; release; due b",
    "a cancelled row that waits lets nothing go before its turn": (
        "put a b c; release; cancel b; due a; claim a; delivered; release; due c"
    ),
    "a cancellation lets the next go on at once": "put a b; release; cancel a; due b",
    **{f"one cancelled in flight is waited for until it {end}": IN_FLIGHT.format(end) for end in ENDS},
    "one cancelled in flight and retried is waited for, also if the one before it is retried": (
        "put a b; release; claim a; dies; release; claim b; retry a; cancel b; retry b; release; due b; claim; "
        "delivered; release; due a"
    ),
    "a dead row that is retried goes before what waits, and after what is due": (
        "put a b c; release; claim a; dies; release; claim b; dies; release; retry b; retry a; due c; claim c; "
        "delivered; release; claim a; delivered; release; claim b"
    ),
    "a dead row that is retried is due if nothing else is": "put a; release; claim a; dies; retry a; due a",
}
"""What a sequence promises → the steps that show it; behind "due" and "claim" stand the rows that are found."""


@pytest.mark.usefixtures("nobody_to_wait_for")
@pytest.mark.parametrize("steps", SCENARIOS.values(), ids=SCENARIOS)
async def test_what_is_due_of_a_sequence(queue: Queue, steps: str) -> None:
    """After each step; what has been claimed last ends."""
    ids, in_flight = dict[str, str](), list[ClaimedDelivery]()
    for step in steps.split("; "):
        action, *names = step.split()
        if action == "put":
            ids = dict(zip(names, await put(queue, *names), strict=True))
        elif action == "release":
            await release(queue.database, [SEQUENCE])
        elif action == "due":
            assert await due(queue) == names, step
        elif action == "claim":
            rows = await claim(queue)
            assert [row.body for row in rows] == [name.encode() for name in names], step
            in_flight = rows or in_flight
        elif action == "cancel":
            assert await queue.queries.cancel(ids[names[0]], "acme", "no")
        elif action == "retry":
            assert await queue.queries.retry(ids[names[0]], "acme")
        else:
            await end(queue, in_flight[0], ENDS[action])


class TestBeingBehind:
    async def test_the_first_of_them_is_released(self, queue: Queue) -> None:
        """In the order of writing, whatever the ids are."""
        for name in ("z", "m", "a"):
            await write(queue, a_delivery(id=name * 36, body=name.encode(), sequence=SEQUENCE))
        await release(queue.database, [SEQUENCE])
        assert await due(queue) == ["z"]
        assert [row.body for row in await claim(queue)] == [b"z"]

    async def test_rows_that_are_written_together_have_the_order_of_their_callers(self, queue: Queue) -> None:
        """Also many of them, in one transaction of several callers."""
        names = [f"{number:02}" for number in range(40)]
        made = [a_delivery(id=new_id(1_700_000_000), body=name.encode(), sequence=SEQUENCE) for name in names]
        random.Random(1).shuffle(made)  # noqa: S311  any order
        await asyncio.gather(*(queue.store.enqueue(each) for each in made))
        sent = []
        await queue.store._outbox.sequences.settled()
        while rows := await claim(queue):
            sent += rows
            for row in rows:
                await end(queue, row, DELIVERED)
            await release(queue.database, [SEQUENCE])
        assert [row.body for row in sent] == [each.body for each in made]

    async def test_an_enqueue_is_released_after_its_commit(self, queue: Queue) -> None:
        """In a transaction of its own, and in a host's."""
        await queue.store.enqueue(a_delivery(id=new_id(1), body=b"own", sequence=1))
        async with queue.database.write(as_host=True) as connection:
            await queue.store.enqueue(a_delivery(id=new_id(1), body=b"host's", sequence=2), connection)
        await queue.store._outbox.sequences.settled()
        assert sorted(await due(queue)) == ["host's", "own"]

    async def test_an_enqueue_wakes_the_worker_when_the_row_is_due(self, queue: Queue) -> None:
        """And not before: a claim would be in vain."""
        outbox, woken = queue.store._outbox, list[Due]()
        outbox.on_commit = woken.append
        first, second = (a_delivery(id=new_id(1), sequence=SEQUENCE) for _ in range(2))
        await outbox.write(first)
        await outbox.sequences.settled()
        await outbox.write(second)
        await outbox.sequences.settled()
        assert [each.lane for each in woken] == [first.lane]


class TestGoingOn:
    async def test_sequences_do_not_wait_for_each_other(self, queue: Queue) -> None:
        """And rows without one wait for none."""
        await put(queue, "a1", "a2", sequence=1)
        await put(queue, "b1", "b2", sequence=2)
        await put(queue, "free", sequence=None)
        await release(queue.database, [1, 2, 3])
        assert sorted(await due(queue)) == ["a1", "b1", "free"]

    async def test_of_releases_at_the_same_time_one_makes_a_row_due(self, queue: Queue) -> None:
        """However many there are, and whatever the order in which they name the sequences."""
        for sequence in range(10):
            await put(queue, *(f"{sequence}-{number}" for number in range(5)), sequence=sequence)
        orders = [random.Random(seed).sample(range(10), 10) for seed in range(8)]  # noqa: S311
        await asyncio.gather(*(release(queue.database, order) for order in orders), return_exceptions=True)
        await release(queue.database, range(10))
        assert sorted(await due(queue)) == [f"{sequence}-0" for sequence in range(10)]


class TestPace:
    async def test_the_next_message_is_due_a_second_after_the_last(self, queue: Queue) -> None:
        """Of that sequence alone; whoever delivers is woken when it is due, and not before."""
        woken: list[Due] = []
        sequences = Sequences(queue.database, woken.append)
        (paced,) = await put(queue, "paced", sequence=1)
        (free,) = await put(queue, "free", sequence=2)
        sequences.posted(1)
        assert await sequences.release([1, 2]) == 2
        rows = {row_id: await queue.row(row_id) for row_id in (paced, free)}
        waits = {row_id: row.next_attempt_at - row.updated_at for row_id, row in rows.items()}
        assert waits == {paced: 1000, free: 0}
        assert [each.lane for each in woken] == [rows[free].lane]
        await until(lambda: len(woken) == 2)
        assert await sequences.release([1]) == 0  # it is due already


@pytest.mark.usefixtures("nobody_to_wait_for")
class TestPeople:
    async def test_what_was_cancelled_in_flight_is_waited_for_until_its_lease_ends(
        self, database_url: str
    ) -> None:
        """Its worker was killed."""
        async with a_database(database_url) as database:
            queue = Queue(database, 0.2)
            first, _ = await put(queue, "first", "second")
            await release(database, [SEQUENCE])
            assert await claim(queue)
            assert await queue.queries.cancel(first, "acme", "no")

            async def goes_on() -> bool:
                await release(database, [SEQUENCE])
                return await due(queue) == ["second"]

            await until(goes_on)

    async def test_a_bulk_retry_keeps_the_order(self, queue: Queue) -> None:
        """A look makes the first one due."""
        await put(queue, "first", "second", "third")
        for _ in range(3):
            await release(queue.database, [SEQUENCE])
            (row,) = await claim(queue)
            await end(queue, row, DEAD)
        assert await queue.queries.retry_many("acme", Filter(), reset_attempts=True) == 3
        await queue.store._outbox.sequences.look()
        assert await due(queue) == ["first"]


class TestLooking:
    async def test_a_look_releases_what_nothing_else_has_released(self, queue: Queue) -> None:
        """Of all sequences, a number at a time, and then from the begin."""
        for sequence in range(-3, 4):
            await put(queue, f"{sequence}:1", f"{sequence}:2", sequence=sequence)
        woken: list[Due] = []
        looking = Sequences(queue.database, woken.append, most=3)
        pauses = [await looking.look() for _ in range(3)]
        assert len(woken) == 7
        assert sorted(await due(queue)) == sorted(f"{sequence}:1" for sequence in range(-3, 4))
        assert pauses[2] >= 1
        for row in await claim(queue):
            await end(queue, row, DELIVERED)
        for _ in range(3):
            await looking.look()
        assert sorted(await due(queue)) == sorted(f"{sequence}:2" for sequence in range(-3, 4))

    async def test_what_has_waited_too_long_is_dead(
        self, queue: Queue, caplog: pytest.LogCaptureFixture
    ) -> None:
        """With its reason, the first of them; what is before it is not touched."""
        others = await put(queue, "other", "one behind it", sequence=SEQUENCE + 1)
        rows = await put(queue, "first", "second", "third")
        await release(queue.database, [SEQUENCE, SEQUENCE + 1])
        await queue.run(
            f"UPDATE flowactions_outbox SET updated_at = updated_at - {WAIT_LIMIT_SECONDS * 1000 + 1} WHERE id IN {tuple(rows)}"  # noqa: S608
        )
        await queue.store._outbox.sequences.look()
        first, second, *later = [await queue.row(row) for row in [*rows, *others]]
        assert {row.status for row in (first, *later)} == {"pending"}
        assert second.finished_at == second.next_attempt_at >= first.created_at
        assert f"delivery {rows[1]} " in caplog.text
        assert (second.status, second.last_error) == (
            "dead",
            "it has waited too long for the delivery before it",
        )

    @pytest.mark.parametrize(("whose", "status"), [("", "pending"), ("acme", "pending"), ("globex", "dead")])
    async def test_what_waits_for_a_paused_destination_waits_on(
        self, queue: Queue, whose: str, status: str
    ) -> None:
        """Somebody has paused it for this organization, and may end that."""
        rows = await put(queue, "first", "second")
        await release(queue.database, [SEQUENCE])
        await queue.run("UPDATE flowactions_outbox SET updated_at = 0")
        await queue.run(
            "INSERT INTO flowactions_pauses (organization_id, destination, paused_at, paused_by, reason)"  # noqa: S608
            f" VALUES ('{whose}', 'http://127.0.0.1/', 1, '', '')"
        )
        await queue.store._outbox.sequences.look()
        assert (await queue.row(rows[1])).status == status


@pytest.mark.parametrize("paramstyle", PARAMSTYLES)
async def test_prepared_statements_write_the_same(queue: Queue, paramstyle: str) -> None:
    """They have the sequence among their parameters."""
    item = Item(row_of(a_delivery(sequence=1234567)))
    ((statement, parameters),) = statements_of(queue.database, item, paramstyle)
    assert "position" in statement
    assert 1234567 in (parameters.values() if isinstance(parameters, dict) else parameters)


@pytest.mark.parametrize(
    ("other", "same"),
    [
        (("acme", "https://a:443", "https://a/x", "ada"), True),
        (("acme", "https://a:443", "https://a/x?y=1#z", "ada"), True),
        (("other", "https://a:443", "https://a/x", "ada"), False),
        (("acme", "https://b:443", "https://b/x", "ada"), False),
        (("acme", "http://a:443", "http://a:443/x", "ada"), False),
        (("acme", "https://a:443", "https://a/xy", "ada"), False),
        (("acme", "https://a:443", "https://a/x", "bob"), False),
        (("acme", "https://a:443", "https://a/xa", "da"), False),
    ],
)
def test_a_sequence_is_of_an_organization_an_endpoint_and_a_key(other: Sequence[str], *, same: bool) -> None:
    """An endpoint is scheme, host, port and path, as for lanes."""
    assert (sequence_of(*other) == sequence_of("acme", "https://a:443", "https://a/x", "ada")) is same


class Receiver:
    """A receiver that fails at random; it knows what has arrived, and what is on its way."""

    def __init__(self) -> None:
        self.arrived: defaultdict[str, list[int]] = defaultdict(list)
        self.now: set[str] = set()
        self.chance = random.Random(3)  # noqa: S311  the same in each run

    async def answer(self, request: httpx.Request) -> httpx.Response:
        name, _, number = request.content.decode().partition("-")
        assert name not in self.now, "two of one sequence are in flight"
        self.now.add(name)
        await asyncio.sleep(0.001)
        self.now.discard(name)
        if self.chance.random() < 0.2:
            return httpx.Response(500)
        self.arrived[name].append(int(number))
        return httpx.Response(200)


@pytest.mark.parametrize("mode", ["continuous", "scheduled"])
async def test_a_worker_sends_each_sequence_in_its_order(queue: Queue, mode: str) -> None:
    """Six sequences of six rows; a row is retried before the next one is sent. Rows without order are not held back."""
    receiver = Receiver()
    claims = (
        continuously(queue, receiver.answer) if mode == "continuous" else a_schedule(queue, receiver.answer)
    )
    if mode == "continuous":
        queue.store._outbox.on_commit = claims.enqueued  # type: ignore[union-attr]
    async with delivering(queue, claims):
        for number in range(6):
            await asyncio.gather(
                *(
                    queue.store.enqueue(
                        a_delivery(
                            id=new_id(1_700_000_000),
                            body=f"{name}-{number}".encode(),
                            sequence=sequence_of("acme", URL, URL, str(name)),
                            max_attempts=10,
                        )
                    )
                    for name in range(6)
                )
            )

        async def all_have_ended() -> bool:
            await queue.run("UPDATE flowactions_outbox SET next_attempt_at = 1 WHERE status = 'retrying'")
            return await queue.count("finished_at IS NULL") == 0

        await until(all_have_ended)
    assert receiver.arrived == {str(name): list(range(6)) for name in range(6)}


async def test_a_tick_goes_on_with_what_its_outcomes_release(queue: Queue) -> None:
    """Until its rows are used up (§8)."""
    queue = Queue(queue.database, PATIENT)
    await put(queue, *(f"a-{number}" for number in range(60)))
    await release(queue.database, [SEQUENCE])
    assert await a_schedule(queue, ok, limit=50).tick() == 50


async def test_the_limit_of_a_destination_is_one_of_the_whole_tick(queue: Queue) -> None:
    """However often the tick claims."""
    queue = Queue(queue.database, PATIENT)
    await put(queue, *(f"a-{number}" for number in range(30)))
    await release(queue.database, [SEQUENCE])
    assert await a_schedule(queue, ok, per_destination=20).tick() == 20


async def test_a_waiting_delivery_names_the_one_before_it(queue: Queue) -> None:
    """It shows no next attempt; the one that has to end first is named, also before it is due."""
    first, second = await put(queue, "first", "second")
    for released in (False, True):
        if released:
            await release(queue.database, [SEQUENCE])
        found = await queue.queries.delivery(Scope("acme"), second)
        assert found is not None
        assert (found.before, found.row.next_attempt_at) == (first, None)
        assert found.why.startswith(f"It waits for the delivery before it ({first})")
    found = await queue.queries.delivery(Scope("acme"), first)
    assert found is not None
    assert found.before is None
