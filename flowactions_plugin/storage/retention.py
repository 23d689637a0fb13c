"""Retention: what is finished or abandoned is removed, in small batches, by an index."""

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
"""Between two batches, so that other writers get their turn."""

DEAD_DAYS: Final = 90
"""Dead rows are kept this long at the least, for replay."""

DAY_MS: Final = 24 * 3600 * 1000

Prune: TypeAlias = Callable[[int], Awaitable[int]]
"""Removes up to so many rows; gives how many there were."""


async def prune_all(prunes: Sequence[Prune]) -> int:
    """Remove everything that is old enough; give how much it was.

    Raises:
        StorageUnavailable: the database failed; what was removed until then stays removed.
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
            log.warning("retention waits for its next turn: %s", exc)
        await asyncio.sleep(PERIOD_SECONDS)
