"""Continuous claims: a claim whenever slots are free, without waiting for the slowest delivery of a tick."""

from __future__ import annotations

import asyncio
import logging
from typing import Final, TypeAlias

from flowactions_plugin.outbox.claimed import ClaimedDelivery
from flowactions_plugin.outbox.executor import Executor, Secrets
from flowactions_plugin.outbox.slots import Slots
from flowactions_plugin.outbox.store import OutboxStore
from flowactions_plugin.outbox.worker import FULL_CLAIM_BYTES

log = logging.getLogger("flowactions.outbox")

PendingSecrets: TypeAlias = asyncio.Future[Secrets]

POLL_SECONDS: Final = 0.5
"""Seconds between claims when nothing wakes the worker: every notification is only a hint."""

PACE_SECONDS: Final = 0.005
"""Seconds between claims while anything is in flight, so that each returns more than a few rows."""

IN_FLIGHT_BYTES: Final = 32 * 1024 * 1024
"""With so many bytes of bodies and headers in memory, nothing more is claimed."""


class ContinuousClaims:
    """Claims as slots become free.

    It claims when slots are free and more rows are due, when something was enqueued, and twice a second in any case.
    A slot is free as soon as its request is over: the outcome is written concurrently.

    Args:
        store: the queue.
        executor: executes what is claimed.
        slots: deliveries in flight at once.
        per_destination: of these, how many to one destination, so that a slow receiver cannot occupy all slots.
    """

    def __init__(self, store: OutboxStore, executor: Executor, *, slots: int, per_destination: int) -> None:
        self._store = store
        self._executor = executor
        self._per_destination = per_destination
        self._slots: Slots[tuple[ClaimedDelivery, PendingSecrets]] = Slots(slots, per_destination)
        self._tasks: set[asyncio.Task[None]] = set()
        self._in_flight_bytes = 0
        self._more = False
        self._claimed_at = 0.0
        self._woken = asyncio.Event()

    def wake(self) -> None:
        """Have the queue claimed from soon: there may be something to deliver."""
        self._woken.set()

    async def settle(self) -> None:
        """Write outcomes when too many wait, or after a stall; see `ClaimStrategy`."""
        if self._executor.completer.behind:
            await self._executor.completer.flush()
        await self._executor.catch_up()

    async def run_once(self) -> float:
        """Claim for the free slots, and start what was claimed; see `ClaimStrategy`."""
        if self._tasks:
            await asyncio.sleep(self._claimed_at + PACE_SECONDS - asyncio.get_running_loop().time())
        request = self._slots.demand()
        if not request.limit or self._in_flight_bytes >= IN_FLIGHT_BYTES:
            self._more = True
            return POLL_SECONDS
        self._claimed_at = asyncio.get_running_loop().time()
        claimed = await self._store.claim(
            request.limit, per_destination=self._per_destination, in_flight=request.in_flight
        )
        size = sum(each.size for each in claimed)
        self._more = len(claimed) == request.limit or size >= FULL_CLAIM_BYTES
        admitted = await self._executor.admit(claimed)
        self._in_flight_bytes += sum(each.size for each in admitted)
        secrets = asyncio.ensure_future(self._executor.secrets(admitted))
        self._slots.add(request, [(delivery.destination, (delivery, secrets)) for delivery in admitted])
        self._start()
        return 0.0 if self._more else POLL_SECONDS

    async def wait(self, seconds: float) -> None:
        """Wait for so long, or until `wake` is called."""
        try:
            async with asyncio.timeout(seconds):
                await self._woken.wait()
        except TimeoutError:
            pass
        self._woken.clear()

    async def quiesce(self) -> None:
        """Give back what waits for a slot, and wait for what has one."""
        waiting = [delivery for delivery, _ in self._slots.clear()]
        self._in_flight_bytes -= sum(each.size for each in waiting)
        self._executor.abandon(waiting)
        while self._tasks:
            await asyncio.wait(self._tasks)

    def _start(self) -> None:
        for delivery, secrets in self._slots.start():
            task = asyncio.create_task(self._execute(delivery, secrets))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _execute(self, delivery: ClaimedDelivery, secrets: PendingSecrets) -> None:
        try:
            await self._executor.execute(delivery, await secrets)
        except Exception:
            log.exception("delivery %s failed unexpectedly; it is claimed again later", delivery.id)
        finally:
            self._in_flight_bytes -= delivery.size
            limited = self._slots.finish(delivery.destination)
            self._start()
            if limited or self._more:
                self.wake()
