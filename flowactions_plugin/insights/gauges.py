"""Reads what the gauges show: how deliveries stand, in the whole database, and how busy this process is."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from typing import Final

from flowactions_plugin.errors import StorageUnavailable
from flowactions_plugin.insights.findings import findings_of, verdict_of
from flowactions_plugin.insights.port import Insights
from flowactions_plugin.queue.delivery_telemetry import Load
from flowactions_plugin.telemetry import names
from flowactions_plugin.telemetry.meters import Meters, Reading

READ_SECONDS: Final = 15.0
"""How often the database is read, in each process whose lifespan is open."""

STALE_SECONDS: Final = 60.0
"""What was read so long ago is not reported: a value that stays the same says that all is well."""


class Gauges:
    """Reads the gauges of one process, where somebody listens.

    Args:
        meters: report them.
        insights: of the database.
        load: returns how busy this process is.
        timer: monotonic seconds.
    """

    def __init__(
        self,
        meters: Meters,
        insights: Insights,
        load: Callable[[], Load],
        timer: Callable[[], float] = time.monotonic,
    ) -> None:
        self._meters = meters
        self._insights = insights
        self._load = load
        self._timer = timer
        self._read_at = 0.0
        self._of_database: Sequence[Reading] = ()

    async def reading_loop(self) -> None:
        """Read every few seconds until cancelled; without a listener, only wait."""
        if not self._meters.is_open:
            await asyncio.Event().wait()
        self._meters.read_gauges(self.readings)
        while True:
            await self.read()
            await asyncio.sleep(READ_SECONDS)

    async def read(self) -> None:
        """Read the database; what was read before stays for a while when it does not answer, which others log."""
        try:
            facts = await self._insights.facts()
        except StorageUnavailable:
            return
        state = verdict_of(facts, findings_of(facts)).state
        blocked = [facts.now - each.since for each in facts.blocked if each.since is not None]
        self._of_database = [
            Reading(names.DUE, facts.due.number),
            Reading(names.OLDEST_DUE, (facts.oldest_due_ms or 0) / 1000),
            Reading(names.BLOCKED, max([0, *blocked]) / 1000),
            *(Reading(names.VERDICT, float(each == state), {"verdict": each}) for each in names.VERDICTS),
            Reading(names.CLOCK, abs(facts.clock_ahead_ms) / 1000),
        ]
        self._read_at = self._timer()

    def readings(self) -> Sequence[Reading]:
        """Return what the gauges show now; called by an exporter's thread."""
        load = self._load()
        own = [
            Reading(names.IN_FLIGHT, load.in_flight),
            Reading(names.SLOW, load.slow.in_flight),
            Reading(names.LIMITED, sum(map(len, load.limits.limited().values()))),
        ]
        if self._timer() - self._read_at > STALE_SECONDS:
            return own
        return [*own, *self._of_database]
