"""Retention: finished and abandoned rows are deleted in small batches, by an index."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, TypeAlias

from flowactions_plugin.errors import StorageUnavailable

log = logging.getLogger("flowactions.retention")

BATCH: Final = 500
PERIOD_SECONDS: Final = 3600.0
PAUSE_SECONDS: Final = 0.1
"""Between two batches, so that other writers can proceed."""

DEAD_DAYS: Final = 90
"""Dead rows are kept at least this long, for replay."""

DAY_MS: Final = 24 * 3600 * 1000

Prune: TypeAlias = Callable[[int], Awaitable[int]]
"""Deletes up to so many rows; returns their number."""


async def prune_all(prunes: Sequence[Prune]) -> int:
    """Delete all rows that are old enough; returns their number.

    Raises:
        StorageUnavailable: the database failed; rows that were deleted before stay deleted.
    """
    total = 0
    for prune in prunes:
        while True:
            removed = await prune(BATCH)
            total += removed
            if removed < BATCH:
                break
            await asyncio.sleep(PAUSE_SECONDS)
    return total


async def keep_pruning(prunes: Sequence[Prune]) -> None:
    """Prune at once and then every hour, until cancelled."""
    while True:
        try:
            removed = await prune_all(prunes)
            if removed:
                log.info("retention: %s old rows removed", removed)
        except StorageUnavailable as exc:
            log.warning("retention failed, and the next run tries again: %s", exc)
        await asyncio.sleep(PERIOD_SECONDS)
