"""Which claimed deliveries may start, and how many more to claim: pure, no I/O."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterator, Sequence
from typing import Final, Generic, NamedTuple, TypeVar

Item = TypeVar("Item")

LEAST_DEMAND: Final = 16


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

    While a claim is under way, slots become free. So a claim asks for as many more rows as were finished since the
    claim before: they wait here until their slot is free. With slow receivers nothing finishes, and nothing is claimed
    ahead.

    Args:
        limit: deliveries in flight at once.
        per_destination: of these, how many to one destination.
    """

    def __init__(self, limit: int, per_destination: int) -> None:
        self.limit = limit
        self._per_destination = per_destination
        self._in_flight = 0
        self._begun: Counter[str] = Counter()  # in flight or ready
        self._ready: deque[tuple[str, Item]] = deque()
        self._queued: dict[str, deque[Item]] = {}
        self._queue_length = 0
        self._finished: Counter[str] = Counter()
        self._claimed = 0
        self._limited: set[str] = set()

    @property
    def waiting(self) -> int:
        """How many claimed rows have no slot yet."""
        return len(self._ready) + self._queue_length

    def demand(self) -> ClaimRequest:
        """Return what to claim now; what finishes from now on counts for the next claim."""
        finished, self._finished = self._finished, Counter()
        room = self.limit - self._in_flight - self.waiting + min(finished.total(), self.limit)
        # Where the per-destination limit keeps claims small, each would examine many rows in vain.
        limit = min(max(0, room), max(LEAST_DEMAND, 2 * self._claimed))
        in_flight = Counter(self._begun)
        for destination, queued in self._queued.items():
            in_flight[destination] += len(queued)
        in_flight.subtract(finished)
        return ClaimRequest(limit, in_flight)

    def add(self, request: ClaimRequest, claimed: Sequence[tuple[str, Item]]) -> None:
        """Add what a claim returned, by destination."""
        used = request.in_flight
        for destination, item in claimed:
            used[destination] += 1
            if self._begun[destination] < self._per_destination:
                self._begun[destination] += 1
                self._ready.append((destination, item))
            else:
                self._queued.setdefault(destination, deque()).append(item)
                self._queue_length += 1
        self._claimed = len(claimed)
        self._limited = {place for place, count in used.items() if count >= self._per_destination}

    def start(self) -> Iterator[Item]:
        """Yield what may start now, the oldest claim first."""
        while self._ready and self._in_flight < self.limit:
            self._in_flight += 1
            yield self._ready.popleft()[1]

    def finish(self, destination: str) -> bool:
        """Free the slot of a delivery.

        Returns:
            Whether the last claim reached the limit of its destination: more rows may be due for it.
        """
        self._in_flight -= 1
        self._finished[destination] += 1
        queued = self._queued.get(destination)
        if queued:
            self._ready.append((destination, queued.popleft()))
            self._queue_length -= 1
            if not queued:
                del self._queued[destination]
        else:
            self._begun[destination] -= 1
            if not self._begun[destination]:
                del self._begun[destination]
        return destination in self._limited

    def clear(self) -> list[Item]:
        """Remove what waits for a slot, and return it."""
        waiting = [item for _, item in self._ready]
        waiting += [item for queued in self._queued.values() for item in queued]
        self._begun -= Counter(destination for destination, _ in self._ready)
        self._ready.clear()
        self._queued.clear()
        self._queue_length = 0
        return waiting
