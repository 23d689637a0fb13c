"""Continuous claims: a claim whenever slots are free, without waiting for the slowest delivery of a tick."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import Final, TypeAlias

from flowactions_plugin.outbox.claimed import ClaimedDelivery
from flowactions_plugin.outbox.executor import Executor, Secrets
from flowactions_plugin.outbox.rules import Timing
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
        timing: what is claimed ahead is given back after a third of the lease, so that another worker can send it, and
            this one sends nothing near the end of a lease.
    """

    def __init__(
        self,
        store: OutboxStore,
        executor: Executor,
        *,
        slots: int,
        per_destination: int,
        timing: Timing = Timing(),  # noqa: B008  immutable
    ) -> None:
        self._store = store
        self._executor = executor
        self._per_destination = per_destination
        self._held_seconds = timing.lease_seconds / 3
        self._slots: Slots[tuple[ClaimedDelivery, PendingSecrets]] = Slots(
            slots, per_destination, lambda item: item[0].organization_id
        )
        self._tasks: set[asyncio.Task[None]] = set()
        self._in_flight_bytes = 0
        self._more = False
        self._enqueued = False
        self._overdue_at = 0.0
        self._claimed_at = 0.0
        self._woken = asyncio.Event()

    def wake(self) -> None:
        """Have the queue claimed from soon: something was enqueued, for whatever destination."""
        self._enqueued = True
        self._woken.set()

    async def settle(self) -> None:
        """Write outcomes when too many wait, or after a stall; see `ClaimStrategy`."""
        if self._executor.completer.behind:
            await self._executor.completer.flush()
        await self._executor.catch_up()

    async def run_once(self) -> float:
        """Claim for the free slots, and start what was claimed; see `ClaimStrategy`."""
        clock = asyncio.get_running_loop().time
        if self._tasks:
            await asyncio.sleep(self._claimed_at + PACE_SECONDS - clock())
        if clock() >= self._overdue_at:
            self._give_back(self._slots.overdue(clock() - self._held_seconds))
            self._overdue_at = clock() + self._held_seconds / 10
        request = self._slots.demand(enqueued=self._enqueued)
        if not request.limit or self._in_flight_bytes >= IN_FLIGHT_BYTES:
            self._more = True
            return POLL_SECONDS
        self._claimed_at = clock()
        enqueued, self._enqueued = self._enqueued, False
        claimed = await self._store.claim(
            request.limit,
            per_destination=self._per_destination,
            in_flight=request.in_flight,
            look_elsewhere=enqueued,
        )
        size = sum(each.size for each in claimed)
        self._more = len(claimed) == request.limit or size >= FULL_CLAIM_BYTES
        admitted = await self._executor.admit(claimed)
        self._in_flight_bytes += sum(each.size for each in admitted)
        secrets = asyncio.ensure_future(self._executor.secrets(admitted))
        self._slots.add(
            request,
            [(delivery.destination, (delivery, secrets)) for delivery in admitted],
            self._claimed_at,
        )
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
        self._give_back(self._slots.clear())
        while self._tasks:
            await asyncio.wait(self._tasks)

    def _give_back(self, waiting: Sequence[tuple[ClaimedDelivery, PendingSecrets]]) -> None:
        """Give back rows that have not begun: they are due at once, for this worker or another."""
        if waiting:
            self._in_flight_bytes -= sum(delivery.size for delivery, _ in waiting)
            self._executor.abandon([delivery for delivery, _ in waiting])

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
                self._woken.set()
