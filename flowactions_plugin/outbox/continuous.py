"""Continuous delivery: a claim whenever there is room, without waiting for the slowest of a tick."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Mapping
from typing import Any, Final

from flowactions_hookspecs import Origin
from flowactions_plugin.errors import StorageUnavailable
from flowactions_plugin.outbox.courier import Secret
from flowactions_plugin.outbox.store import ClaimedDelivery
from flowactions_plugin.outbox.worker import Worker

log = logging.getLogger("flowactions.outbox")

POLL_SECONDS: Final = 0.5
"""How often the queue is looked at when nobody says that there is something: the guarantee behind every wake."""


class ContinuousWorker(Worker):
    """Delivers as fast as slots become free.

    It differs from the worker that ticks in when it claims: as soon as a quarter of its slots is free, when
    something was enqueued in this process, and twice a second in any case.

    Args:
        slots: deliveries in flight at once.
        per_destination: of these, how many to one destination, so that a slow receiver cannot take all.
        others: those of `Worker`.
    """

    def __init__(self, *arguments: Any, slots: int, per_destination: int, **others: Any) -> None:
        super().__init__(
            *arguments, tick_seconds=POLL_SECONDS, claim_limit=slots, per_destination=per_destination, **others
        )
        self._slots = slots
        self._share = per_destination
        self._busy: Counter[str] = Counter()
        self._in_flight: set[asyncio.Task[None]] = set()
        self._woken = asyncio.Event()

    def wake(self) -> None:
        """Say that there may be something to deliver."""
        self._woken.set()

    async def _round(self) -> float:
        await self._recall()
        await self._courier.write_kept()
        free = self._slots - len(self._in_flight)
        if free < self._enough:
            return POLL_SECONDS
        claimed = await self._store.claim(free, per_destination=self._share, busy=self._busy)
        if not claimed:
            return POLL_SECONDS
        self._busy.update(delivery.destination for delivery in claimed)
        secrets = asyncio.ensure_future(self._courier.secrets(claimed))
        for delivery in claimed:
            task = asyncio.create_task(self._one(delivery, secrets))
            self._in_flight.add(task)
            task.add_done_callback(self._in_flight.discard)
        return 0.0

    @property
    def _enough(self) -> int:
        """How many slots must be free for a claim to be worth it."""
        return max(1, self._slots // 4)

    async def _one(
        self, delivery: ClaimedDelivery, secrets: asyncio.Future[Mapping[Origin | None, Secret]]
    ) -> None:
        try:
            await self._courier.deliver(delivery, await secrets)
        except StorageUnavailable:
            pass  # the outcome is kept; the next round writes it, or says what is wrong
        except Exception:
            log.exception("delivery %s failed unexpectedly; it is claimed again later", delivery.id)
        finally:
            full = self._busy[delivery.destination] >= self._share
            self._busy[delivery.destination] -= 1
            if not self._busy[delivery.destination]:
                del self._busy[delivery.destination]
            if full or self._slots - len(self._in_flight) + 1 >= self._enough:
                self.wake()

    async def _rest(self, seconds: float) -> None:
        if seconds:
            try:
                async with asyncio.timeout(seconds):
                    await self._woken.wait()
            except TimeoutError:
                pass
        self._woken.clear()

    async def _last_words(self) -> None:
        self._courier.stopping = True
        if self._in_flight:
            await asyncio.wait(self._in_flight)
        await super()._last_words()
