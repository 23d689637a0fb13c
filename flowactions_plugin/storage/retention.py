"""Retention: finished and abandoned rows are deleted in small batches, by an index, in a share of the time.

A batch takes longer while the database delivers, and the pause after it is a multiple of what it took: the busier the
database is, the slower retention goes. So that it comes to an end under a load that does not, its share grows while a run
lasts.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, TypeAlias

from flowactions_plugin.storage.outages import OutageLog, keep_on

log = logging.getLogger("flowactions.retention")

BATCH: Final = 200
PERIOD_SECONDS: Final = 3600.0

LEAST_PAUSE_SECONDS: Final = 0.02
"""Between two batches, so that other writers can proceed."""

SHARE: Final = 0.1
"""The part of the time that batches take at first: deliveries beside them keep nine tenths of their rate."""

MOST_SHARE: Final = 0.5
DOUBLING_SECONDS: Final = 300.0
"""After so long a run, and each time again, its share is doubled."""

DEAD_DAYS: Final = 90
"""Dead rows are kept at least this long, for replay."""

HOUR_MS: Final = 3600 * 1000
DAY_MS: Final = 24 * HOUR_MS

Prune: TypeAlias = Callable[[int], Awaitable[int]]
"""Deletes up to so many rows; returns their number."""


def pause_after(batch_seconds: float, run_seconds: float) -> float:
    """Return the seconds to pause after a batch that took so long, in a run that has lasted so long."""
    share = min(MOST_SHARE, SHARE * 2 ** min(run_seconds / DOUBLING_SECONDS, 10))
    return max(LEAST_PAUSE_SECONDS, batch_seconds * (1 - share) / share)


async def prune_all(prunes: Sequence[Prune]) -> int:
    """Delete all rows that are old enough; returns their number.

    Raises:
        StorageUnavailable: the database failed; rows that were deleted before stay deleted.
    """
    total = 0
    begun = time.monotonic()
    for prune in prunes:
        while True:
            started = time.monotonic()
            removed = await prune(BATCH)
            total += removed
            if removed < BATCH:
                break
            ended = time.monotonic()
            await asyncio.sleep(pause_after(ended - started, ended - begun))
    return total


async def pruning_loop(prunes: Sequence[Prune], outage_log: OutageLog) -> None:
    """Prune at once and then every hour, until cancelled; sooner after an outage of the database."""

    async def prune() -> float:
        removed = await prune_all(prunes)
        if removed:
            log.info("retention: %s old rows removed", removed, extra={"event": "retention.removed"})
        return PERIOD_SECONDS

    await keep_on(prune, "retention", outage_log)
