"""How claims end other than by an outcome: what is given back, what is lost, and to whom (§3.1)."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx
import pytest
from msgspec.structs import replace

from flowactions_plugin.clock import lease_clock
from flowactions_plugin.egress.attempt import DEADLINE_SECONDS, Outcome
from flowactions_plugin.egress.lag import LagMeter
from flowactions_plugin.errors import StorageUnavailable
from flowactions_plugin.operations.purge import Purge
from flowactions_plugin.operators.scope import Actor
from flowactions_plugin.queue.claimed import SMALL_BYTES, Completion, End, Returned
from flowactions_plugin.queue.completer import Completer
from flowactions_plugin.queue.rules import WAIT_LIMIT_SECONDS, Timing
from flowactions_plugin.queue.worker import Worker
from tests.queueing import Queue, a_schedule, an_executor, continuously, ok
from tests.sending import SlowAnswer
from tests.waiting import until

WAITED = WAIT_LIMIT_SECONDS * 1000 + 1000


async def fail(_origin: object) -> str:
    raise RuntimeError


class TestGivenBack:
    @pytest.mark.parametrize("left", [0, DEADLINE_SECONDS + Timing().spare_seconds / 20])
    @pytest.mark.parametrize("alone", [False, True])
    async def test_a_row_that_is_too_late_goes_back(self, queue: Queue, left: float, alone: bool) -> None:
        """The rest of its lease is too short for an attempt: due at once, what it waited for is over, no round has begun."""
        sent: list[httpx.Request] = []
        row_id = await queue.put(state={"takeovers": 3} if alone else {"waiting_since": 5})
        claim = await queue.store.claim_quarantined() if alone else (await queue.store.claim(1))[0]
        assert claim is not None
        executor = an_executor(queue, sent.append)
        (late,) = executor.take([replace(claim, lease_end=lease_clock() + left)])
        await (executor.execute_alone(late) if alone else executor.execute(late))
        await executor.completer.flush()
        row = await queue.row(row_id)
        assert (row.status, row.attempts, row.claimed_by, row.waiting_since) == ("pending", 0, None, None)
        assert (row.quarantine_rounds, sent) == (0, [])
        again = await queue.store.claim_quarantined() if alone else (await queue.store.claim(1))[0]
        assert again is not None
        assert again.id == row_id

    async def test_a_failed_give_back_stops_claims(self, queue: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
        """A worker that cannot give back what it has not sent claims nothing, until it can."""
        first = await queue.put()
        (claim,) = await queue.store.claim(1)
        executor = an_executor(queue, ok)
        worker = Worker(queue.store, executor, continuously(queue, executor))
        tried = asyncio.Event()

        async def away(_returns: object) -> Any:
            tried.set()
            raise StorageUnavailable("away")

        with monkeypatch.context() as patched:
            patched.setattr(queue.store, "complete", away)
            executor.abandon(executor.take([claim]))
            await tried.wait()
            second = await queue.put(url="http://127.0.0.1/second")
            with pytest.raises(StorageUnavailable):
                await worker.run_once()
            assert (await queue.row(second)).claimed_by is None

        async def both_are_delivered() -> bool:
            await worker.run_once()
            return {(await queue.row(each)).status for each in (first, second)} == {"delivered"}

        await until(both_are_delivered)

    async def test_only_a_wait_ends_dead_of_age(self, queue: Queue) -> None:
        """A row that has waited for longer than any may is given back for another reason: it stays, until it waits again."""
        row_id = await queue.put()
        since = int(await queue.database.time() * 1000) - WAITED
        await queue.run(f"UPDATE flowactions_outbox SET waiting_since = {since}")  # noqa: S608
        (claim,) = await queue.store.claim(1)
        assert await queue.store.complete([Returned(claim)]) == {row_id: End("written", "pending")}
        assert (await queue.row(row_id)).waiting_since == since
        await a_schedule(queue, ok, signing_secret=fail).tick()
        row = await queue.row(row_id)
        assert (row.status, row.waiting_since) == ("dead", None)
        assert row.last_error.startswith("it has waited too long: ")

    @pytest.mark.usefixtures("nobody_to_wait_for")
    @pytest.mark.parametrize("waits_for", [None, "the host"])
    @pytest.mark.parametrize("is_lost", [False, True])
    async def test_what_a_person_has_cancelled_has_not_waited_too_long(
        self, queue: Queue, waits_for: str | None, is_lost: bool
    ) -> None:
        """Cancelled while a worker had it, or after its return was written and the answer lost: the host was told by that."""
        told: list[object] = []

        async def finished(delivery: object) -> None:
            told.append(delivery)

        row_id = await queue.put()
        (claim,) = await queue.store.claim(1)
        if is_lost:
            await queue.store.complete([Returned(claim, waits_for=waits_for)])
        assert await queue.queries.cancel(row_id, "acme", "no more")
        completer = Completer(queue.store, finished)
        completer.hand.take([claim])
        completer.complete(Returned(claim, waits_for=waits_for))
        await completer.flush()
        assert told == []
        row = await queue.row(row_id)
        assert (row.status, row.error_class, row.last_error) == ("dead", "cancelled", "no more")


@pytest.mark.parametrize("size", [SMALL_BYTES, SMALL_BYTES + 1])
async def test_a_large_body_leaves_memory_with_its_request(queue: Queue, size: int) -> None:
    """An outcome that waits for the database keeps no body of more than 64 KiB."""
    written: list[Completion] = []
    await queue.put(body=b"x" * size)
    executor = an_executor(queue, ok)
    executor.completer = Completer(queue.store, None, [written.extend])
    executor.hand = executor.completer.hand
    (claim,) = executor.take(await queue.store.claim(1))
    await executor.execute(claim)
    await executor.completer.flush()
    ((kept, status),) = [(each.delivery.body, each.status) for each in written]
    assert status == "delivered"
    assert (kept is None) == (size > SMALL_BYTES)


async def test_a_row_whose_secret_could_not_be_asked_for_is_executed_when_it_is_claimed_again(
    queue: Queue,
) -> None:
    """A delivery that ends while it waits for its secret leaves nothing in hand."""

    async def never(_origin: object) -> None:
        await asyncio.Event().wait()

    queue.store.contact.prefix = "aaaaaaaa"
    executor = an_executor(queue, ok, signing_secret=never)
    await queue.put()
    (claim,) = executor.take(await queue.store.claim(1))
    asking = asyncio.ensure_future(executor.execute(claim))
    await asyncio.sleep(0)
    asking.cancel()
    await asyncio.wait({asking})
    assert asking.cancelled()
    await queue.expire_claims()
    assert executor.take(await queue.store.claim(1)) != []


class TestLost:
    async def lose(self, queue: Queue, how: str) -> str:
        """Claim a row, take it away, and write its outcome; give its id."""
        row_id, contact = await queue.put(), queue.store.contact
        contact.prefix = "00000001"
        (claim,) = await queue.store.claim(1)
        if how == "reclaimed":
            await queue.expire_claims()
            contact.prefix = "00000002"
            await queue.store.claim(1)
            contact.prefix = "00000001"
        elif how == "purged":
            store = Purge(queue.database, "acme")
            await store.begin(Actor("ada", "Ada", "operator"))
            await store.remove()
        else:
            await queue.run("UPDATE flowactions_outbox SET status = 'dead', claimed_by = NULL")
        executor = an_executor(queue, ok)
        executor.take([claim])
        await executor.execute(claim)
        await executor.completer.flush()
        assert executor.hand.state(row_id) is None
        return row_id

    @pytest.mark.parametrize(
        ("how", "line"),
        [
            ("reclaimed", "was reclaimed by another worker"),
            ("purged", "was removed while it was sent: its organization was purged"),
            ("changed", "was changed to dead while it was sent, and its outcome is dropped"),
        ],
    )
    async def test_what_ends_a_claim_is_named(
        self, queue: Queue, how: str, line: str, caplog: pytest.LogCaptureFixture
    ) -> None:
        """Another worker; a purge; somebody who has changed the row."""
        row_id = await self.lose(queue, how)
        lines = [each.getMessage() for each in caplog.records if each.name == "flowactions.outbox"]
        assert lines == [f"delivery {row_id} {line}"]

    async def test_a_purge_has_the_worker_forget_what_hangs(self, queue: Queue) -> None:
        """Pages name what a worker limits: nothing of a purged organization stays there."""
        await queue.put()
        (claim,) = await queue.store.claim(1)
        executor = an_executor(queue, ok)
        limits = executor.load.limits
        host = (claim.organization_id, claim.destination)
        limits.record(claim.lane + 1, host, Outcome(0, 0, error="timed out after 10 s"))
        assert limits.limited()
        await queue.run("DELETE FROM flowactions_outbox")
        executor.take([claim])
        await executor.execute(claim)
        await executor.completer.flush()
        assert limits.limited() == {}

    @pytest.mark.parametrize("waits", [False, True], ids=["an outcome", "given back"])
    async def test_what_a_worker_claimed_again_itself_is_written_under_the_new_claim(
        self, queue: Queue, waits: bool, caplog: pytest.LogCaptureFixture
    ) -> None:
        """Its lease ended while it stood still, before the answer to its own claim was read: nobody else is blamed."""
        queue.store.contact.prefix = "00000001"
        row_id = await queue.put()
        executor = an_executor(queue, ok)
        (claim,) = executor.take(await queue.store.claim(1))
        await queue.expire_claims()
        with executor.hand.claiming():
            (again,) = await queue.store.claim(1)
            if waits:
                executor.abandon([claim])
            else:
                await executor.execute(claim)
            await executor.completer.flush()
            row = await queue.row(row_id)
            assert (row.status, row.claimed_by) == ("pending" if waits else "delivered", None)
            assert executor.take([again]) == []  # all is written under this claim
        if waits:
            (later,) = await queue.store.claim(1)
            assert executor.take([later]) == [later]
        assert caplog.text == ""


async def test_what_arrived_while_a_worker_stood_still_is_written_before_it_claims(queue: Queue) -> None:
    """It stands still for longer than a lease in the pause before a claim: the claim waits for what it has in flight."""
    now, slow = [0.0], SlowAnswer()

    def stand_still() -> None:
        now[0] += 40
        slow.released.set()

    row_id = await queue.put()
    with LagMeter(lambda: now[0]) as lag:
        executor = an_executor(queue, slow, lag=lag)
        claims = continuously(queue, executor)
        await claims.run_once()
        await slow.arrived.wait()
        await queue.expire_claims()
        await executor.settle()
        asyncio.get_running_loop().call_soon(stand_still)
        await claims.run_once()
        assert slow.released.is_set()
        assert executor.load.claimed == 1
        await claims.quiesce()
        await executor.completer.flush()
    assert (await queue.row(row_id)).status == "delivered"
