"""Looks for what no transaction of its own reports: dead deliveries, pauses and their ends, a database that takes no writes."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any, Final, NamedTuple, TypeAlias

from sqlalchemy import Row, Select, desc, or_, select

from flowactions_plugin.alerts.events import (
    Alert,
    DatabaseUnwritable,
    DatabaseWritable,
    DeadGroup,
    DeliveriesDead,
    DestinationPaused,
    DestinationResumed,
)
from flowactions_plugin.alerts.queue import Alerts
from flowactions_plugin.clock import id_at, time_of, timer, to_iso
from flowactions_plugin.egress.attempt import Aborted, Message, Outcome
from flowactions_plugin.errors import StorageUnavailable
from flowactions_plugin.insights.standing import top
from flowactions_plugin.log_text import printable
from flowactions_plugin.operators.audit import SKEW_MS
from flowactions_plugin.queue.rules import transition
from flowactions_plugin.storage.database import Database
from flowactions_plugin.storage.dialect import inline
from flowactions_plugin.storage.schema import EVERY_ORGANIZATION, FINISHED, audit, outbox

log = logging.getLogger("flowactions.alerts")

WINDOW_MS: Final = 5 * 60 * 1000
"""Deliveries that end without success within such a window are one alert."""

DEAD_READ: Final = 10_000
"""How many rows of a window are counted at the most."""

GROUPS: Final = 10
"""How many groups an alert names."""

PAUSES_READ: Final = 500
"""How many pauses and resumptions are read at once."""

_GROUP: Final = ("organization_id", "destination", "error_class")

LATE_MS: Final = 10_000
"""So long after its end, all rows of a window are written."""

LOOK_BACK_MS: Final = 30 * 60 * 1000
"""How far a worker looks back when it starts: less than the shortest window of idempotency keys, by which workers know what
others have queued."""

AGAIN_MS: Final = 60_000
"""How often the alert that the database takes no writes is tried again until it arrives."""

SendNow: TypeAlias = Callable[[Message, str], Awaitable[Outcome | Aborted]]
"""Makes one attempt, outside of the outbox."""


class _Refused(NamedTuple):
    """An outage of writes: since when (Unix milliseconds), why, and which: as many have ended before it."""

    since: int
    reason: str
    number: int | None


class AlertWatch:
    """Looks for alerts, in each worker. One worker queues each, with any number of workers.

    Args:
        alerts: queues them.
        database: where it looks.
        send_now: sends what cannot be queued.
    """

    def __init__(self, alerts: Alerts, database: Database, send_now: SendNow) -> None:
        self._alerts = alerts
        self._database = database
        self._send_now = send_now
        self._refused: _Refused | None = None
        self._outages: int | None = None
        self._counts_from = 0.0
        self._told = False
        self._try_at = 0
        self._counted_until: int | None = None
        self._paused_since: int | None = None
        self._seen: set[str] = set()

    async def look(self) -> None:
        """Look once.

        Raises:
            StorageUnavailable: the database failed.
        """
        if await self._is_writable():
            now = int(await self._database.time() * 1000)
            await self._count_dead(now)
            await self._read_pauses(now)

    async def _is_writable(self) -> bool:
        with suppress(StorageUnavailable):  # the number that is known, where it cannot be read now
            outages = await self._alerts.outages()
            if self._outages not in {None, outages}:
                # What was refused before is of the outage that another worker told the end of.
                self._counts_from = timer()
            self._outages = outages
        last, refused = self._database.refused, self._refused
        reason = None if last is None or last.at < self._counts_from else last.words
        now = int(self._database.clock() * 1000)
        if reason is None:
            if refused is not None:
                since, words, number = refused
                ended = DatabaseWritable(
                    occurred_at=to_iso(now), since=to_iso(since), until=to_iso(now), reason=words
                )
                await self._alerts.end_outage(self._outages if number is None else number, ended)
                self._outages, self._refused = await self._alerts.outages(), None
            return True
        if refused is None or refused.number != self._outages:
            refused = self._refused = _Refused(now, reason, self._outages)
            self._told, self._try_at = False, 0
        if not self._told and now >= self._try_at:
            self._try_at = now + AGAIN_MS
            self._told = await self._tell_now(now, refused)
        return False

    async def _tell_now(self, now: int, refused: _Refused) -> bool:
        """Send that the database takes no writes, as the outbox cannot hold it; return whether it arrived."""
        alert: Alert = DatabaseUnwritable(
            occurred_at=to_iso(now), since=to_iso(refused.since), reason=refused.reason
        )
        key = None if refused.number is None else f"unwritable:{refused.number}"
        message = await self._alerts.delivery(alert, key)
        outcome = await self._send_now(message, self._alerts.secret)
        arrived = isinstance(outcome, Outcome) and transition(1, 1, outcome).status == "delivered"
        if not arrived:
            reason = outcome.reason if isinstance(outcome, Aborted) else outcome.error
            log.warning(
                "the alert that the database takes no writes did not arrive, and is sent again in a minute: %s",
                printable(reason or f"it answered {getattr(outcome, 'status_code', None)}", message=True),
                extra={"event": "alert.not_sent"},
            )
        return arrived

    async def _count_dead(self, now: int) -> None:
        closed = (now - LATE_MS) // WINDOW_MS * WINDOW_MS
        start = closed - LOOK_BACK_MS if self._counted_until is None else self._counted_until
        for since in range(max(start, closed - LOOK_BACK_MS), closed, WINDOW_MS):
            found = await self._database.rows(_dead(since))
            if found:
                deliveries = sum(row.number for row in found)
                alert = DeliveriesDead(
                    occurred_at=to_iso(now),
                    since=to_iso(since),
                    until=to_iso(since + WINDOW_MS),
                    deliveries=min(deliveries, DEAD_READ),
                    exact=deliveries <= DEAD_READ,
                    groups=[
                        DeadGroup(
                            organization_id=row.organization_id,
                            destination=row.destination,
                            error=row.error_class,
                            deliveries=row.number,
                        )
                        for row in found[:GROUPS]
                    ],
                )
                await self._alerts.add(alert, key=f"dead:{since}")
            self._counted_until = since + WINDOW_MS

    async def _read_pauses(self, now: int) -> None:
        since = now - LOOK_BACK_MS if self._paused_since is None else self._paused_since
        changes = select(audit).where(audit.c.id >= id_at(since), audit.c.action.in_(("pause", "resume")))
        found = await self._database.rows(changes.order_by(audit.c.id).limit(inline(PAUSES_READ)))
        for row in found:
            if row.id not in self._seen:
                await self._alerts.add(_alert(row), key=f"{row.action}d:{row.id}")
        self._seen = {row.id for row in found}
        # Lines of processes whose clocks differ may still come.
        self._paused_since = time_of(found[-1].id) if len(found) == PAUSES_READ else now - SKEW_MS


def _dead(since: int) -> Select[Any]:
    """Count the rows that ended without success in a window, by `_GROUP`, but for alerts and those that somebody cancelled."""
    rows = (
        select(*(outbox.c[name] for name in _GROUP))
        .where(
            FINISHED,
            outbox.c.status == inline("dead"),
            outbox.c.finished_at >= since,
            outbox.c.finished_at < since + WINDOW_MS,
            outbox.c.organization_id != inline(EVERY_ORGANIZATION),
            or_(outbox.c.error_class.is_(None), outbox.c.error_class != inline("cancelled")),
        )
        .order_by(outbox.c.finished_at)
        .limit(inline(DEAD_READ + 1))
    )
    return top(rows, _GROUP).order_by(desc("number"), *_GROUP)


def _alert(row: Row[Any]) -> Alert:
    """Return the alert of a line of the audit; without an organization, it is about all of them."""
    about: dict[str, Any] = {
        "occurred_at": to_iso(row.at),
        "organization_id": row.organization_id or None,
        "destination": row.destination,
    }
    if row.action == "pause":
        return DestinationPaused(**about, paused_by=row.actor_role)
    return DestinationResumed(**about, resumed_by=row.actor_role)
