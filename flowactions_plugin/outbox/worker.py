"""The delivery worker: once a tick it claims what is due, sends it, and writes what came of it (§8)."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable
from contextlib import suppress
from typing import Final

from flowactions_plugin.errors import StorageUnavailable
from flowactions_plugin.outbox.courier import Courier
from flowactions_plugin.outbox.store import OutboxStore

log = logging.getLogger("flowactions.outbox")

RECALL_SECONDS: Final = 60.0
"""How often the worker looks for rows that a clock set back has left behind."""

OUTAGE_CAP_SECONDS: Final = 30.0


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
    """

    def __init__(
        self,
        store: OutboxStore,
        courier: Courier,
        *,
        tick_seconds: float,
        claim_limit: int,
        per_destination: int | None = None,
    ) -> None:
        self._store = store
        self._courier = courier
        self._tick_seconds = tick_seconds
        self._claim_limit = claim_limit
        self._per_destination = per_destination
        self._recall_at = 0.0

    async def run(self) -> None:
        """Tick at once, then every ``tick_seconds``, until cancelled.

        Ticks never overlap: one that takes longer than a period is followed by the next at once. While the
        database is away, the outage is logged once and tried again with backoff.

        On cancellation, what is being sent is finished within its deadline and its outcome written; what was
        claimed and not begun is given back.
        """
        self._courier.stopping = False
        try:
            await self._keep_ticking()
        except asyncio.CancelledError:
            await self._last_words()
            raise

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
                    log.error("the outbox is out of reach, trying again with backoff: %s", exc)  # noqa: TRY400
                await asyncio.sleep(outage_delay(failures))
            else:
                await self._rest(pause)

    async def _round(self) -> float:
        """Do a tick's work, and give the seconds until the next."""
        clock = asyncio.get_running_loop().time
        started = clock()
        await self._recall()
        await self.tick()
        return started + self._tick_seconds - clock()

    async def _rest(self, seconds: float) -> None:
        await asyncio.sleep(max(0.0, seconds))

    async def _recall(self) -> None:
        now = asyncio.get_running_loop().time()
        if now >= self._recall_at:
            recalled = await self._store.recall()
            if recalled:
                log.warning("%s deliveries were due far ahead: the clock was set back; they go on", recalled)
            self._recall_at = now + RECALL_SECONDS

    async def _to_the_end(self, work: Awaitable[float]) -> float:
        """Await a round to its end even when cancelled meanwhile, then be cancelled."""
        task = asyncio.ensure_future(work)
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            self._courier.stopping = True
            await asyncio.wait({task})
            if not task.cancelled() and isinstance(task.exception(), StorageUnavailable):
                log.warning("stopping while the outbox is out of reach: %s", task.exception())
            raise

    async def _last_words(self) -> None:
        with suppress(StorageUnavailable):
            await self._courier.flush()
        if self._courier.unwritten:
            log.warning(
                "the outcomes of %s deliveries could not be written; they will be sent again under the same id",
                self._courier.unwritten,
            )

    async def tick(self) -> int:
        """Write what is left to write, claim up to the limit, make one attempt for each row, write every outcome.

        Returns:
            How many rows were claimed.

        Raises:
            StorageUnavailable: the database failed; outcomes that could not be written are kept.
        """
        await self._courier.flush()
        claimed = await self._store.claim(self._claim_limit, per_destination=self._per_destination)
        secrets = await self._courier.secrets(claimed)
        results = await asyncio.gather(
            *(self._courier.deliver(delivery, secrets) for delivery in claimed), return_exceptions=True
        )
        await self._courier.flush()
        for result in results:
            if isinstance(result, BaseException):
                raise result
        return len(claimed)
