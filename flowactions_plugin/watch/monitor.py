"""Watches the deliveries of one process: its row of the fleet, statistics, and alerts."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any, Final, TypeAlias

from flowactions_hookspecs import DeliveryAlert
from flowactions_plugin.errors import StorageUnavailable
from flowactions_plugin.log_text import printable
from flowactions_plugin.queue.claimed import Completion
from flowactions_plugin.queue.delivery_telemetry import Load
from flowactions_plugin.queue.host_calls import call_host
from flowactions_plugin.storage.database import Database
from flowactions_plugin.storage.schema import EVERY_ORGANIZATION
from flowactions_plugin.storage.waiting import is_unconfirmed
from flowactions_plugin.watch.fleet import BEAT_SECONDS, Fleet, limited_of
from flowactions_plugin.watch.statistics import Tally
from flowactions_plugin.watch.statistics_store import QueueAlerts, add_counts

log = logging.getLogger("flowactions.operate")

AT_ONCE: Final = 200
"""How many destinations are written at once: to prepare a thousand takes 5 ms, in which no answer is read."""

LAST_SECONDS: Final = 5.0
"""How long the last write may take when the process stops."""

CHANGES: Final[Mapping[str, str]] = {
    "failing": "fails: {} failures in a row",
    "recovered": "has recovered",
    "paused": "is paused automatically: {} failures in a row",
    "probed": "is probed with one delivery",
    "resumed": "is resumed automatically",
}
"""How the log says what has become of a destination."""

DeliveryAlerted: TypeAlias = Callable[[DeliveryAlert], Awaitable[None]]


class Monitor:
    """Watches the deliveries of one process.

    Args:
        database: where statistics and the fleet are written.
        mode: ``scheduled`` or ``continuous``.
        slots: attempts at once.
        delivery_alert: the host's method; ``None`` when it does not want to know.
        queue_alerts: queues what operators are told; ``None``: they are told nothing.
        delivery_timeout: seconds that an attempt may take.
    """

    def __init__(
        self,
        database: Database,
        mode: str,
        slots: int,
        delivery_alert: DeliveryAlerted | None,
        queue_alerts: QueueAlerts | None = None,
        delivery_timeout: int = 10,
    ) -> None:
        self._database = database
        self._queue_alerts = queue_alerts
        self._fleet = Fleet(database, mode, slots, delivery_timeout)
        self._delivery_timeout = delivery_timeout
        self._delivery_alert = delivery_alert
        self._tally = Tally()
        self._clock = database.clock
        self._since: float | None = None
        self._telling: set[asyncio.Task[None]] = set()
        self._load: Load | None = None
        self._beat_at = 0.0
        self._turn = asyncio.Lock()

    def record(self, completions: Sequence[Completion]) -> None:
        """Count outcomes that were just written. It returns at once, and does not raise."""
        if self._since is None:
            self._since = self._clock()
        self._tally.record(completions)

    @asynccontextmanager
    async def watching(self, load: Load) -> AsyncIterator[str]:
        """Have something to report until the block ends; then write what is left, within a few seconds.

        It gives the id of the process.
        """
        worker_id = self._fleet.begin()
        self._beat_at, self._turn = 0.0, asyncio.Lock()
        try:
            # Before anything is claimed: a process that is killed at once was there.
            with suppress(StorageUnavailable, TimeoutError):
                async with asyncio.timeout(LAST_SECONDS):
                    await self._beat(load)
                    others = await self._fleet.others()
                    for other in others:
                        load.limits.begin_with(limited_of(other.limited))
                    self._compare([other for other in others if other.alive])
            self._load = load
            yield worker_id
        finally:
            self._load = None
            try:
                # A report that was cancelled ends first, and gives back what it has not written.
                async with asyncio.timeout(LAST_SECONDS), self._turn:
                    await self.write()
                    await self._fleet.stop()
                    if self._telling:
                        await asyncio.wait(self._telling)
            except (StorageUnavailable, TimeoutError) as exc:
                log.warning(
                    "the last statistics of this process are lost: %s",
                    printable(exc, message=True),
                    extra={"event": "statistics.lost"},
                )

    def _compare(self, others: Sequence[Any]) -> None:
        """Log that attempts of another process end earlier or later than those of this one."""
        own = self._delivery_timeout
        other = next((each for each in others if each.delivery_timeout != own), None)
        if other is not None:
            log.warning(
                "attempts of this worker end after %s s, and those of worker %s after %s s: "
                "set FLOWACTIONS_DELIVERY_TIMEOUT to the same value everywhere",
                *(own, printable(other.name), other.delivery_timeout),
                extra={"event": "settings.differ"},
            )

    async def report(self) -> None:
        """Write what was counted, and now and then that this process is alive; nothing while it does not deliver.

        Raises:
            StorageUnavailable: the database failed; what was counted is kept.
        """
        async with self._turn:
            load = self._load
            if load is None:
                return
            if asyncio.get_running_loop().time() >= self._beat_at or self._fleet.is_news(load.limits.limited()):
                await self._beat(load)
            await self.write()

    async def _beat(self, load: Load) -> None:
        """Write that this process is alive."""
        if await self._fleet.beat(load.in_flight, load.claimed, load.limits.limited(), load.slow.in_flight):
            load.limits.forget()
        self._beat_at = asyncio.get_running_loop().time() + BEAT_SECONDS

    async def write(self) -> None:
        """Write what was counted, and tell the host what follows from it.

        Raises:
            StorageUnavailable: the database failed; what was counted is kept.
        """
        counted = self._tally.pop()
        since, self._since = self._since, None
        if since is None:
            return
        rows = list(counted.items())
        for start in range(0, len(rows), AT_ONCE):
            try:
                taken = dict(rows[start : start + AT_ONCE])
                alerts = await add_counts(self._database, taken, since, self._queue_alerts)
            except BaseException as exc:
                # A caller that was cancelled during its commit may have written them: they are not counted again.
                unwritten = start + AT_ONCE if is_unconfirmed(exc) else start
                self._tally.restore(dict(rows[unwritten:]))
                self._since = since
                raise
            for alert in alerts:
                self.tell(alert)

    def tell(self, alert: DeliveryAlert) -> None:
        """Log what has become of a destination, and tell the host. It returns at once, and does not raise."""
        place = printable(alert.destination), printable(alert.organization_id)
        if alert.organization_id == EVERY_ORGANIZATION:
            # Nobody else would say it: of this, no alert is queued, and it is not of the host.
            log.error(
                "alerts %s at %s (FLOWACTIONS_ALERTS_URL)%s",
                "arrive again" if alert.kind == "recovered" else "do not arrive",
                place[0],
                "" if alert.kind == "recovered" else f": {alert.failures} failures in a row",
                extra={"event": "alerts.destination"},
            )
            return
        if alert.kind == "gone":
            log.warning(
                "destination %s of organization %s answers 410 Gone; dead deliveries: %s",
                *place,
                alert.failures,
                extra={"event": "destination.gone"},
            )
        else:
            log.warning(
                "destination %s of organization %s %s",
                *place,
                CHANGES[alert.kind].format(alert.failures),
                extra={"event": "destination.changed"},
            )
        if self._delivery_alert is None:
            return
        task = asyncio.create_task(self._call(self._delivery_alert, alert))
        self._telling.add(task)
        task.add_done_callback(self._telling.discard)

    @staticmethod
    async def _call(method: DeliveryAlerted, alert: DeliveryAlert) -> None:
        try:
            await call_host(method, alert)
        except Exception:
            log.exception(
                "the host failed to take note of an alert on %s",
                printable(alert.destination),
                extra={"event": "host.method_failed"},
            )
