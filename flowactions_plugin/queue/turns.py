"""A queue whose owners take turns: pure, no I/O."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from typing import Generic, TypeVar

Item = TypeVar("Item")


class Turns(Generic[Item]):
    """A queue of several owners, who take turns; what belongs to one comes in order."""

    def __init__(self) -> None:
        self._by_owner: dict[str, deque[Item]] = {}
        self._length = 0

    def __len__(self) -> int:
        return self._length

    def __iter__(self) -> Iterator[Item]:
        for items in self._by_owner.values():
            yield from items

    def __contains__(self, owner: str) -> bool:
        return owner in self._by_owner

    @property
    def owners(self) -> int:
        """How many owners there are."""
        return len(self._by_owner)

    def has_others(self, owner: str) -> bool:
        """Return whether anything belongs to somebody else."""
        return len(self._by_owner) > (owner in self._by_owner)

    def append(self, owner: str, item: Item) -> None:
        """Add an item behind the others of its owner."""
        self._by_owner.setdefault(owner, deque()).append(item)
        self._length += 1

    def pop(self, may: Callable[[str], bool] | None = None) -> tuple[str, Item] | None:
        """Remove the next item; ``None``: there is none.

        Args:
            may: returns whether an owner may have its turn; who may not keeps its place. ``None``: everyone may.

        Returns:
            The owner, and the item.
        """
        if may is None:
            owner = next(iter(self._by_owner), None)
        else:
            owner = next((each for each in self._by_owner if may(each)), None)
        if owner is None:
            return None
        items = self._by_owner.pop(owner)
        item = items.popleft()
        if items:
            self._by_owner[owner] = items  # behind the others
        self._length -= 1
        return owner, item

    def remove(self, unwanted: Callable[[Item], bool]) -> list[tuple[str, Item]]:
        """Remove some items; the turns stay as they are.

        Args:
            unwanted: returns whether to remove an item.

        Returns:
            The owner of each, and the item.
        """
        removed: list[tuple[str, Item]] = []
        for owner, items in list(self._by_owner.items()):
            kept: deque[Item] = deque()
            for item in items:
                if unwanted(item):
                    removed.append((owner, item))
                else:
                    kept.append(item)
            if kept:
                self._by_owner[owner] = kept
            else:
                del self._by_owner[owner]
        self._length -= len(removed)
        return removed
