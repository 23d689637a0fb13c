"""How deliveries are sent that were in the hands of workers that ended: in ever smaller groups. Pure, no I/O.

Whatever kills a worker is among what it had claimed. The others are told apart from it by sending fewer of them at once,
until each is alone; so what is innocent is delivered, and only what is alone with a worker when that ends can be to blame.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Final

from flowactions_plugin.outbox.claimed import ClaimedDelivery

GROUPS: Final = {2: 16, 3: 4, 4: 1}
"""Reclaims of a delivery, and how many such deliveries a process has claimed at once; with fewer reclaims any number,
with more none: they are sent in quarantine."""

QUARANTINE_ROUNDS: Final = 3
"""How many rounds in quarantine may begin and not finish before a delivery is dead."""


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
