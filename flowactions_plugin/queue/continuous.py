"""Continuous claims: a claim whenever lanes have rows that are due and the worker has room for them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final

from flowactions_plugin.queue.claimed import ClaimedDelivery
from flowactions_plugin.queue.claims import ClaimStore
from flowactions_plugin.queue.executor import Executor
from flowactions_plugin.queue.lanes import Due, Lanes
from flowactions_plugin.queue.notifier import Named
from flowactions_plugin.queue.rules import HELD_SECONDS

log = logging.getLogger("flowactions.outbox")

LOOK_SECONDS: Final = 0.5
"""Seconds between two looks for lanes in which rows have become due: every signal is only a hint."""

SCAN_SHARE: Final = 0.02
"""The share of the time that scans of all lanes take at the most."""

PACE_SECONDS: Final = 0.005
"""Seconds between claims while anything is in flight, so that each returns more than a few rows."""

SHORT_PACE_SECONDS: Final = 0.002
"""The same if it is heard that rows have become due, so that they wait less, or if few rows wait for a slot, so that a destination
whose limit is ten does not run out of them."""

FEW_WAITING: Final = 16
"""So many rows wait for a slot only a moment."""

BEGUN_AT_ONCE: Final = 32
"""How many deliveries begin in one round of the event loop: everything else that waits for a round waits for these. With 8 of them the
kernel wakes the receiver for fewer requests at a time, which costs the worker a tenth of its time."""


class ContinuousClaims:
    """Claims as slots become free, and begins what it has claimed.

    A slot is free as soon as its request is over: the outcome is written concurrently.

    Args:
        store: the queue.
        executor: executes what is claimed.
        slots: deliveries in flight at once.
        per_destination: of these, how many of one organization to one destination.
        claims_all: whether to claim whatever is due, or to send only what this process enqueues and can send soon.

    Attributes:
        lease_seconds: how long a claim holds.
    """

    def __init__(
        self,
        store: ClaimStore,
        executor: Executor,
        *,
        slots: int,
        per_destination: int,
        claims_all: bool = True,
    ) -> None:
        self._claims_all = claims_all
        self._store = store
        self._executor = executor
        self._lanes: Lanes = Lanes(slots, per_destination, executor.load.limits, executor.lag.running)
        self._hand = executor.hand
        self._hand.lanes = self._lanes
        executor.load.slow = self._lanes.slow
        self._tasks: set[asyncio.Task[None]] = set()
        self._claiming = False
        self._starting: asyncio.Handle | None = None
        self._next_look = 0.0
        self._scan_at = 0.0
        self._return_at = 0.0
        self._claimed_at = 0.0
        self._learned = asyncio.Event()
        self._woken = asyncio.Event()
        self.lease_seconds = store.contact.lease_seconds

    # Signals

    def enqueued(self, due: Due) -> None:
        """Claim soon: this process has written a row that is due in a lane."""
        self._lanes.learn(due)
        self._learned.set()
        self._woken.set()

    def wake(self, lanes: Iterable[Named] | None = None) -> None:
        """Claim soon: rows have become due.

        Args:
            lanes: in which; ``None``: this is not known.
        """
        if lanes is None or not self._lanes.heard_of(lanes):
            self._next_look = 0.0
        self._learned.set()
        self._woken.set()

    def reserve(self, values: Mapping[str, Any]) -> ClaimedDelivery | None:
        """Keep a place for a row with these columns, and return it as it will be claimed; ``None``: there is no place.

        A row that is written again while it is in hand has its place already.
        """
        if not self._claiming or self._executor.behind or self._hand.state(values["id"]) is not None:
            return None
        if not self._lanes.reserve(_lane(values)):
            return None
        row = self._store.claim_with_enqueue(values)
        self._hand.reserve(row)
        return row

    def take(self, reserved: Sequence[ClaimedDelivery], claimed: Collection[str | None] | None) -> None:
        """Send what was claimed, and give up the places of the rest.

        Args:
            reserved: rows for which a place was kept.
            claimed: the tokens of those that were written and are claimed; ``None``: the database has not said.
        """
        if claimed is None:
            self._keep(self._executor.completer.disclaim(reserved))
        taken = self._executor.take([each for each in reserved if each.token in (claimed or ())])
        self._hand.release(reserved)
        self._lanes.unreserve(reserved, taken)
        self._start()
        self._woken.set()

    # Claims

    async def run_once(self) -> float:
        """Claim what there is room for, and begin it; see `ClaimStrategy`."""
        clock = asyncio.get_running_loop().time
        if self._tasks:
            await asyncio.sleep(self._claimed_at + SHORT_PACE_SECONDS - clock())
            if self._lanes.total.waiting > FEW_WAITING:
                await until_set(self._learned, self._claimed_at + PACE_SECONDS - clock())
        if clock() >= self._return_at:
            await self._return_waiting()
            self._return_at = clock() + HELD_SECONDS
        # Every wait may have been longer than a lease.
        while self._executor.behind:
            await self._executor.settle()
        self._claiming = True
        if not self._claims_all:
            return HELD_SECONDS
        await self._look()
        self._claimed_at = clock()
        self._learned.clear()
        asks = self._lanes.asks()
        if not asks:
            return max(0.0, self._next_look - clock())
        try:
            with self._hand.claiming():
                claimed = await self._store.claim(asks)
                admitted = self._executor.take(claimed)
        except BaseException:
            self._lanes.fail(asks)
            raise
        self._lanes.answer(asks, claimed, admitted)
        self._start()
        return 0.0

    async def _look(self) -> None:
        """Find lanes in which rows have become due: all of them, as often as that costs little."""
        clock = asyncio.get_running_loop().time
        begun = clock()
        if begun < self._next_look:
            return
        self._next_look = begun + LOOK_SECONDS  # a wake from here on asks for another look
        try:
            if begun >= self._scan_at:
                found = await self._store.scan()
                self._scan_at = begun + (clock() - begun) / SCAN_SHARE
            else:
                found = await self._store.look()
        except BaseException:
            self._next_look = 0.0
            raise
        for due in found:
            self._lanes.learn(due)

    async def wait(self, seconds: float) -> None:
        """Wait for so long, or until there is reason to claim earlier."""
        await until_set(self._woken, seconds)
        self._woken.clear()

    async def quiesce(self) -> None:
        """Give back deliveries that have not begun, and wait for those in flight."""
        self._claiming = False
        self._executor.abandon(self._lanes.remove(lambda _: True))
        while self._tasks or self._lanes.total.asked:
            if self._tasks:
                await asyncio.wait(self._tasks)
            else:
                self._woken.clear()
                await self._woken.wait()
            self._executor.abandon(self._lanes.remove(lambda _: True))

    async def _return_waiting(self) -> None:
        """Give back what has waited for too long, what was paused or purged since it was claimed, and surplus."""
        self._lanes.judge_late()
        waiting = list(self._lanes.waiting_rows())
        contact = self._store.contact
        latest = contact.clock() + self.lease_seconds - contact.timing.wait_seconds
        gone = await self._store.withdrawn(waiting) if waiting else ()
        self._executor.abandon(self._lanes.remove(lambda each: each.lease_end < latest or each.id in gone))

    # Deliveries

    def _start(self) -> None:
        """Begin what may begin, a few in each round of the event loop."""
        if self._starting is not None or not self._lanes.total.waiting:
            return
        begun = self._hand.start(BEGUN_AT_ONCE)
        for delivery in begun:
            self._keep(self._work_through(delivery))
        if len(begun) == BEGUN_AT_ONCE:
            self._starting = asyncio.get_running_loop().call_soon(self._start_again)

    def _start_again(self) -> None:
        self._starting = None
        self._start()

    def _keep(self, work: Any) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _work_through(self, first: ClaimedDelivery) -> None:
        """Execute a delivery, and then one that may begin because it has ended: a task for each would cost more."""
        delivery: ClaimedDelivery | None = first
        while delivery is not None:
            try:
                await self._executor.execute(delivery, has_slot=True)
            except Exception:
                log.exception(
                    "delivery %s failed unexpectedly; it is claimed again later",
                    delivery.id,
                    extra={"event": "delivery.failed_unexpectedly"},
                )
            finally:
                self._executor.abandon(self._lanes.surplus())
                if not self._woken.is_set() and self._lanes.has_room:
                    self._woken.set()
            begun = self._hand.start(2)
            delivery = begun[0] if begun else None
            if len(begun) > 1:  # as the first answer of a lane lets several begin
                self._keep(self._work_through(begun[1]))
                self._start()


def _lane(values: Mapping[str, Any]) -> Due:
    return Due(values["lane"], values["organization_id"], values["destination"])


async def until_set(event: asyncio.Event, seconds: float) -> None:
    """Wait until an event is set, for so long at the most."""
    if seconds > 0:
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await event.wait()
