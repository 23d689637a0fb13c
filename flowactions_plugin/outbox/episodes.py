"""What is wrong for a while is said once, and not for each delivery that meets it."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Final

REMEMBERED: Final = 1000


class Episodes:
    """Remembers what is going on."""

    def __init__(self) -> None:
        self._open: set[Hashable] = set()

    def begin(self, key: Hashable) -> bool:
        """Take note that something is going on.

        Returns:
            Whether that is new, and so worth a line.
        """
        if key in self._open:
            return False
        if len(self._open) >= REMEMBERED:
            self._open.clear()
        self._open.add(key)
        return True

    def end(self, key: Hashable) -> bool:
        """Take note that something is over.

        Returns:
            Whether it had been going on.
        """
        if key not in self._open:
            return False
        self._open.discard(key)
        return True
