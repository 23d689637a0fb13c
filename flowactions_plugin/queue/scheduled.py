"""Scheduled claims: a tick now and then, which claims the oldest rows of all and sends them."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence

from flowactions_plugin.clock import Clock, timer
from flowactions_plugin.queue.claimed import ClaimedDelivery
from flowactions_plugin.queue.claims import ClaimStore
from flowactions_plugin.queue.executor import Executor
from flowactions_plugin.queue.lanes import MOST_BYTES


class ScheduledClaims:
    """Claims once a tick.

    Args:
        store: the queue.
        executor: executes what is claimed.
        tick_seconds: from the start of a tick to the start of the next.
        claim_limit: rows per tick.
        per_destination: rows of a tick for one organization at one destination; ``None``: no limit.
        clock: monotonic seconds.
    """

    def __init__(
        self,
        store: ClaimStore,
        executor: Executor,
        *,
        tick_seconds: float,
        claim_limit: int,
        per_destination: int | None = None,
        clock: Clock = timer,
    ) -> None:
        self._store = store
        self._executor = executor
        self._tick_seconds = tick_seconds
        self._claim_limit = claim_limit
        self._per_destination = per_destination
        self._clock = clock
        self._tick_at = 0.0

    async def run_once(self) -> float:
        """Run a tick if it is time; see `ClaimStrategy`."""
        started = self._clock()
        if started >= self._tick_at:
            await self.tick()
            self._tick_at = started + self._tick_seconds
        return self._tick_at - self._clock()

    async def wait(self, seconds: float) -> None:
        """Wait for so long."""
        await asyncio.sleep(max(0.0, seconds))

    async def quiesce(self) -> None:
        """Do nothing: between two ticks, nothing is in flight."""

    async def tick(self) -> int:
        """Write what is left to write, claim up to the limit, make one attempt for each row, write every outcome.

        Large rows are executed a few at a time. What could not begin in time is given back.

        Returns:
            How many rows were sent.

        Raises:
            StorageUnavailable: the database failed; outcomes that could not be written are kept.
        """
        await self._executor.completer.flush()
        await self._executor.settle()
        latest = self._clock() + self._store.contact.timing.wait_seconds
        sent: Counter[tuple[str, str]] = Counter()
        goes_on = True
        while goes_on:
            asks = await self._store.oldest(self._claim_limit, self._per_destination, sent)
            with self._executor.hand.claiming():
                claimed = self._executor.take(await self._store.claim(asks)) if asks else []
            is_over = await self._send(claimed, latest, sent)
            # What is sent one after another goes on with what these have released.
            goes_on = not is_over and any(row.sequence is not None for row in claimed)
        return sent.total()

    async def _send(
        self, left: Sequence[ClaimedDelivery], latest: float, sent: Counter[tuple[str, str]]
    ) -> bool:
        """Send what was claimed and count it; return whether the tick is over."""
        is_over = False
        try:
            while left and not is_over:
                now, left = _within(left, MOST_BYTES)
                sent.update((row.organization_id, row.destination) for row in now)
                await self._execute(now)
                gone = await self._store.withdrawn(left) if left else ()
                self._executor.abandon([row for row in left if row.id in gone])
                left = [row for row in left if row.id not in gone]
                is_over = self._executor.stopping or self._clock() > latest
        finally:
            self._executor.abandon(left)
        return is_over

    async def _execute(self, batch: Sequence[ClaimedDelivery]) -> None:
        results = await asyncio.gather(
            *(self._executor.execute(delivery) for delivery in batch), return_exceptions=True
        )
        await self._executor.completer.flush()
        for result in results:
            if isinstance(result, BaseException):
                raise result


def _within(
    claimed: Sequence[ClaimedDelivery], most: int
) -> tuple[list[ClaimedDelivery], list[ClaimedDelivery]]:
    """Divide a claim into its first rows that have so many bytes together, and the rest; one row is always among the first."""
    now: list[ClaimedDelivery] = []
    for each in claimed:
        most -= each.size
        if now and most < 0:
            break
        now.append(each)
    return now, list(claimed[len(now) :])
