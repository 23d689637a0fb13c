"""Which claimed deliveries may start, and how many more to claim: pure, no I/O."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterator, Sequence
from typing import Final, Generic, NamedTuple, TypeVar

Item = TypeVar("Item")

LEAST_WANTED: Final = 16


class Wish(NamedTuple):
    """What a claim should bring.

    Attributes:
        limit: rows at the most.
        busy: for each destination, how much of its share will be used when the claim returns.
    """

    limit: int
    busy: Counter[str]


class Slots(Generic[Item]):
    """The slots of a worker, each destination's share of them, and what waits for one.

    While a claim is under way, slots become free. So a claim asks for as many rows more as were finished since the
    claim before: they wait here until their slot is free. With slow receivers nothing finishes, and nothing is claimed
    ahead.

    Args:
        limit: deliveries in flight at once.
        per_destination: of these, how many to one destination.
    """

    def __init__(self, limit: int, per_destination: int) -> None:
        self.limit = limit
        self._share = per_destination
        self._in_flight = 0
        self._begun: Counter[str] = Counter()  # in flight or ready
        self._ready: deque[tuple[str, Item]] = deque()
        self._held: dict[str, deque[Item]] = {}
        self._holding = 0
        self._finished: Counter[str] = Counter()
        self._brought = 0
        self._limited: set[str] = set()

    @property
    def waiting(self) -> int:
        """How many claimed rows have no slot yet."""
        return len(self._ready) + self._holding

    def wish(self) -> Wish:
        """Say what to claim now; what finishes from now on counts for the next claim."""
        finished, self._finished = self._finished, Counter()
        room = self.limit - self._in_flight - self.waiting + min(finished.total(), self.limit)
        # Where shares keep claims small, looking at many rows each time would be in vain.
        limit = min(max(0, room), max(LEAST_WANTED, 2 * self._brought))
        busy = Counter(self._begun)
        for place, held in self._held.items():
            busy[place] += len(held)
        busy.subtract(finished)
        return Wish(limit, busy)

    def add(self, wish: Wish, claimed: Sequence[tuple[str, Item]]) -> None:
        """Take in what a claim brought, by destination."""
        used = wish.busy
        for destination, item in claimed:
            used[destination] += 1
            if self._begun[destination] < self._share:
                self._begun[destination] += 1
                self._ready.append((destination, item))
            else:
                self._held.setdefault(destination, deque()).append(item)
                self._holding += 1
        self._brought = len(claimed)
        self._limited = {place for place, count in used.items() if count >= self._share}

    def start(self) -> Iterator[Item]:
        """Give what may start now, the oldest claim first."""
        while self._ready and self._in_flight < self.limit:
            self._in_flight += 1
            yield self._ready.popleft()[1]

    def finish(self, destination: str) -> bool:
        """Take note that a delivery is over.

        Returns:
            Whether the last claim left rows to its destination alone because of its share: more may be due for it.
        """
        self._in_flight -= 1
        self._finished[destination] += 1
        held = self._held.get(destination)
        if held:
            self._ready.append((destination, held.popleft()))
            self._holding -= 1
            if not held:
                del self._held[destination]
        else:
            self._begun[destination] -= 1
            if not self._begun[destination]:
                del self._begun[destination]
        return destination in self._limited

    def abandon(self) -> list[Item]:
        """Give what waits, and forget it."""
        waiting = [item for _, item in self._ready]
        waiting += [item for held in self._held.values() for item in held]
        self._begun -= Counter(destination for destination, _ in self._ready)
        self._ready.clear()
        self._held.clear()
        self._holding = 0
        return waiting
