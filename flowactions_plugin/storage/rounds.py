"""Work that a process does in rounds in the background, and the log of the outages that all of it meets."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from typing import Final, NoReturn

from flowactions_plugin.errors import StorageUnavailable
from flowactions_plugin.log_text import printable

log = logging.getLogger("flowactions.outbox")

FAILURE_SECONDS: Final = 5.0
"""Seconds until the next round while the database is away."""

SAME_OUTAGE_SECONDS: Final = 60.0
"""What begins to fail so long after the line of an outage is another outage: all parts try more often than that."""


class OutageLog:
    """Logs the outages of one database: once for all background parts of a host, whichever notices first."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._failing: set[str] = set()
        self._logged_at = 0.0

    def failed(self, part: str, error: StorageUnavailable) -> None:
        """Record that a part could not use the database, and why."""
        if part not in self._failing:
            now = self._clock()
            if not self._failing or now - self._logged_at > SAME_OUTAGE_SECONDS:
                self._logged_at = now
                log.error(
                    "the database is out of reach, trying again with backoff: %s",
                    printable(error, message=True),
                    extra={"event": "outbox.unreachable"},
                )
            self._failing.add(part)

    def worked(self, part: str) -> None:
        """Record that a part could use the database. The last one to do so ends the outage."""
        if part in self._failing:
            self._failing.remove(part)
            if not self._failing:
                log.info("the database is reachable again", extra={"event": "outbox.reachable"})

    def ended(self, part: str) -> None:
        """Record that a part uses the database no more."""
        self._failing.discard(part)


async def keep_on(
    work: Callable[[], Awaitable[float]],
    part: str,
    outage_log: OutageLog,
    *,
    wait: Callable[[float], Awaitable[None]] = asyncio.sleep,
    pause_after: Callable[[int], float] = lambda _failures: FAILURE_SECONDS,
) -> NoReturn:
    """Do a round after the other until cancelled, also after outages: what every background part does.

    Args:
        work: does a round; returns the seconds until the next.
        part: names it in the log of outages.
        outage_log: that of the database.
        wait: waits so many seconds for the next round, or until there is reason for an earlier one.
        pause_after: returns the seconds until the next round after the database failed so many times in a row.
    """
    failures = 0
    try:
        while True:
            try:
                pause = await work()
                failures = 0
                outage_log.worked(part)
            except StorageUnavailable as exc:
                failures += 1
                outage_log.failed(part, exc)
                await asyncio.sleep(pause_after(failures))
            else:
                await wait(pause)
    finally:
        outage_log.ended(part)
