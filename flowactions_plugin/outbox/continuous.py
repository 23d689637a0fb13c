"""Continuous delivery: a claim whenever there is room, without waiting for the slowest of a tick."""

from __future__ import annotations

import asyncio
import logging
from typing import Any, Final, TypeAlias

from flowactions_plugin.outbox.claimed import ClaimedDelivery
from flowactions_plugin.outbox.executor import Secrets
from flowactions_plugin.outbox.slots import Slots
from flowactions_plugin.outbox.worker import FULL_CLAIM_BYTES, Worker

log = logging.getLogger("flowactions.outbox")

Asked: TypeAlias = asyncio.Future[Secrets]

POLL_SECONDS: Final = 0.5
"""How often the queue is looked at when nobody says that there is something: the guarantee behind every wake."""

PACE_SECONDS: Final = 0.005
"""How far apart claims are while anything is in flight, so that each brings more than a few rows."""


HELD_BYTES: Final = 32 * 1024 * 1024
"""With so much of bodies and headers in hand, nothing more is claimed."""


class ContinuousWorker(Worker):
    """Delivers as fast as slots become free.

    It differs from the worker that ticks in when it claims: when slots become free and more is due, when something
    was enqueued, and twice a second in any case. A slot is free again as soon as its request is over: outcomes are
    written beside it.

    Args:
        slots: deliveries in flight at once.
        per_destination: of these, how many to one destination, so that a slow receiver cannot take all.
        others: those of `Worker`.
    """

    def __init__(self, *arguments: Any, slots: int, per_destination: int, **others: Any) -> None:
        super().__init__(
            *arguments, tick_seconds=POLL_SECONDS, claim_limit=slots, per_destination=per_destination, **others
        )
        self._slots: Slots[tuple[ClaimedDelivery, Asked]] = Slots(slots, per_destination)
        self._share = per_destination
        self._in_flight: set[asyncio.Task[None]] = set()
        self._held_bytes = 0
        self._more = False
        self._claimed_at = 0.0
        self._woken = asyncio.Event()

    def wake(self) -> None:
        """Say that there may be something to deliver."""
        self._woken.set()

    async def _round(self) -> float:
        await self._recall()
        if self._courier.behind:
            await self._courier.flush()
        await self._courier.catch_up()
        await self._quarantine()
        if self._in_flight:
            await asyncio.sleep(self._claimed_at + PACE_SECONDS - asyncio.get_running_loop().time())
        wish = self._slots.wish()
        if not wish.limit or self._held_bytes >= HELD_BYTES:
            self._more = True
            return POLL_SECONDS
        self._claimed_at = asyncio.get_running_loop().time()
        claimed = await self._store.claim(wish.limit, per_destination=self._share, busy=wish.busy)
        size = sum(each.size for each in claimed)
        self._more = len(claimed) == wish.limit or size >= FULL_CLAIM_BYTES
        admitted = await self._courier.admit(claimed)
        self._held_bytes += sum(each.size for each in admitted)
        secrets = asyncio.ensure_future(self._courier.secrets(admitted))
        self._slots.add(wish, [(delivery.destination, (delivery, secrets)) for delivery in admitted])
        self._start()
        return 0.0 if self._more else POLL_SECONDS

    def _start(self) -> None:
        for delivery, secrets in self._slots.start():
            task = asyncio.create_task(self._one(delivery, secrets))
            self._in_flight.add(task)
            task.add_done_callback(self._in_flight.discard)

    async def _one(self, delivery: ClaimedDelivery, secrets: Asked) -> None:
        try:
            await self._courier.deliver(delivery, await secrets)
        except Exception:
            log.exception("delivery %s failed unexpectedly; it is claimed again later", delivery.id)
        finally:
            self._held_bytes -= delivery.size
            limited = self._slots.finish(delivery.destination)
            self._start()
            if limited or self._more:
                self.wake()

    async def _rest(self, seconds: float) -> None:
        try:
            async with asyncio.timeout(seconds):
                await self._woken.wait()
        except TimeoutError:
            pass
        self._woken.clear()

    async def _quiesce(self) -> None:
        """Give back what waits for a slot, and wait for what has one."""
        waiting = [delivery for delivery, _ in self._slots.abandon()]
        self._held_bytes -= sum(each.size for each in waiting)
        self._courier.abandon(waiting)
        while self._in_flight:
            await asyncio.wait(self._in_flight)
