"""Which claimed deliveries may start, and how many more to claim: pure, no I/O."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from typing import Final, Generic, NamedTuple, TypeAlias, TypeVar

Item = TypeVar("Item")

_Claimed: TypeAlias = tuple[float, Item]
"""When a row was claimed, and the row."""

LEAST_DEMAND: Final = 16

PREFETCHED: Final = 8
"""How many rows are claimed ahead for each one that has finished since the claim before, up to as many as there are slots.
With one for one, a destination at its limit would get ten rows a claim, and claims would cost more than the requests
(decision 34)."""


class _Turns(Generic[Item]):
    """A queue of several owners, who take turns; what belongs to one comes in order."""

    def __init__(self) -> None:
        self._by_owner: dict[str, deque[Item]] = {}
        self._length = 0

    def __len__(self) -> int:
        return self._length

    def __iter__(self) -> Iterator[Item]:
        for items in self._by_owner.values():
            yield from items

    def append(self, owner: str, item: Item) -> None:
        self._by_owner.setdefault(owner, deque()).append(item)
        self._length += 1

    def popleft(self) -> Item:
        owner = next(iter(self._by_owner))
        items = self._by_owner.pop(owner)
        item = items.popleft()
        if items:
            self._by_owner[owner] = items  # behind the others
        self._length -= 1
        return item


class ClaimRequest(NamedTuple):
    """What a claim should return.

    Attributes:
        limit: rows at the most.
        in_flight: for each destination, how many will be in flight when the claim returns.
    """

    limit: int
    in_flight: Counter[str]


class Slots(Generic[Item]):
    """The slots of a worker, the per-destination limit, and the deliveries that wait for a slot.

    While a claim is under way, slots become free. So a claim asks for `AHEAD` times as many more rows as were finished
    since the claim before, up to as many as there are slots: they wait here until their slot is free. With slow
    receivers nothing finishes, and nothing is claimed ahead. What waits too long, because its destination has begun to
    hang, is given back (`overdue`).

    Args:
        limit: deliveries in flight at once.
        per_destination: of these, how many to one destination.
        owner: returns the organization of a row. Organizations take turns with the slots.
    """

    def __init__(
        self, limit: int, per_destination: int, owner: Callable[[Item], str] = lambda _item: ""
    ) -> None:
        self.limit = limit
        self._per_destination = per_destination
        self._in_flight = 0
        self._begun: Counter[str] = Counter()  # in flight or ready
        self._ready: _Turns[tuple[str, _Claimed[Item]]] = _Turns()
        self._owner = owner
        self._queued: dict[str, deque[_Claimed[Item]]] = {}
        self._queue_length = 0
        self._refill: dict[str, int] = {}  # how few wait when the next claim is due, by destination
        self._finished: Counter[str] = Counter()
        self._claimed = 0
        self._limited: set[str] = set()

    @property
    def waiting(self) -> int:
        """How many claimed rows have no slot yet."""
        return len(self._ready) + self._queue_length

    @property
    def in_flight(self) -> Counter[str]:
        """How many deliveries are in flight to each destination, with those that wait."""
        used = Counter(self._begun)
        for destination, queued in self._queued.items():
            used[destination] += len(queued)
        return used

    def demand(self, *, beyond_head: bool = True) -> ClaimRequest:
        """Return what to claim now; what finishes from now on counts for the next claim.

        Args:
            beyond_head: whether rows may be due to other destinations than those at their limit.
        """
        free = self.limit - self._in_flight - len(self._ready)
        prefetched = min(PREFETCHED * self._finished.total(), self.limit)
        # Rows that wait for their destination leave the free slots to others.
        room = max(0, free) + max(0, prefetched + min(0, free) - self._queue_length)
        if free <= 0 and room < self.limit // 2 and self.waiting:
            # What waits lasts for a while; a larger claim costs less a row.
            return ClaimRequest(0, Counter())
        if not beyond_head:
            room = min(room, self._refillable())
            if room <= 0:
                return ClaimRequest(0, Counter())
        finished, self._finished = self._finished, Counter()
        # Where the per-destination limit keeps claims small, each would examine many rows in vain.
        limit = min(max(0, room), max(LEAST_DEMAND, 2 * self._claimed))
        in_flight = self.in_flight
        in_flight.subtract({destination: PREFETCHED * count for destination, count in finished.items()})
        return ClaimRequest(limit, in_flight)

    def _refillable(self) -> int:
        """Return how many rows may be claimed for destinations at which half of what waited is gone."""
        rows = 0
        for destination, finished in self._finished.items():
            waiting = len(self._queued.get(destination, ()))
            if waiting <= self._refill.get(destination, 0):
                rows += self._per_destination - self._begun[destination] - waiting + PREFETCHED * finished
        return rows

    def add(self, request: ClaimRequest, claimed: Sequence[tuple[str, Item]], now: float = 0.0) -> None:
        """Add what a claim returned, by destination.

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
        """Add what was claimed beside the claims that `demand` asks for."""
        for destination, item in claimed:
            if self._begun[destination] < self._per_destination:
                self._begun[destination] += 1
                self._ready.append(self._owner(item), (destination, (now, item)))
            else:
                self._queued.setdefault(destination, deque()).append((now, item))
                self._queue_length += 1

    def start(self) -> Iterator[Item]:
        """Yield what may start now, the oldest claim first."""
        while self._ready and self._in_flight < self.limit:
            self._in_flight += 1
            yield self._ready.popleft()[1][1]

    def finish(self, destination: str) -> bool:
        """Free the slot of a delivery.

        Returns:
            Whether the last claim reached the limit of its destination, and half of what waited for it is gone: more
            rows may be due for it.
        """
        self._in_flight -= 1
        self._finished[destination] += 1
        queued = self._queued.get(destination)
        remaining = len(queued or ())
        self._leave(destination)
        return destination in self._limited and remaining <= self._refill.get(destination, 0)

    def _leave(self, destination: str) -> None:
        """Give the place of a delivery at its destination to the next that waits for it."""
        queued = self._queued.get(destination)
        if queued:
            first = queued.popleft()
            self._ready.append(self._owner(first[1]), (destination, first))
            self._queue_length -= 1
            if not queued:
                del self._queued[destination]
        else:
            self._begun[destination] -= 1
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
        ready, self._ready = self._ready, _Turns()
        for destination, (claimed_at, item) in ready:
            if unwanted(claimed_at, item):
                removed.append(item)
                self._leave(destination)
            else:
                self._ready.append(self._owner(item), (destination, (claimed_at, item)))
        return removed

    def waiting_items(self) -> list[Item]:
        """Return what waits for a slot."""
        ready = [item for _, (_, item) in self._ready]
        return ready + [item for queued in self._queued.values() for _, item in queued]

    def clear(self) -> list[Item]:
        """Remove what waits for a slot, and return it."""
        waiting = self.waiting_items()
        self._begun -= Counter(destination for destination, _ in self._ready)
        self._ready = _Turns()
        self._queued.clear()
        self._queue_length = 0
        return waiting
