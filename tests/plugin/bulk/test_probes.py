"""Probes of destinations that are paused automatically: one waiting row, at growing intervals (decision 70)."""

from __future__ import annotations

import asyncio
from itertools import chain
from typing import Any

import httpx
import pytest

from flowactions_plugin.clock import new_id
from flowactions_plugin.errors import StorageUnavailable
from flowactions_plugin.operations.port import Operations
from flowactions_plugin.operators.scope import AUTOMATIC, Scope
from flowactions_plugin.queue import probes as probes_module
from flowactions_plugin.queue.statements import statement
from flowactions_plugin.storage.schema import QUARANTINE_AFTER
from tests.pausing import (
    ACME,
    ALL,
    DOWN,
    MAYA,
    OLIVE,
    a_paused_queue,
    make_due,
    probing,
    put,
    rows_of,
)
from tests.queueing import OutboxStore, Queue, a_worker
from tests.sending import SlowAnswer
from tests.waiting import SAFETY_SECONDS, until


class TestProbes:
    async def test_a_probe_is_the_row_that_has_waited_for_longest(self, queue: Queue) -> None:
        """One, when it is due, with an attempt of its own. The others wait."""
        first, *_ = await a_paused_queue(queue, 3)
        (claimed,) = await probing(queue).claim(10)
        assert (claimed.id, claimed.max_attempts) == (first, 5)
        assert await queue.store.claim(10) == []
        assert await probing(queue).claim(10) == []
        # Written with its outcome only: a probe whose worker is killed has used up none.
        assert await rows_of(queue, "DISTINCT max_attempts FROM flowactions_outbox") == [(4,)]

    async def test_the_first_comes_a_minute_after_the_pause(self, queue: Queue) -> None:
        """Not at once: attempts have just failed."""
        await put(queue, 1)
        await Operations(queue.database).pause(ACME, DOWN, AUTOMATIC)
        assert await probing(queue).claim(10) == []
        (row,) = await rows_of(queue, "probe_at - paused_at AS delay, probes FROM flowactions_pauses")
        assert (row.delay, row.probes) == (60_000, 0)

    async def test_the_intervals_grow_up_to_an_hour(self, queue: Queue) -> None:
        """From one probe to the next, in the database as by the rule (`test_rules`)."""
        await a_paused_queue(queue, 3)
        delays = []
        for _ in range(3):
            before = await queue.database.time()
            assert len(await probing(queue).claim(10)) == 1
            (row,) = await rows_of(queue, "probe_at, probes FROM flowactions_pauses")
            delays.append(round((row.probe_at / 1000 - before) / 60))
            await make_due(queue)
        assert delays == [2, 4, 8]
        assert row.probes == 3

    async def test_of_several_workers_one_sends_a_probe(self, queue: Queue) -> None:
        """Whenever they look, also under the same sight of what is due."""
        await a_paused_queue(queue, 4)
        workers = [probing(queue, store=OutboxStore(queue.database)) for _ in range(4)]
        claimed = await asyncio.gather(*(each.claim(10) for each in workers))
        assert len([*chain(*claimed)]) == 1

    async def test_each_organization_and_destination_is_probed_by_itself(self, queue: Queue) -> None:
        """With rows of its own; where none waits, the probe stays due."""
        mine = (await a_paused_queue(queue))[0]
        await Operations(queue.database).pause(Scope("globex"), DOWN, AUTOMATIC)
        await Operations(queue.database).pause(ACME, "https://idle.example", AUTOMATIC)
        theirs = await put(queue, 9, organization_id="globex")
        await make_due(queue)
        assert {each.id for each in await probing(queue).claim(10)} == {mine, theirs}
        due = await rows_of(queue, "destination FROM flowactions_pauses WHERE probe_at = 1")
        assert due == [("https://idle.example:443",)]

    @pytest.mark.parametrize(
        "state",
        [
            f"takeovers = {QUARANTINE_AFTER}",
            "status = 'dead', finished_at = 1",
            "claimed_by = 'x', claimed_until = 4000000000000",
            "next_attempt_at = 4000000000000",
        ],
        ids=["in-quarantine", "ended", "claimed", "not-due"],
    )
    async def test_a_row_is_passed_over_that_may_not_be_sent(self, queue: Queue, state: str) -> None:
        """The next row is the probe instead. When no row may be sent, no probe is sent."""
        first, second = await a_paused_queue(queue, 2)
        await queue.run(f"UPDATE flowactions_outbox SET {state} WHERE id = '{first}'")  # noqa: S608
        assert [each.id for each in await probing(queue).claim(10)] == [second]
        await make_due(queue)
        assert await probing(queue).claim(10) == []

    async def test_destinations_without_rows_keep_no_other_from_its_probe(
        self, queue: Queue, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Their probes have been due for longer, and a look takes few."""
        monkeypatch.setattr(probes_module, "AT_ONCE", 1)
        (mine,) = await a_paused_queue(queue)
        await Operations(queue.database).pause(ACME, "https://idle.example", AUTOMATIC)
        await queue.run("UPDATE flowactions_pauses SET probe_at = 0 WHERE destination LIKE '%idle%'")
        assert [each.id for each in await probing(queue).claim(1)] == [mine]

    async def test_rows_to_another_destination_are_no_probes(self, queue: Queue) -> None:
        """Although a person has paused it, and they have waited for longer."""
        other = await queue.put(id=new_id(1), destination="https://other.example:443")
        await Operations(queue.database).pause(ACME, "https://other.example:443", MAYA)
        (mine,) = await a_paused_queue(queue)
        await queue.run(f"UPDATE flowactions_outbox SET next_attempt_at = 1 WHERE id = '{other}'")  # noqa: S608
        await queue.run("UPDATE flowactions_pauses SET probe_at = NULL WHERE paused_role <> 'automatic'")
        assert [each.id for each in await probing(queue).claim(10)] == [mine]

    async def test_a_worker_that_saw_a_probe_due_that_another_has_sent_sends_none(self, queue: Queue) -> None:
        """Also when that one has ended meanwhile, and its row waits again."""
        await a_paused_queue(queue)
        worker, other = probing(queue), probing(queue, store=OutboxStore(queue.database))
        made = queue.database.built(statement, "probes")
        (due,) = await queue.database.rows(made, queue.store.free())
        assert len(await other.claim(10)) == 1
        await queue.run("UPDATE flowactions_outbox SET claimed_by = NULL, claimed_until = NULL")
        assert not await worker._begin(due)

    async def test_a_pause_of_all_organizations_or_of_a_person_is_not_probed(self, queue: Queue) -> None:
        """An operator may have paused it beside."""
        await a_paused_queue(queue)
        pauses = Operations(queue.database)
        await pauses.pause(ALL, DOWN, OLIVE)
        assert await probing(queue).claim(10) == []
        await pauses.resume(ALL, DOWN, OLIVE)
        await pauses.pause(ACME, DOWN, MAYA)
        assert await probing(queue).claim(10) == []

    async def test_a_failed_probe_uses_up_no_attempt_and_goes_behind_the_others(self, queue: Queue) -> None:
        """So the next probe is another row; and its attempt is in the log."""
        first, second = await a_paused_queue(queue, 2)
        worker = probing(queue)
        await worker.look()
        async with worker.none():  # all have ended
            pass
        await worker._executor.completer.flush()
        row = await queue.row(first)
        assert (row.status, row.attempts, row.max_attempts) == ("retrying", 1, 5)
        assert await rows_of(queue, "delivery_id, number, status_code FROM flowactions_attempts") == [
            (first, 1, 503)
        ]
        await make_due(queue)
        assert [each.id for each in await worker.claim(10)] == [second]

    @pytest.mark.parametrize("wanted", [1, 4, 9, 10])
    async def test_the_attempts_of_a_row_grow_once_and_never_above_ten(self, queue: Queue, wanted: int) -> None:
        """However often it is probed, also by workers that are killed: each further failure uses up an attempt."""
        requests = list[object]()

        def answer(request: httpx.Request) -> httpx.Response:
            requests.append(request)
            return httpx.Response(503)

        (row_id,) = await a_paused_queue(queue)
        await queue.run(f"UPDATE flowactions_outbox SET max_attempts = {wanted}")  # noqa: S608
        for _ in range(3):
            assert len(await probing(queue).claim(10)) == 1
            await queue.expire_claims()
            await queue.run("UPDATE flowactions_outbox SET takeovers = 0")
            await make_due(queue)
        while (row := await queue.row(row_id)).status != "dead":
            worker = probing(queue, answer)
            await worker.look()
            async with worker.none():  # all have ended
                pass
            await worker._executor.completer.flush()
            await queue.run("UPDATE flowactions_outbox SET next_attempt_at = 1")  # its backoff is over
            await make_due(queue)
        most = min(10, wanted + 1)
        assert (row.attempts, row.max_attempts, len(requests)) == (most, most, most)

    async def test_a_probe_of_a_worker_that_was_killed_is_sent_by_the_next(self, queue: Queue) -> None:
        """When its lease has ended and a probe is due again: nothing is lost."""
        (row_id,) = await a_paused_queue(queue)
        assert len(await probing(queue).claim(10)) == 1
        await make_due(queue)
        assert await probing(queue).claim(10) == []
        await queue.expire_claims()
        (claimed,) = await probing(queue).claim(10)
        assert (claimed.id, claimed.reclaims) == (row_id, 1)

    async def test_a_worker_that_stops_finishes_its_probe(self, queue: Queue) -> None:
        """It also writes the outcome of the probe, which uses no slot."""
        (row_id,) = await a_paused_queue(queue)
        slow = SlowAnswer()
        worker = a_worker(queue, slow)
        running = asyncio.create_task(worker.run())
        await worker.probes.look()
        await slow.arrived.wait()
        running.cancel()
        await asyncio.sleep(0.05)
        assert not running.done()
        slow.released.set()
        await asyncio.wait({running})
        assert (await queue.row(row_id)).status == "delivered"

    async def test_a_worker_that_stops_begins_none(self, queue: Queue) -> None:
        """What it claimed then would wait for the end of its lease."""
        await a_paused_queue(queue)
        worker = probing(queue)
        worker._executor.stopping = True
        await worker.look()
        assert await rows_of(queue, "probes FROM flowactions_pauses") == [(0,)]

    async def test_a_look_that_is_cancelled_keeps_no_row(
        self, queue: Queue, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """As by the stop of its process while the claim is on its way: the row is due again, and waits for no lease."""
        (row_id,) = await a_paused_queue(queue)
        worker, claim = probing(queue), queue.store.claim
        claimed, may_answer = asyncio.Event(), asyncio.Event()

        async def answers_late(*asked: Any, **options: Any) -> Any:
            rows = await claim(*asked, **options)
            claimed.set()
            await may_answer.wait()
            return rows

        monkeypatch.setattr(queue.store, "claim", answers_late)
        monkeypatch.setattr(probes_module, "CLOSE_SECONDS", SAFETY_SECONDS)
        looking = asyncio.create_task(worker.look())
        await claimed.wait()
        worker._executor.stopping = True
        looking.cancel()
        await asyncio.sleep(0)
        may_answer.set()
        await asyncio.wait({looking})
        assert looking.cancelled()
        async with worker.none():  # all have ended
            pass
        await worker._executor.completer.flush()
        assert (await queue.row(row_id)).claimed_by is None

    async def test_a_probe_that_cannot_be_prepared_is_given_back(self, queue: Queue) -> None:
        """The database fails after the claim, when it is asked whether the row was probed before."""
        (row_id,) = await a_paused_queue(queue)
        worker = probing(queue)
        await queue.run("ALTER TABLE flowactions_attempts RENAME TO away")
        with pytest.raises(StorageUnavailable):
            await worker.look()
        await queue.run("ALTER TABLE away RENAME TO flowactions_attempts")
        await worker._executor.completer.flush()
        assert (await queue.row(row_id)).claimed_by is None

    async def test_a_worker_has_so_many_in_flight_at_the_most(
        self, queue: Queue, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Receivers that hang take no more than that beside its slots."""
        monkeypatch.setattr(probes_module, "AT_ONCE", 1)
        await a_paused_queue(queue, 2)
        slow = SlowAnswer(503)
        worker = probing(queue, slow)
        for _ in range(2):
            await worker.look()
            await make_due(queue)
        assert await rows_of(queue, "probes FROM flowactions_pauses") == [(1,)]
        slow.released.set()
        async with worker.none():  # all have ended
            pass

    async def test_none_is_in_flight_while_a_row_is_sent_alone(self, queue: Queue) -> None:
        """What ends its process in quarantine is not blamed on another."""
        await a_paused_queue(queue, 2)
        slow = SlowAnswer(503)
        worker = probing(queue, slow)
        await worker.look()
        await until(lambda: len(slow.requests) == 1)
        alone = asyncio.Event()

        async def send_alone() -> None:
            async with worker.none():
                alone.set()
                await make_due(queue)
                looking.append(asyncio.create_task(worker.look()))
                await asyncio.sleep(0.05)
                assert len(slow.requests) == 1

        looking: list[asyncio.Task[None]] = []
        waiting = asyncio.create_task(send_alone())
        await asyncio.sleep(0.05)
        assert not alone.is_set()
        slow.released.set()
        await waiting
        await looking[0]
        await until(lambda: len(slow.requests) == 2)
        async with worker.none():  # all have ended
            pass
