"""The share of slots that destinations may have that have not answered: pure, no I/O (decision 69)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Generic, TypeAlias, TypeVar

from flowactions_plugin.queue.turns import Turns

Item = TypeVar("Item")

Claimed: TypeAlias = tuple[float, Item]
"""When a row was claimed, and the row."""

Placed: TypeAlias = tuple[str, Claimed[Item]]
"""The destination of a row, and the row."""


class Unproven(Generic[Item]):
    """Deliveries to destinations that have not answered: those that wait for a slot, and those that have one.

    Together these have at most half of the slots; only an organization that has none of them may begin one more. So
    receivers that hang leave the other half to those that answer, and those of one organization do not keep a new
    destination of another from being tried.

    Args:
        share: half of the slots.
        weight: returns for how many a row counts.

    Attributes:
        waiting: those that wait, by organization.
    """

    def __init__(self, share: int, weight: Callable[[Item], int]) -> None:
        self.waiting: Turns[Placed[Item]] = Turns()
        self._share = share
        self._weight = weight
        self._waiting_of: Counter[str] = Counter()  # by destination
        self._in_flight: dict[str, Counter[str]] = {}  # by destination and organization
        self._of: Counter[str] = Counter()  # in flight, by organization
        self._waits = 0
        self._begun = 0

    @property
    def startable(self) -> int:
        """How many of those that wait may have a slot now, at the least."""
        return max(0, min(len(self.waiting), self._share - self._begun))

    @property
    def is_crowded(self) -> bool:
        """Whether as many wait as may be in flight, so that no more should be claimed."""
        return self._waits + self._begun >= 2 * self._share

    @property
    def has_room(self) -> bool:
        """Whether half of the places to wait are free."""
        return 2 * (self._waits + self._begun) < 3 * self._share

    def may_wait(self, owner: str) -> bool:
        """Return whether one more may wait: it may where few wait, or where its organization has nothing else here."""
        return not self.is_crowded or (self._of[owner] == 0 and owner not in self.waiting)

    def may_begin(self, owner: str) -> bool:
        """Return whether an organization may begin one more."""
        return self._begun < self._share or self._of[owner] == 0

    def append(self, owner: str, placed: Placed[Item]) -> None:
        """Add a row that waits."""
        self.waiting.append(owner, placed)
        self._waiting_of[placed[0]] += 1
        self._waits += self._weight(placed[1][1])

    def leave(self, placed: Placed[Item]) -> None:
        """Record that a waiting row was removed."""
        self._waiting_of[placed[0]] -= 1
        if not self._waiting_of[placed[0]]:
            del self._waiting_of[placed[0]]
        self._waits -= self._weight(placed[1][1])

    def begin(self, owner: str, placed: Placed[Item]) -> None:
        """Record that a row got a slot."""
        weight = self._weight(placed[1][1])
        self._in_flight.setdefault(placed[0], Counter())[owner] += weight
        self._of[owner] += weight
        self._begun += weight

    def end(self, destination: str, owner: str, item: Item) -> None:
        """Record the end of an attempt."""
        of = self._in_flight.get(destination)
        if of is not None and of[owner]:
            self._subtract(destination, owner, min(of[owner], self._weight(item)))

    def answered(self, destination: str) -> list[tuple[str, Placed[Item]]]:
        """Record that a destination has answered: its deliveries in flight no longer count. Return its waiting ones."""
        for owner, weight in list(self._in_flight.get(destination, {}).items()):
            self._subtract(destination, owner, weight)
        if destination not in self._waiting_of:
            return []
        removed = self.waiting.remove(lambda each: each[0] == destination)
        for _, placed in removed:
            self.leave(placed)
        return removed

    def _subtract(self, destination: str, owner: str, weight: int) -> None:
        of = self._in_flight[destination]
        for counter in (of, self._of):
            counter[owner] -= weight
            if not counter[owner]:
                del counter[owner]
        if not of:
            del self._in_flight[destination]
        self._begun -= weight
