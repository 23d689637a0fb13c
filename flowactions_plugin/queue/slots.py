"""Which claimed deliveries may start, and how many more to claim: pure, no I/O."""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from typing import Final, Generic, NamedTuple, TypeVar

from flowactions_plugin.queue.limits import Limits
from flowactions_plugin.queue.turns import Turns
from flowactions_plugin.queue.unproven import Claimed, Placed, Unproven

Item = TypeVar("Item")

LEAST_DEMAND: Final = 16

PREFETCHED: Final = 8
"""How many rows are claimed ahead for each one that has finished since the claim before, up to as many as there are slots.
With one for one, a destination at its limit would get ten rows a claim, and claims would cost more than the requests
(decision 34)."""

AHEAD: Final = 4
"""For how many times its slots rows wait in a worker at the most, where receivers are fast: a larger claim costs less a row."""

AHEAD_SECONDS: Final = 0.05
"""More rows than there are slots wait only if they are sent within this time, at the rate at which deliveries finish. Those of a
worker that is killed are due again when their leases end."""

PLACES_AHEAD: Final = 2
"""For how many times the per-destination limit rows are enqueued ahead that this worker will send: at a thousand a second, ten
are enqueued while a commit to a disk is under way."""

MOST_REFUSED: Final = 1000
"""How many destinations are remembered whose rows were refused, so that the next claims leave them out."""


class ClaimRequest(NamedTuple):
    """What a claim should return.

    Attributes:
        limit: rows at the most.
        in_flight: for each destination, how many will be in flight when the claim returns.
    """

    limit: int
    in_flight: Counter[str]


class Slots(Generic[Item]):
    """The slots of a worker, the limits, and the deliveries that wait for a slot.

    While a claim is under way, slots become free. So a claim asks for `PREFETCHED` times as many more rows as were finished
    since the claim before, up to as many as there are slots: they wait here until their slot is free. With slow
    receivers nothing finishes, and nothing is claimed ahead. What waits too long, because its destination has begun to
    hang, is given back (`overdue`).

    Receivers that hang cannot hold all slots (decision 69): a destination that hangs has one slot, destinations that have
    not answered have half of the slots together, and while others wait, an organization has half at the most.

    Args:
        limit: deliveries in flight at once.
        per_destination: of these, how many to one destination.
        owner: returns the organization of a row. Organizations take turns with the slots.
        limits: which destinations have answered, and which hang.
        weight: returns for how many a row to an unproven destination counts, 1 or more.

    Attributes:
        limit: the same.
        reserved: how many slots are kept for rows that are being enqueued.
    """

    def __init__(
        self,
        limit: int,
        per_destination: int,
        owner: Callable[[Item], str] = lambda _item: "",
        limits: Limits | None = None,
        weight: Callable[[Item], int] = lambda _item: 1,
    ) -> None:
        self.limit = limit
        self._per_destination = per_destination
        self._owner = owner
        self._limits = Limits() if limits is None else limits
        self._share = max(1, limit // 2)
        self._in_flight = 0
        self._reserved: Counter[str] = Counter()  # slots for rows that are being enqueued, by destination
        self.reserved = 0
        self._held: Counter[str] = Counter()  # in flight, by organization
        self._begun: Counter[str] = Counter()  # in flight or with a place at the destination, by destination
        self._ready: Turns[Placed[Item]] = Turns()
        self._unproven: Unproven[Item] = Unproven(self._share, weight)
        self._queued: dict[str, deque[Claimed[Item]]] = {}
        self._queue_length = 0
        self._surplus: list[Item] = []
        self._refused: dict[str, None] = {}  # destinations of which rows were refused
        self._refill: dict[str, int] = {}  # how few wait when the next claim is due, by destination
        self._finished: Counter[str] = Counter()
        self._claimed = 0
        self._limited: set[str] = set()

    @property
    def waiting(self) -> int:
        """How many claimed rows have no slot yet."""
        return len(self._ready) + len(self._unproven.waiting) + self._queue_length

    @property
    def in_flight(self) -> Counter[str]:
        """How many deliveries are in flight to each destination, with those that wait.

        A destination of which a claim should bring fewer rows than the limit counts for more.
        """
        used = self._begun + self._reserved
        for destination, queued in self._queued.items():
            used[destination] += len(queued)
        most, crowded = self._per_destination, self._unproven.is_crowded
        for destination in self._limits.hanging:
            used[destination] = most if crowded or used[destination] else most - 1
        if self._refused and self._unproven.has_room:
            self._refused.clear()
        for destination in self._refused:
            used[destination] = max(most, used[destination])
        return used

    def demand(self, *, beyond_head: bool = True, seconds: float = math.inf) -> ClaimRequest:
        """Return what to claim now; what finishes from now on counts for the next claim.

        Args:
            beyond_head: whether rows may be due to other destinations than those at their limit.
            seconds: since the claim before.
        """
        # What waits for unproven destinations, and may not begin, leaves the free slots to others.
        free = self.limit - self._in_flight - self.reserved - len(self._ready) - self._unproven.startable
        finished = self._finished.total()
        ahead = min(max(self.limit, int(finished / max(seconds, 0.001) * AHEAD_SECONDS)), AHEAD * self.limit)
        prefetched = min(PREFETCHED * finished, ahead)
        # So do rows that wait for their destination.
        room = max(0, free) + max(0, prefetched + min(0, free) - self._queue_length)
        # What a worker that is killed leaves at the most: what waits for its destination leaves the slots free.
        room = min(room, 2 * self.limit + ahead - self._in_flight - self.reserved - self.waiting)
        if free <= 0 and room < ahead // 2 and (self._ready or self._queue_length):
            # What waits lasts for a while; a larger claim costs less a row.
            return ClaimRequest(0, Counter())
        if not beyond_head:
            room = min(room, self._refillable())
            if room <= 0:
                return ClaimRequest(0, Counter())
        of_each, self._finished = self._finished, Counter()
        # Where the per-destination limit keeps claims small, each would examine many rows in vain.
        limit = min(max(0, room), max(LEAST_DEMAND, 2 * self._claimed))
        in_flight = self.in_flight
        in_flight.subtract(
            {
                destination: PREFETCHED * count
                for destination, count in of_each.items()
                if not self._limits.hangs(destination) and destination not in self._refused
            }
        )
        return ClaimRequest(limit, in_flight)

    def _refillable(self) -> int:
        """Return how many rows may be claimed for destinations at which half of what waited is gone."""
        rows = 0
        for destination, finished in self._finished.items():
            waiting = len(self._queued.get(destination, ()))
            if waiting <= self._refill.get(destination, 0):
                rows += self._allowed(destination) - self._begun[destination] - waiting + PREFETCHED * finished
        return rows

    def reserve(self, owner: str, destination: str) -> bool:
        """Keep a slot for a row that is being enqueued, where it could start at once or soon.

        It could not where others of its destination may be due that are not claimed.

        Returns:
            Whether it could; `unreserve` ends it.
        """
        expected = self._begun[destination] + self._reserved[destination]
        if self._limits.answers(destination):
            waiting = len(self._queued.get(destination, ()))
            may = (
                destination not in self._limited
                and waiting + expected < self._per_destination * (1 + PLACES_AHEAD)
                and self.waiting + self.reserved < self.limit
            )
        else:
            may = (
                not self.waiting
                and self._in_flight + self.reserved < self.limit
                and expected < self._allowed(destination)
                and self._unproven.may_begin(owner)
            )
        if may:
            self._reserved[destination] += 1
            self.reserved += 1
        return may

    def unreserve(self, destination: str) -> None:
        """Release a slot of `reserve`, also for the row itself."""
        self.reserved -= 1
        self._reserved[destination] -= 1
        if not self._reserved[destination]:
            del self._reserved[destination]

    def add(self, request: ClaimRequest, claimed: Sequence[tuple[str, Item]], now: float = 0.0) -> None:
        """Add what a claim returned, by destination; see `pop_surplus`.

        Args:
            request: what it was asked for.
            claimed: the destination of each row, and the row.
            now: when it was claimed, in seconds by any clock.
        """
        used = request.in_flight
        used.update(destination for destination, _ in claimed)
        self.insert(claimed, now)
        # One claim in vain says little about the next.
        self._claimed = max(len(claimed), self._claimed // 2)
        self._refill = {destination: len(queued) // 2 for destination, queued in self._queued.items()}
        self._limited = {destination for destination, count in used.items() if count >= self._per_destination}

    def insert(self, claimed: Sequence[tuple[str, Item]], now: float = 0.0) -> None:
        """Add what was claimed beside the claims that `demand` asks for; see `pop_surplus`."""
        for destination, item in claimed:
            if self._begun[destination] >= self._allowed(destination):
                self._queue(destination, (now, item))
            elif self._limits.answers(destination) or self._unproven.may_wait(self._owner(item)):
                self._begun[destination] += 1
                self._place(destination, (now, item))
            else:
                self._refused[destination] = None
                if len(self._refused) > MOST_REFUSED:
                    del self._refused[next(iter(self._refused))]
                self._surplus.append(item)

    def pop_surplus(self) -> list[Item]:
        """Remove what should not wait here, and return it: too many rows for unproven destinations, and rows for those that hang."""
        surplus, self._surplus = self._surplus, []
        return surplus

    def _allowed(self, destination: str) -> int:
        return 1 if self._limits.hangs(destination) else self._per_destination

    def _queue(self, destination: str, claimed: Claimed[Item]) -> None:
        """Have a row wait for its destination; not for one that hangs, whose rows others may send."""
        if self._limits.hangs(destination):
            self._surplus.append(claimed[1])
        else:
            self._queued.setdefault(destination, deque()).append(claimed)
            self._queue_length += 1

    def _place(self, destination: str, claimed: Claimed[Item]) -> None:
        """Have a row wait for a slot, which has a place at its destination."""
        owner = self._owner(claimed[1])
        if self._limits.answers(destination):
            self._ready.append(owner, (destination, claimed))
        else:
            self._unproven.append(owner, (destination, claimed))

    def start(self) -> Iterator[Item]:
        """Yield what may start now: by turns of the organizations, and of each the oldest claim first."""
        while self._in_flight < self.limit:
            started = self._next()
            if started is None:
                return
            owner, (destination, (_, item)) = started
            if not self._limits.answers(destination):
                self._unproven.begin(owner, started[1])
            self._in_flight += 1
            self._held[owner] += 1
            yield item

    def _next(self) -> tuple[str, Placed[Item]] | None:
        """Remove the next row that may start; ``None``: none may."""
        while True:
            # First unproven destinations, within their share: where all slots are used, they would never be tried.
            found = (
                self._unproven.waiting.pop(self._may_begin_unproven) if len(self._unproven.waiting) else None
            )
            if found is not None:
                self._unproven.leave(found[1])
            else:
                found = self._ready.pop(self._is_within_share if self._ready.owners > 1 else None)
                found = found or self._ready.pop()
                if found is None:
                    return None
                if not self._limits.answers(found[1][0]) and not self._unproven.may_begin(found[0]):
                    # It has begun to hang since.
                    self._unproven.append(*found)
                    continue
            destination, claimed = found[1]
            if self._limits.hangs(destination) and self._begun[destination] > 1:
                self._surplus.append(claimed[1])
                self._leave(destination)
                continue
            return found

    def _may_begin_unproven(self, owner: str) -> bool:
        if self._ready.has_others(owner) and not self._is_within_share(owner):
            return False
        may = self._unproven.may_begin(owner)
        if not may:
            self._limits.pass_over(owner)
        return may

    def _is_within_share(self, owner: str) -> bool:
        within = self._held[owner] < self._share
        if not within:
            self._limits.pass_over(owner)
        return within

    def finish(self, destination: str, item: Item) -> bool:
        """Free the slot of a delivery, whose outcome is recorded in `Limits`.

        Returns:
            Whether the last claim reached the limit of its destination, and half of what waited for it is gone: more
            rows may be due for it.
        """
        owner = self._owner(item)
        self._in_flight -= 1
        self._held[owner] -= 1
        if not self._held[owner]:
            del self._held[owner]
        self._finished[destination] += 1
        remaining = len(self._queued.get(destination) or ())
        if self._limits.answers(destination):
            self._refused.pop(destination, None)
            for each, placed in self._unproven.answered(destination):
                self._ready.append(each, placed)
        else:
            self._unproven.end(destination, owner, item)
        self._leave(destination)
        return destination in self._limited and remaining <= self._refill.get(destination, 0)

    def _leave(self, destination: str) -> None:
        """Give the place of a delivery at its destination to the next that waits for it."""
        self._begun[destination] -= 1
        queued = self._queued.get(destination)
        if queued is not None:
            self._queue_length -= len(queued)
            if self._limits.hangs(destination):
                self._surplus += [item for _, item in queued]
                queued.clear()
            while queued and self._begun[destination] < self._per_destination:
                self._begun[destination] += 1
                self._place(destination, queued.popleft())
            self._queue_length += len(queued)
            if not queued:
                del self._queued[destination]
        if not self._begun[destination]:
            del self._begun[destination]

    def overdue(self, before: float) -> list[Item]:
        """Remove what was claimed before a time and still waits, and return it."""
        return self.remove(lambda claimed_at, _item: claimed_at < before)

    def remove(self, unwanted: Callable[[float, Item], bool]) -> list[Item]:
        """Remove some of what waits, and return it.

        Args:
            unwanted: returns whether to remove a row, given when it was claimed, and the row.
        """
        removed: list[Item] = []
        for destination, queued in list(self._queued.items()):
            kept = deque(each for each in queued if not unwanted(*each))
            if len(kept) == len(queued):
                continue
            removed += [item for claimed_at, item in queued if unwanted(claimed_at, item)]
            if kept:
                self._queued[destination] = kept
            else:
                del self._queued[destination]
        self._queue_length -= len(removed)
        ready = self._ready.remove(lambda placed: unwanted(*placed[1]))
        unproven = self._unproven.waiting.remove(lambda placed: unwanted(*placed[1]))
        for _, placed in unproven:
            self._unproven.leave(placed)
        for _, (destination, (_, item)) in ready + unproven:
            removed.append(item)
            self._leave(destination)
        return removed

    def waiting_items(self) -> list[Item]:
        """Return what waits for a slot."""
        placed = [item for _, (_, item) in chain(self._ready, self._unproven.waiting)]
        return placed + [item for queued in self._queued.values() for _, item in queued]

    def clear(self) -> list[Item]:
        """Remove what waits for a slot, and return it."""
        return self.remove(lambda _claimed_at, _item: True) + self.pop_surplus()
