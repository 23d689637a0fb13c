"""A worker that has claimed more rows of one lane than it may send at once."""

from __future__ import annotations

from flowactions_plugin.egress.attempt import Outcome
from flowactions_plugin.queue.continuous import ContinuousClaims
from flowactions_plugin.queue.executor import Executor
from tests.queueing import Queue


async def a_worker_that_holds(queue: Queue, executor: Executor, rows: int) -> ContinuousClaims:
    """Have a worker claim rows of one lane that answers: two of them begin, as many more wait in its memory."""
    claims = ContinuousClaims(queue.store, executor, slots=50, per_destination=2)
    (ask,) = await queue.store.oldest(rows, None)
    executor.load.limits.record(
        ask.lane, (ask.organization_id, ask.destination), Outcome(0, 0, status_code=200)
    )
    await claims.run_once()
    assert (claims._lanes.total.in_flight, claims._lanes.total.waiting) == (2, 2)
    return claims


async def look_again(claims: ContinuousClaims) -> None:
    """Have it look whether it may still begin what waits, as it does each half second."""
    claims._return_at = 0.0
    await claims.run_once()
