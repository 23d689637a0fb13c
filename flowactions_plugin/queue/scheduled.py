"""Scheduled claims: each tick claims due rows up to a limit, and sends them."""

from __future__ import annotations

import asyncio

from flowactions_plugin.queue.claim_store import ClaimStore
from flowactions_plugin.queue.claimed import ClaimedDelivery
from flowactions_plugin.queue.executor import Executor
from flowactions_plugin.queue.rules import Timing
from flowactions_plugin.queue.worker import FULL_CLAIM_BYTES


class ScheduledClaims:
    """Claims at once, then every ``tick_seconds`` (§8).

    Ticks never overlap: one that takes longer than a period is followed by the next at once.

    Args:
        store: the queue.
        executor: executes what is claimed.
        tick_seconds: from the start of a tick to the start of the next.
        claim_limit: rows per tick.
        per_destination: rows in flight to one destination; ``None``: no limit.
        timing: how often the worker has rows to send in quarantine.
    """

    def __init__(
        self,
        store: ClaimStore,
        executor: Executor,
        *,
        tick_seconds: float,
        claim_limit: int,
        per_destination: int | None = None,
        timing: Timing = Timing(),  # noqa: B008  immutable
    ) -> None:
        self._store = store
        self._executor = executor
        self._tick_seconds = tick_seconds
        self._claim_limit = claim_limit
        self._per_destination = per_destination
        self._timing = timing
        self._tick_at = 0.0

    async def settle(self) -> None:
        """Do nothing: a tick begins by writing."""

    async def run_once(self) -> float:
        """Run a tick if it is time; see `ClaimStrategy`."""
        clock = asyncio.get_running_loop().time
        # Rows that were passed over while leases were in doubt do not wait for the tick after that.
        self._tick_at = min(self._tick_at, clock() + self._store.contact.remaining())
        if clock() >= self._tick_at:
            started = clock()
            await self.tick()
            self._tick_at = started + self._tick_seconds
        return min(self._tick_at - clock(), self._timing.quarantine_seconds)

    async def wait(self, seconds: float) -> None:
        """Wait for so long."""
        await asyncio.sleep(max(0.0, seconds))

    async def quiesce(self) -> None:
        """Do nothing: between two ticks, nothing is in flight."""

    async def tick(self) -> int:
        """Write what is left to write, claim up to the limit, make one attempt for each row, write every outcome.

        Large rows are claimed and executed a few at a time, within the same tick.

        Returns:
            How many rows were claimed.

        Raises:
            StorageUnavailable: the database failed; outcomes that could not be written are kept.
        """
        await self._executor.completer.flush()
        total = 0
        while total < self._claim_limit and not (total and self._executor.stopping):
            await self._executor.catch_up()
            claimed = await self._store.claim(self._claim_limit - total, per_destination=self._per_destination)
            total += len(claimed)
            size = sum(each.size for each in claimed)
            await self._execute(claimed)
            if size < FULL_CLAIM_BYTES:
                break
        return total

    async def _execute(self, claimed: list[ClaimedDelivery]) -> None:
        admitted = await self._executor.admit(claimed)
        secrets = self._executor.secrets()
        results = await asyncio.gather(
            *(self._executor.execute(delivery, secrets) for delivery in admitted), return_exceptions=True
        )
        await self._executor.completer.flush()
        for result in results:
            if isinstance(result, BaseException):
                raise result
