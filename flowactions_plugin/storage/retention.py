"""Retention: finished and abandoned rows are deleted in small batches, by an index, in a share of the time.

A batch takes longer while the database delivers, and the pause after it is a multiple of what it took: the busier the
database is, the slower retention goes. So that it comes to an end under a load that does not, its share grows while a run
lasts.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, TypeAlias

log = logging.getLogger("flowactions.retention")

BATCH: Final = 200

DOUBLING_SECONDS: Final = 300.0
"""After so long a run, and each time again, its share of the time is doubled."""

DEAD_DAYS: Final = 90
"""Dead rows are kept at least this long, for replay."""

HOUR_MS: Final = 3600 * 1000
DAY_MS: Final = 24 * HOUR_MS

Prune: TypeAlias = Callable[[int], Awaitable[int]]
"""Deletes up to so many rows; returns their number."""


def pause_after(batch_seconds: float, run_seconds: float) -> float:
    """Return the seconds to pause after a batch that took so long, in a run that has lasted so long.

    The batches take a tenth of the time at first, so that deliveries beside them keep nine tenths of their rate, and half of
    it at the most. Other writers can proceed in every pause.
    """
    share = min(0.5, 0.1 * 2 ** min(run_seconds / DOUBLING_SECONDS, 10))
    return max(0.02, batch_seconds * (1 - share) / share)


class Pruning:
    """Deletes all rows that are old enough, a batch at a time.

    Args:
        prunes: one for each kind of rows.
    """

    def __init__(self, prunes: Sequence[Prune]) -> None:
        self._prunes = prunes
        self._left: list[Prune] = []
        self._begun = 0.0
        self._removed = 0

    async def prune(self) -> float | None:
        """Delete the next batch; return the seconds until the one after it, ``None`` when nothing is left.

        Raises:
            StorageUnavailable: the database failed; the next call goes on.
        """
        if not self._left:
            self._left, self._begun, self._removed = list(self._prunes), time.monotonic(), 0
        while self._left:
            started = time.monotonic()
            removed = await self._left[0](BATCH)
            self._removed += removed
            if removed >= BATCH:
                ended = time.monotonic()
                return pause_after(ended - started, ended - self._begun)
            del self._left[0]
        if self._removed:
            log.info("retention: %s old rows removed", self._removed, extra={"event": "retention.removed"})
        return None
