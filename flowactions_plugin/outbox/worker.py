"""The delivery worker: once a tick it claims what is due, sends it, and writes what came of it (§8)."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from typing import Any, Final, TypeVar

from flowactions_plugin.errors import StorageUnavailable
from flowactions_plugin.outbox.executor import Courier
from flowactions_plugin.outbox.rules import Timing, loggable
from flowactions_plugin.outbox.store import OutboxStore

log = logging.getLogger("flowactions.outbox")

T = TypeVar("T")

RECALL_SECONDS: Final = 60.0
"""How often the worker looks for rows that a clock set back has left behind."""

OUTAGE_CAP_SECONDS: Final = 30.0

FULL_CLAIM_BYTES: Final = 1024 * 1024
"""A claim of this size may have been cut short by `CLAIM_BYTES`: the tick claims once more."""


def outage_delay(failures: int) -> float:
    """Give the seconds to wait after the database failed ``failures`` times in a row: 0.5, 1, 2, … 30."""
    return min(OUTAGE_CAP_SECONDS, 0.5 * 2.0 ** min(failures - 1, 10))


class Worker:
    """Delivers what is in the outbox.

    Args:
        store: the queue.
        courier: carries what is claimed.
        tick_seconds: from the start of a tick to the start of the next.
        claim_limit: rows per tick.
        per_destination: rows in flight to one destination; ``None``: as many as there are.
        timing: when rows are sent in quarantine.
    """

    def __init__(
        self,
        store: OutboxStore,
        courier: Courier,
        *,
        tick_seconds: float,
        claim_limit: int,
        per_destination: int | None = None,
        timing: Timing = Timing(),  # noqa: B008  immutable
    ) -> None:
        self._store = store
        self._courier = courier
        self._tick_seconds = tick_seconds
        self._claim_limit = claim_limit
        self._per_destination = per_destination
        self._timing = timing
        self._recall_at = 0.0
        self._quarantine_at = 0.0
        self._tick_at = 0.0
        self._hurry = asyncio.Event()

    async def run(self) -> None:
        """Tick at once, then every ``tick_seconds``, until cancelled.

        Ticks never overlap: one that takes longer than a period is followed by the next at once. While the
        database is away, the outage is logged once and tried again with backoff.

        However it ends, what is being sent is finished within its deadline and its outcome written; what was
        claimed and not begun is given back.
        """
        self._courier.stopping = False
        self._hurry.clear()
        # What kills a worker at once must not keep it from delivering the rest, however often it is restarted.
        self._quarantine_at = asyncio.get_running_loop().time() + self._timing.quarantine_seconds
        try:
            await self._keep_ticking()
        except asyncio.CancelledError:
            self._hurry.set()
            raise
        finally:
            await self._to_the_end(self._finish())

    async def _keep_ticking(self) -> None:
        failures = 0
        while True:
            try:
                pause = await self._to_the_end(self._round())
                if failures:
                    log.info("the outbox is reachable again")
                failures = 0
            except StorageUnavailable as exc:
                failures += 1
                if failures == 1:
                    reason = loggable(str(exc))
                    log.error("the outbox is out of reach, trying again with backoff: %s", reason)  # noqa: TRY400
                await asyncio.sleep(outage_delay(failures))
            else:
                await self._rest(pause)

    async def _round(self) -> float:
        """Do a tick's work, and give the seconds until the next."""
        clock = asyncio.get_running_loop().time
        await self._recall()
        await self._quarantine()
        if clock() >= self._tick_at:
            started = clock()
            await self.tick()
            self._tick_at = started + self._tick_seconds
        return min(self._tick_at, self._quarantine_at) - clock()

    async def _rest(self, seconds: float) -> None:
        await asyncio.sleep(max(0.0, seconds))

    async def _recall(self) -> None:
        now = asyncio.get_running_loop().time()
        if now >= self._recall_at:
            recalled = await self._store.recall()
            if recalled:
                log.warning("%s deliveries were due far ahead: the clock was set back; they go on", recalled)
            self._recall_at = now + RECALL_SECONDS

    async def _quarantine(self) -> None:
        """Send a row in quarantine, if it is time and there is one: alone, with nothing else in flight."""
        clock = asyncio.get_running_loop().time
        if clock() < self._quarantine_at:
            return
        if await self._store.any_quarantined():
            await self._quiesce()
            await self._courier.flush()
            delivery = None if self._courier.stopping else await self._store.claim_quarantined()
            if delivery is not None:
                await self._courier.deliver_alone(delivery)
                await self._courier.flush()
        self._quarantine_at = clock() + self._timing.quarantine_seconds

    async def _quiesce(self) -> None:
        """Wait until nothing is in flight: between two ticks, nothing is."""

    async def _to_the_end(self, work: Coroutine[Any, Any, T]) -> T:
        """Await a piece of work to its end even when cancelled meanwhile, then be cancelled."""
        task = asyncio.ensure_future(work)
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            self._courier.stopping = True
            self._hurry.set()
            await asyncio.wait({task})
            if not task.cancelled() and (error := task.exception()) is not None:
                log.warning("stopping although not all is done: %s", loggable(str(error)))
            raise

    async def _finish(self) -> None:
        """Finish what is in flight and write what became of it.

        A worker that ended by itself waits for a database that is away, until it is cancelled: nobody waits for it.
        """
        self._courier.stopping = True
        await self._quiesce()
        failures = 0
        try:
            while not await self._flushed():
                failures += 1
                if await self._hurried(outage_delay(failures)):
                    break
        except Exception:
            log.exception("what became of deliveries could not be written")
        if self._courier.unwritten:
            log.warning(
                "the outcomes of %s deliveries could not be written; they will be sent again under the same id",
                self._courier.unwritten,
            )

    async def _flushed(self) -> bool:
        try:
            await self._courier.flush()
        except StorageUnavailable:
            return False
        return True

    async def _hurried(self, seconds: float) -> bool:
        """Wait, but not when the worker is to stop now; tell whether it is."""
        try:
            async with asyncio.timeout(seconds):
                return await self._hurry.wait()
        except TimeoutError:
            return False

    async def tick(self) -> int:
        """Write what is left to write, claim up to the limit, make one attempt for each row, write every outcome.

        Large rows are claimed and sent a few at a time, within the same tick.

        Returns:
            How many rows were claimed.

        Raises:
            StorageUnavailable: the database failed; outcomes that could not be written are kept.
        """
        await self._courier.flush()
        total = 0
        while total < self._claim_limit and not (total and self._courier.stopping):
            claimed = await self._store.claim(self._claim_limit - total, per_destination=self._per_destination)
            total += len(claimed)
            size = sum(each.size for each in claimed)
            await self._send(claimed)
            if size < FULL_CLAIM_BYTES:
                break
        return total

    async def _send(self, claimed: list[Any]) -> None:
        admitted = await self._courier.admit(claimed)
        secrets = await self._courier.secrets(admitted)
        results = await asyncio.gather(
            *(self._courier.deliver(delivery, secrets) for delivery in admitted), return_exceptions=True
        )
        await self._courier.flush()
        for result in results:
            if isinstance(result, BaseException):
                raise result
