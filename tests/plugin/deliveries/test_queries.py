from __future__ import annotations

from typing import Any

import httpx
import pytest

from flowactions_plugin.egress.attempt import Outcome
from flowactions_plugin.insights.filters import Filter
from flowactions_plugin.queue.rules import Transition
from tests.queueing import Queue, a_schedule

OK = Outcome(0, 1, status_code=200)


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
        """A live row, another tenant's row and a missing one are all the same: there is none (§4.3)."""
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
        assert await queue.queries.retry_many("acme", Filter(), reset_attempts=reset) == 1
        row = await queue.row(row_id)
        assert (row.status, row.attempts, row.finished_at) == ("pending", attempts, None)
        await a_schedule(queue, lambda request: httpx.Response(503)).tick()
        assert (await queue.row(row_id)).status == then
        found = await queue.queries.stored(row_id, "acme")
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
        wanted = Filter.of(agent="b", type="t2", destination="https://x:443")
        assert await queue.queries.retry_many("globex", wanted, reset_attempts=True) == 0
        assert await queue.queries.retry_many("acme", wanted, reset_attempts=True) == 1
        assert (await queue.row(meant)).status == "pending"
        assert [(await queue.row(row_id)).status for row_id in others] == ["dead"] * 3
        assert (await queue.row(live)).attempts == 0

    async def test_by_time_and_by_ids(self, queue: Queue) -> None:
        """The start of a span is included, its end is not; ids name rows one by one."""
        ids = [await self.dead(queue) for _ in range(4)]
        for hour, row_id in enumerate(ids):
            await queue.run(f"UPDATE flowactions_outbox SET finished_at = {hour} WHERE id = '{row_id}'")  # noqa: S608
        span = Filter.of(ended_since=1, ended_before=3)
        assert await queue.queries.retry_many("acme", span, reset_attempts=False) == 2
        named = Filter.of(id=(ids[0], ids[1]))
        assert await queue.queries.retry_many("acme", named, reset_attempts=False) == 1
        states = [(await queue.row(row_id)).status for row_id in ids]
        assert states == ["pending", "pending", "pending", "dead"]


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
        """Another tenant's is not touched; one that is being sent ends as its answer says."""
        row_id = await queue.put()
        assert not await queue.queries.cancel(row_id, "globex", "no")
        (claimed,) = await queue.store.claim(1)
        assert await queue.queries.cancel(row_id, "acme", "no")
        assert await queue.complete(claimed, OK, Transition("delivered"))
        assert (await queue.row(row_id)).status == "delivered"
        assert not await queue.queries.cancel(row_id, "acme", "no")
