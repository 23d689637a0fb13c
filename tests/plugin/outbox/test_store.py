from __future__ import annotations

import asyncio
from typing import Any

import httpx
import pytest

from flowactions_hookspecs import FlowNodeOrigin
from flowactions_plugin.egress.attempt import Outcome
from flowactions_plugin.egress.sender import Sender
from flowactions_plugin.outbox.claimed import Return
from flowactions_plugin.outbox.queries import Filter
from flowactions_plugin.outbox.rules import Transition
from tests.queueing import Queue, a_schedule, as_transport, claimed, validate

OK = Outcome(0, 1, status_code=200)
FAILED = Outcome(0, 1, status_code=500)


class TestClaims:
    async def test_a_claim_takes_the_oldest_up_to_the_limit(self, queue: Queue) -> None:
        """Rows that are due are claimed oldest first, and no more than the limit (§8)."""
        ids = [await queue.put() for _ in range(5)]
        for age, row_id in enumerate(ids):
            due = 1000 - age
            await queue.run(f"UPDATE flowactions_outbox SET next_attempt_at = {due} WHERE id = '{row_id}'")  # noqa: S608
        claimed = await queue.store.claim(3)
        assert {delivery.id for delivery in claimed} == set(ids[2:])

    async def test_a_row_that_is_not_due_is_left(self, queue: Queue) -> None:
        """nextAttemptAt must have elapsed."""
        row_id = await queue.put()
        (claimed,) = await queue.store.claim(10)
        await queue.complete(claimed, FAILED, Transition("retrying", 60))
        assert await queue.store.claim(10) == []
        assert (await queue.row(row_id)).status == "retrying"

    async def test_a_claimed_row_is_claimed_by_nobody_else(self, queue: Queue) -> None:
        """Simultaneous claims share the rows out without overlap."""
        ids = {await queue.put() for _ in range(30)}
        claims = await asyncio.gather(*(queue.store.claim(10) for _ in range(6)))
        taken = [delivery.id for claim in claims for delivery in claim]
        assert sorted(taken) == sorted(ids)

    async def test_an_expired_lease_is_reclaimed_without_using_up_an_attempt(self, queue: Queue) -> None:
        """The new holder writes; the old one, waking late, changes nothing."""
        row_id = await queue.put()
        (late,) = await queue.store.claim(1)
        await queue.expire_claims()
        (second,) = await queue.store.claim(1)
        assert (second.id, second.attempts, second.reclaims) == (row_id, 0, 1)
        assert not await queue.complete(late, OK, Transition("delivered"))
        assert not await queue.store.give_back([Return(late)])
        assert not await queue.mark_dead(late, "late")
        assert (await queue.row(row_id)).status == "pending"
        assert await queue.complete(second, FAILED, Transition("retrying", 5))
        row = await queue.row(row_id)
        assert (row.status, row.attempts, row.takeovers, row.claim_token) == ("retrying", 1, 0, None)

    async def test_a_finished_row_is_never_claimed(self, queue: Queue) -> None:
        """Delivered and dead rows are done."""
        for status in ("delivered", "dead"):
            await queue.put()
            (claimed,) = await queue.store.claim(1)
            await queue.complete(claimed, OK, Transition(status))
        assert await queue.store.claim(10) == []


class TestRetryOfADeadRow:
    async def test_a_dead_row_becomes_pending_and_due(self, queue: Queue) -> None:
        """It gets one more attempt; its history stays (§3.1, §4.3)."""
        row_id = await queue.put(max_attempts=1)
        await a_schedule(queue, lambda request: httpx.Response(500)).tick()
        assert (await queue.row(row_id)).status == "dead"
        assert await queue.queries.retry(row_id, "acme")
        row = await queue.row(row_id)
        assert (row.status, row.attempts, row.finished_at) == ("pending", 1, None)
        await a_schedule(queue, lambda request: httpx.Response(500)).tick()
        row = await queue.row(row_id)
        assert (row.status, row.attempts) == ("dead", 2)

    async def test_only_a_dead_row_of_the_organization(self, queue: Queue) -> None:
        """A live row, another tenant's row and a missing one are all the same: there is none."""
        live = await queue.put()
        dead = await queue.put(organization_id="globex")
        await queue.run(f"UPDATE flowactions_outbox SET status = 'dead' WHERE id = '{dead}'")  # noqa: S608
        assert not await queue.queries.retry(live, "acme")
        assert not await queue.queries.retry(dead, "acme")
        assert not await queue.queries.retry("nothing", "acme")
        assert await queue.queries.retry(dead, "globex")


class TestReplay:
    @staticmethod
    async def dead(queue: Queue, **changes: Any) -> str:
        row_id = await queue.put(**{"max_attempts": 2, **changes})
        for _ in range(2):
            await queue.run(f"UPDATE flowactions_outbox SET next_attempt_at = 0 WHERE id = '{row_id}'")  # noqa: S608
            await a_schedule(queue, lambda request: httpx.Response(500)).tick()
        assert (await queue.row(row_id)).status == "dead"
        return row_id

    @pytest.mark.parametrize(("reset", "attempts", "then"), [(False, 2, "dead"), (True, 0, "retrying")])
    async def test_attempts_are_kept_or_counted_anew(
        self, queue: Queue, reset: bool, attempts: int, then: str
    ) -> None:
        """Kept, a row gets one more attempt; reset, it gets all of them. The log goes on in both cases."""
        row_id = await self.dead(queue)
        assert await queue.queries.retry_many("acme", Filter(), reset_attempts=reset, limit=10) == 1
        row = await queue.row(row_id)
        assert (row.status, row.attempts, row.finished_at) == ("pending", attempts, None)
        await a_schedule(queue, lambda request: httpx.Response(503)).tick()
        assert (await queue.row(row_id)).status == then
        found = await queue.queries.detail(row_id, "acme")
        assert found is not None
        assert [(attempt.number, attempt.status_code) for attempt in found[1]] == [(1, 500), (2, 500), (3, 503)]

    async def test_only_dead_rows_that_meet_every_condition(self, queue: Queue) -> None:
        """Conditions are joined by and; rows that live, and other tenants' rows, stay as they are."""
        meant = await self.dead(queue, agent_id="b", event_type="t2", destination="https://x:443")
        others = [
            await self.dead(queue, agent_id="a", event_type="t2", destination="https://x:443"),
            await self.dead(queue, agent_id="b", event_type="t1", destination="https://x:443"),
            await self.dead(queue, agent_id="b", event_type="t2", destination="https://y:443"),
        ]
        live = await queue.put(agent_id="b", event_type="t2", destination="https://x:443")
        wanted = Filter(agent_id="b", event_type="t2", destination="https://x:443")
        assert await queue.queries.retry_many("globex", wanted, reset_attempts=True, limit=10) == 0
        assert await queue.queries.retry_many("acme", wanted, reset_attempts=True, limit=10) == 1
        assert (await queue.row(meant)).status == "pending"
        assert [(await queue.row(row_id)).status for row_id in others] == ["dead"] * 3
        assert (await queue.row(live)).attempts == 0

    async def test_by_time_and_by_ids(self, queue: Queue) -> None:
        """The start of a span is included, its end is not; ids name rows one by one."""
        ids = [await self.dead(queue) for _ in range(4)]
        for hour, row_id in enumerate(ids):
            await queue.run(f"UPDATE flowactions_outbox SET finished_at = {hour} WHERE id = '{row_id}'")  # noqa: S608
        span = Filter(finished_from=1, finished_before=3)
        assert await queue.queries.retry_many("acme", span, reset_attempts=False, limit=10) == 2
        named = Filter(ids=(ids[0], ids[1]))
        assert await queue.queries.retry_many("acme", named, reset_attempts=False, limit=10) == 1
        states = [(await queue.row(row_id)).status for row_id in ids]
        assert states == ["pending", "pending", "pending", "dead"]

    async def test_the_limit_takes_the_oldest(self, queue: Queue) -> None:
        """Asked again, it goes on where it stopped."""
        ids = sorted([await self.dead(queue) for _ in range(5)])
        for expected in (2, 2, 1, 0):
            assert await queue.queries.retry_many("acme", Filter(), reset_attempts=False, limit=2) == expected
            states = [(await queue.row(row_id)).status for row_id in ids]
            assert states == sorted(states, reverse=True)


class TestCancelling:
    async def test_a_waiting_row_is_ended(self, queue: Queue) -> None:
        """It is dead with the reason, is not sent, and can be retried."""
        row_id = await queue.put()
        assert await queue.queries.cancel(row_id, "acme", "cancelled by Ada")
        row = await queue.row(row_id)
        assert (row.status, row.last_error, row.attempts) == ("dead", "cancelled by Ada", 0)
        assert await queue.store.claim(10) == []
        assert not await queue.queries.cancel(row_id, "acme", "again")
        assert await queue.queries.retry(row_id, "acme")

    async def test_only_a_waiting_row_of_the_organization(self, queue: Queue) -> None:
        """A row that is being sent, and another tenant's, are not touched."""
        row_id = await queue.put()
        assert not await queue.queries.cancel(row_id, "globex", "no")
        (claimed,) = await queue.store.claim(1)
        assert not await queue.queries.cancel(row_id, "acme", "no")
        assert await queue.complete(claimed, OK, Transition("delivered"))


class TestWorker:
    async def test_a_tick_takes_no_more_than_the_limit(self, queue: Queue) -> None:
        """Fifty rows a tick by default, here two (§8)."""
        for _ in range(5):
            await queue.put()
        claims = a_schedule(queue, lambda request: httpx.Response(204), limit=2)
        assert [await claims.tick() for _ in range(4)] == [2, 2, 1, 0]

    async def test_a_stored_row_that_cannot_be_read_ends_and_delays_no_other(self, queue: Queue) -> None:
        """Garbage in a row makes that row dead; its neighbours are delivered."""
        broken, healthy = await queue.put(), await queue.put()
        await queue.run(f"UPDATE flowactions_outbox SET origin = 'garbage' WHERE id = '{broken}'")  # noqa: S608
        await a_schedule(queue, lambda request: httpx.Response(200)).tick()
        row = await queue.row(broken)
        assert row.status == "dead"
        assert "cannot be read" in row.last_error
        assert (await queue.row(healthy)).status == "delivered"

    @pytest.mark.parametrize(
        ("error", "said"),
        [
            (ConnectionResetError("reset by peer"), "reset by peer"),
            (httpx.DecodingError("not gzip"), "not gzip"),
            (httpx.ReadError("the connection broke"), "the connection broke"),
            (httpx.ReadError(""), "ReadError"),
        ],
    )
    async def test_a_transports_network_error_is_an_outcome(
        self, queue: Queue, error: Exception, said: str
    ) -> None:
        """A failure of the network is a failed attempt, in whatever form the transport tells it."""
        row_id = await queue.put()

        def fail(request: httpx.Request) -> httpx.Response:
            raise error

        await a_schedule(queue, fail).tick()
        row = await queue.row(row_id)
        assert (row.status, row.attempts) == ("retrying", 1)
        assert row.last_error.startswith(said)

    async def test_a_stored_url_that_is_not_allowed_ends_at_once(self, queue: Queue) -> None:
        """A URL that was planted in the queue meets the same rules, and is dead without a request (§2.4)."""
        sent: list[Any] = []
        row_id = await queue.put(url="http://user@127.0.0.1/")
        await a_schedule(queue, sent.append).tick()
        row = await queue.row(row_id)
        assert (row.status, row.attempts, sent) == ("dead", 1, [])
        assert "user name" in row.last_error

    async def test_a_signing_secret_that_hangs_delays_its_delivery_only(
        self, queue: Queue, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A signing secret that never comes lets its delivery wait, and the others go."""
        monkeypatch.setattr("flowactions_plugin.outbox.host_calls.HOST_SECONDS", 0.05)
        other = FlowNodeOrigin(organization_id="acme", agent_id="a", flow_id="f", node_id="hangs")
        waiting, healthy = await queue.put(origin=other), await queue.put()

        async def secret(origin: object) -> str:
            if origin == other:
                await asyncio.Event().wait()
            return "s"

        await a_schedule(queue, lambda request: httpx.Response(200), signing_secret=secret).tick()
        assert (await queue.row(healthy)).status == "delivered"
        row = await queue.row(waiting)
        assert (row.status, row.attempts, row.claim_token) == ("pending", 0, None)


async def test_an_attempt_ends_at_its_deadline() -> None:
    """A receiver that never answers is a failure after the total deadline (§8)."""

    async def hang(request: httpx.Request) -> httpx.Response:
        await asyncio.Event().wait()
        raise AssertionError

    sender = Sender(as_transport(hang), validate, lambda: 0.0, lambda: 0.0, deadline_seconds=0.05)
    outcome = await sender.send(claimed(), None)
    assert isinstance(outcome, Outcome)
    assert outcome.error == "timed out after 0.05 s while sending the request or waiting for the answer"
