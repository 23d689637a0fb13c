"""Work that a worker does beside its deliveries, round by round."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final, NoReturn

from flowactions_plugin.errors import StorageUnavailable
from flowactions_plugin.log_text import printable

FAILURE_SECONDS: Final = 5.0
"""Seconds until the next round while the database is away."""


async def keep_on(work: Callable[[], Awaitable[float]], log_outage: Callable[[str], None]) -> NoReturn:
    """Do a round after the other until cancelled.

    Args:
        work: does a round; returns the seconds until the next.
        log_outage: logs that the work waits for the database, and why; called once while that lasts.
    """
    failing = False
    while True:
        try:
            pause = await work()
            failing = False
        except StorageUnavailable as exc:
            if not failing:
                log_outage(printable(exc, message=True))
            failing = True
            pause = FAILURE_SECONDS
        await asyncio.sleep(pause)
