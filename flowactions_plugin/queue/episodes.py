"""Conditions that last are logged once, when they begin, and not for each delivery."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Final

REMEMBERED: Final = 1000


class Episodes:
    """Remembers which conditions have begun and not ended."""

    def __init__(self) -> None:
        self._open: set[Hashable] = set()

    def begin(self, key: Hashable) -> bool:
        """Record that a condition holds.

        Returns:
            Whether that is new, and so to be logged.
        """
        if key in self._open:
            return False
        if len(self._open) >= REMEMBERED:
            self._open.clear()
        self._open.add(key)
        return True

    def end(self, key: Hashable) -> bool:
        """Record that a condition has ended.

        Returns:
            Whether it was recorded.
        """
        if key not in self._open:
            return False
        self._open.discard(key)
        return True
