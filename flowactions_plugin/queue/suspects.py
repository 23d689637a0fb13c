"""Limits on deliveries that were reclaimed from workers that ended: they are sent in ever smaller groups. Pure, no I/O.

A delivery that ends its worker is among those that the worker had claimed. The groups become smaller until each delivery
is alone; so the others are delivered, and only a delivery that was alone in its worker can be what ended it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Final

from flowactions_plugin.queue.claimed import ClaimedDelivery

GROUPS: Final = {2: 16, 3: 4, 4: 1}
"""By the reclaims of a delivery: how many such deliveries a process sends at once. With fewer reclaims any number, with
more none: they are sent in quarantine."""

QUARANTINE_ROUNDS: Final = 3
"""How many rounds in quarantine may begin and not end before a delivery is dead."""


class Suspects:
    """The claimed deliveries of this process that were reclaimed more than once."""

    def __init__(self) -> None:
        self._held: dict[str, int] = {}

    def admit(self, claimed: Sequence[ClaimedDelivery]) -> tuple[list[ClaimedDelivery], list[ClaimedDelivery]]:
        """Divide a claim into what may be sent, and what is given back before anything of it is sent."""
        if all(each.reclaims < min(GROUPS) for each in claimed):
            return list(claimed), []
        counts = Counter(self._held.values())
        admitted, surplus = [], []
        for each in claimed:
            level = each.reclaims
            if level >= min(GROUPS):
                if counts[level] >= GROUPS.get(level, 0):
                    surplus.append(each)
                    continue
                counts[level] += 1
                self._held[each.id] = level
            admitted.append(each)
        return admitted, surplus

    def settle(self, delivery: ClaimedDelivery) -> None:
        """Forget a delivery: nothing of it is left to be written."""
        self._held.pop(delivery.id, None)
