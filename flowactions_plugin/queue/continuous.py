"""Continuous claims: a claim whenever slots are free, without waiting for the slowest delivery of a tick."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import chain, islice
from typing import Any, Final, TypeAlias

from flowactions_plugin.errors import StorageUnavailable
from flowactions_plugin.queue.claim_store import ClaimStore
from flowactions_plugin.queue.claimed import ClaimedDelivery
from flowactions_plugin.queue.executor import Executor
from flowactions_plugin.queue.host_calls import Secrets
from flowactions_plugin.queue.owners import ORGANIZATIONS_A_CLAIM
from flowactions_plugin.queue.rules import HELD_SECONDS, Timing
from flowactions_plugin.queue.slots import LEAST_DEMAND, Slots
from flowactions_plugin.queue.worker import FULL_CLAIM_BYTES

log = logging.getLogger("flowactions.outbox")

_Item: TypeAlias = tuple[ClaimedDelivery, Secrets]

POLL_SECONDS: Final = 0.5
"""Seconds between claims when nothing wakes the worker: every notification is only a hint."""

IDLE_POLL_SECONDS: Final = 1.0
"""The same after `QUIET_SECONDS` in which nothing woke the worker and nothing was due."""

QUIET_SECONDS: Final = 10.0

PACE_SECONDS: Final = 0.005
"""Seconds between claims while anything is in flight and much is due, so that each returns more than a few rows."""

SHORT_PACE_SECONDS: Final = 0.002
"""The same after a claim of fewer than `LEAST_DEMAND` rows: what is enqueued a few hundred times a second waits less."""


def pace_of(claimed: int) -> float:
    """Return the seconds from a claim that has returned so many rows to the next."""
    return PACE_SECONDS if claimed >= LEAST_DEMAND else SHORT_PACE_SECONDS


MOST_ENQUEUED_FOR: Final = 1000
"""How many organizations are noted at the most for which something was enqueued; rows of others wait for the usual claims."""

IN_FLIGHT_BYTES: Final = 32 * 1024 * 1024
"""With so many bytes of bodies and headers in memory, nothing more is claimed."""

UNPROVEN_BYTES: Final = IN_FLIGHT_BYTES // 4
"""Of these, so many bytes at the most may be in flight to unproven destinations, and as many may wait for them. The rest is left
to rows of other destinations."""


class ContinuousClaims:
    """Claims as slots become free.

    It claims when slots are free and more rows are due, when something was enqueued, and in any case every `POLL_SECONDS`,
    or every `IDLE_POLL_SECONDS` when nothing has come for a while.
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
        store: ClaimStore,
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
        heavy = max(
            1, UNPROVEN_BYTES // max(1, slots // 2)
        )  # a row of this size takes several of the places for unproven destinations
        self._slots: Slots[_Item] = Slots(
            slots,
            per_destination,
            lambda item: item[0].organization_id,
            executor.limits,
            lambda item: 1 + item[0].size // heavy,
        )
        self._tasks: set[asyncio.Task[None]] = set()
        self._in_flight_bytes = 0
        self._waiting: Counter[str] = Counter()  # rows that have not begun, by organization
        self._enqueued_for: dict[str, None] = {}  # organizations of which something was enqueued
        self._claiming_for_enqueued: asyncio.Task[None] | None = None
        self._claiming = False
        self._more = False
        self._enqueued = False
        self._overdue_at = 0.0
        self._withdrawn_at = 0.0
        self._claimed_at = 0.0
        # When it last claimed after a wake, claimed with deliveries under way, or found rows.
        self._busy_at = -QUIET_SECONDS
        self._pace = PACE_SECONDS
        self._woken = asyncio.Event()
        self._settled = asyncio.Event()  # a reserved slot was given up
        self._disclaiming: set[asyncio.Task[None]] = set()
        self.lease_seconds = timing.lease_seconds

    def wake(self, organizations: Iterable[str] = ()) -> None:
        """Claim soon: something was enqueued, for any destination.

        Args:
            organizations: whose it is, as far as it is known.
        """
        self._enqueued = True
        self._woken.set()
        if not self._tasks or not self._claiming:
            return  # the next claim is for all
        self._enqueued_for.update(
            (each, None)
            for each in organizations
            if len(self._enqueued_for) < MOST_ENQUEUED_FOR and self._waiting[each] < LEAST_DEMAND
        )
        if self._enqueued_for and self._claiming_for_enqueued is None:
            self._claiming_for_enqueued = asyncio.create_task(self._claim_for_enqueued())

    def reserve(self, values: Mapping[str, Any]) -> ClaimedDelivery | None:
        """Keep a slot for a row that is about to be written; see `new_rows.Claimant`.

        None is kept while anything may be due that waits longer: rows of other processes, and of other organizations,
        would wait for a slot behind what this process enqueues.
        """
        if (
            not self._claiming
            or self._more
            or self._executor.behind
            or self._in_flight_bytes >= IN_FLIGHT_BYTES
            or not self._slots.reserve(values["organization_id"], values["destination"])
        ):
            return None
        claim = self._store.claim_with_enqueue(values)
        self._in_flight_bytes += claim.size
        return claim

    def take(
        self,
        claimed: Sequence[ClaimedDelivery],
        unclaimed: Sequence[ClaimedDelivery],
        unknown: Sequence[ClaimedDelivery],
    ) -> None:
        """Send what was claimed, and give up the slots of the rest; see `new_rows.Claimant`."""
        for each in chain(claimed, unclaimed, unknown):
            self._slots.unreserve(each.destination)
            self._in_flight_bytes -= each.size
        self._settled.set()
        if unknown:
            task = asyncio.create_task(self._disclaim(unknown))
            self._disclaiming.add(task)
            task.add_done_callback(self._disclaiming.discard)
        if claimed:
            taken = self._executor.take(claimed)
            self._slots.insert(self._placed(taken), asyncio.get_running_loop().time())
            self._start()

    async def _disclaim(self, unknown: Sequence[ClaimedDelivery]) -> None:
        with suppress(StorageUnavailable):  # then it is due when its lease has ended
            await self._executor.completer.disclaim(unknown)

    async def settle(self) -> None:
        """Write outcomes when too many wait, or after a stall; see `ClaimStrategy`."""
        if self._executor.completer.behind:
            await self._executor.completer.flush()
        await self._executor.catch_up()

    async def run_once(self) -> float:
        """Claim for the free slots, and start what was claimed; see `ClaimStrategy`."""
        clock = asyncio.get_running_loop().time
        if self._tasks:
            await asyncio.sleep(self._claimed_at + self._pace - clock())
        if clock() >= self._overdue_at:
            self._give_back(self._slots.overdue(clock() - self._held_seconds))
            self._overdue_at = clock() + self._held_seconds / 10
        if clock() >= self._withdrawn_at:
            await self._give_back_withdrawn()
            self._withdrawn_at = clock() + HELD_SECONDS
        # Every wait may have been longer than a lease.
        while self._executor.behind:
            await self.settle()
        self._claiming = True
        request = self._slots.demand(
            beyond_head=self._enqueued or self._store.searches_beyond_head,
            seconds=clock() - self._claimed_at,
        )
        if not request.limit or self._in_flight_bytes >= IN_FLIGHT_BYTES:
            self._more = True
            return POLL_SECONDS
        self._claimed_at = clock()
        enqueued, self._enqueued = self._enqueued, False
        claimed = await self._store.claim(
            request.limit,
            per_destination=self._per_destination,
            in_flight=request.in_flight,
            search_beyond_head=enqueued,
        )
        self._pace = pace_of(len(claimed))
        size = sum(each.size for each in claimed)
        self._more = len(claimed) == request.limit or size >= FULL_CLAIM_BYTES
        self._slots.add(request, await self._admitted(claimed), self._claimed_at)
        self._start()
        if enqueued or claimed or self._tasks:
            self._busy_at = self._claimed_at
        if self._more:
            return 0.0
        return IDLE_POLL_SECONDS if self._claimed_at - self._busy_at >= QUIET_SECONDS else POLL_SECONDS

    async def _claim_for_enqueued(self) -> None:
        """Claim for organizations of which little waits here, beside the other claims: their rows wait for none of these."""
        clock = asyncio.get_running_loop().time
        try:
            while self._enqueued_for and self._claiming:
                claimed_at = clock()
                organizations = [*islice(self._enqueued_for, ORGANIZATIONS_A_CLAIM)]
                for each in organizations:
                    del self._enqueued_for[each]
                # While outcomes are unwritten, this would claim what has been sent.
                if self._in_flight_bytes >= IN_FLIGHT_BYTES or self._executor.behind:
                    continue
                claimed = await self._store.claim_of(
                    organizations,
                    2 * LEAST_DEMAND,
                    per_destination=self._per_destination,
                    in_flight=self._slots.in_flight,
                )
                self._slots.insert(await self._admitted(claimed), claimed_at)
                self._start()
                if self._enqueued_for:
                    await asyncio.sleep(claimed_at + pace_of(len(claimed)) - clock())
        except StorageUnavailable:
            pass  # the other claims will say so
        except Exception:
            log.exception(
                "rows of other organizations could not be claimed; they are claimed with the others",
                extra={"event": "deliveries.not_claimed"},
            )
        finally:
            self._claiming_for_enqueued = None

    async def _admitted(self, claimed: list[ClaimedDelivery]) -> list[tuple[str, _Item]]:
        """Return what of a claim may be sent, by destination."""
        return self._placed(await self._executor.admit(claimed))

    def _placed(self, admitted: Sequence[ClaimedDelivery]) -> list[tuple[str, _Item]]:
        """Return deliveries by destination, with the secrets of their claim."""
        self._in_flight_bytes += sum(each.size for each in admitted)
        self._waiting.update(each.organization_id for each in admitted)
        secrets = self._executor.secrets()
        return [(each.destination, (each, secrets)) for each in admitted]

    async def wait(self, seconds: float) -> None:
        """Wait for so long, or until `wake` is called."""
        try:
            async with asyncio.timeout(seconds):
                await self._woken.wait()
        except TimeoutError:
            pass
        self._woken.clear()

    async def quiesce(self) -> None:
        """Give back deliveries that wait for a slot, and wait for those in flight."""
        self._claiming = False
        while self._slots.reserved:
            self._settled.clear()
            await self._settled.wait()
        if self._claiming_for_enqueued is not None:
            await asyncio.wait({self._claiming_for_enqueued})
        self._give_back(self._slots.clear())
        while self._tasks or self._disclaiming:
            await asyncio.wait(self._tasks | self._disclaiming)

    async def _give_back_withdrawn(self) -> None:
        """Give back what waits for a slot, and was paused or purged since it was claimed."""
        held = [each for each, _ in self._slots.waiting_items()]
        gone = await self._executor.withdrawn(held)
        if gone:
            self._give_back(self._slots.remove(lambda _claimed_at, item: item[0].id in gone))

    def _give_back(self, waiting: Sequence[_Item]) -> None:
        """Give back rows that have not begun: they are due at once, for this worker or another."""
        if waiting:
            for delivery, _ in waiting:
                self._in_flight_bytes -= delivery.size
                self._leave_waiting(delivery)
            self._executor.abandon([delivery for delivery, _ in waiting])

    def _start(self) -> None:
        """Begin what may start now, and give back what should not wait here."""
        for first in self._begun():
            task = asyncio.create_task(self._work_through(first))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        self._give_back(self._slots.pop_surplus())

    def _begun(self) -> Iterator[_Item]:
        """Yield what may start now."""
        for item in self._slots.start():
            self._leave_waiting(item[0])
            yield item

    def _leave_waiting(self, delivery: ClaimedDelivery) -> None:
        self._waiting[delivery.organization_id] -= 1
        if not self._waiting[delivery.organization_id]:
            del self._waiting[delivery.organization_id]

    async def _work_through(self, first: _Item) -> None:
        """Execute a delivery, and then each that may start because one has ended: a task for each would cost more."""
        item: _Item | None = first
        try:
            while item is not None:
                await self._execute(item)
                item = next(self._begun(), None)
                self._start()  # where the first answer of a destination lets several start
        finally:
            self._start()  # of what may start now, when this was interrupted

    async def _execute(self, item: _Item) -> None:
        delivery, secrets = item
        try:
            await self._executor.execute(delivery, secrets)
        except Exception:
            log.exception(
                "delivery %s failed unexpectedly; it is claimed again later",
                delivery.id,
                extra={"event": "delivery.failed_unexpectedly"},
            )
        finally:
            self._in_flight_bytes -= delivery.size
            limited = self._slots.finish(delivery.destination, item)
            if limited or self._more:
                self._woken.set()
