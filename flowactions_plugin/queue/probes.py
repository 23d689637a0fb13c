"""Probes: of a destination that was paused automatically, one delivery is sent now and then (decision 70).

A probe is a claim of a parked row, outside of the slots. If it fails, its row gets one attempt more, so that none is used up:
once a row, and never more than ten. Then the row is parked again behind the others.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, Final, NamedTuple

from msgspec.structs import replace
from sqlalchemy import Select, String, and_, bindparam, exists, select, update
from sqlalchemy.engine import Connection

from flowactions_hookspecs import DeliveryAlert
from flowactions_plugin.clock import lease_clock
from flowactions_plugin.egress.attempt import PROBE
from flowactions_plugin.queue.claimed import ClaimedDelivery, read_row
from flowactions_plugin.queue.claims import claiming
from flowactions_plugin.queue.contact import Contact, new_token
from flowactions_plugin.queue.due import free, undoubted
from flowactions_plugin.queue.executor import Executor
from flowactions_plugin.queue.rules import MAX_ATTEMPTS_CAP, PAUSED_OFFSET_MS, UNDO_OFFSET_MS, probe_delay_ms
from flowactions_plugin.storage.conflicts import repeated
from flowactions_plugin.storage.database import Database
from flowactions_plugin.storage.dialect import Dialect, inline
from flowactions_plugin.storage.outages import keep_on
from flowactions_plugin.storage.schema import (
    EVERY_ORGANIZATION,
    LIVE,
    QUARANTINE_AFTER,
    attempts,
    outbox,
    pauses,
)

LOOK_SECONDS: Final = 5.0
"""Seconds between looks for destinations that are to be probed."""

AT_ONCE: Final = 10
"""How many probes a worker has in flight at the most, beside its slots."""

BY_ITSELF: Final = pauses.c.probe_at.is_not(None)
"""The condition that a pause is automatic, and has not ended."""

_PROBED: Final = select(attempts.c.number).where(
    attempts.c.delivery_id == bindparam("row", type_=String), attempts.c.phases.contains(f'"{PROBE}"')
)
"""The failed probe of the row of the parameter ``row``, for which it got an attempt."""


class _Due(NamedTuple):
    """A probe that is due.

    Attributes:
        organization_id: whose pause it is.
        destination: of the pause.
        probe_at: since when it is due.
        probes: how many were sent before.
        row: the id of the row that would be sent.
    """

    organization_id: str
    destination: str
    probe_at: int
    probes: int
    row: str


class Probes:
    """Probes destinations. Of any number of workers, one sends each probe.

    Args:
        database: where the queue is.
        contact: of the worker that claims.
        executor: makes the attempts.
        tell: learns of each probe, as it begins.
    """

    def __init__(
        self,
        database: Database,
        contact: Contact,
        executor: Executor,
        tell: Callable[[DeliveryAlert], None] = lambda _alert: None,
    ) -> None:
        self._database = database
        self._contact = contact
        self._executor = executor
        self._tell = tell
        self._in_flight: set[asyncio.Task[None]] = set()
        self._beginning = asyncio.Lock()

    async def run(self) -> None:
        """Send what is due until cancelled; what is in flight then, `finish` waits for."""
        await keep_on(self.look, "probes", self._database.outage_log)

    async def look(self) -> float:
        """Begin the probes that are due; return the seconds until the next look.

        Raises:
            StorageUnavailable: the database failed.
        """
        async with self._beginning:
            room = AT_ONCE - len(self._in_flight)
            claimed = [] if self._executor.stopping else await self.claim(room)
            for each in await self._executor.admit(claimed):
                task = asyncio.create_task(self._send(each))
                self._in_flight.add(task)
                task.add_done_callback(self._in_flight.discard)
        return LOOK_SECONDS

    async def _send(self, delivery: ClaimedDelivery) -> None:
        self._tell(
            DeliveryAlert(
                organization_id=delivery.organization_id, destination=delivery.destination, kind="probed"
            )
        )
        await self._executor.execute(delivery, self._executor.secrets())

    async def finish(self) -> None:
        """Wait for the probes in flight."""
        while self._in_flight:
            await asyncio.wait(self._in_flight)

    @asynccontextmanager
    async def none(self) -> AsyncIterator[None]:
        """Within the block, no probe is in flight."""
        async with self._beginning:
            await self.finish()
            yield

    async def claim(self, limit: int) -> list[ClaimedDelivery]:
        """Claim the row that has waited for longest for each destination that is to be probed.

        Args:
            limit: how many rows at the most.

        Raises:
            StorageUnavailable: the database failed.
        """
        doubt = self._contact.doubt()
        rows = await self._database.rows(self._database.built(_due, bool(doubt)), doubt)
        due = [_Due._make(row) for row in rows[:limit]]
        return await self._claim(due) if due else []

    @repeated
    async def _claim(self, due: list[_Due]) -> list[ClaimedDelivery]:
        lease_end = lease_clock() + self._contact.lease_seconds
        token = new_token(self._contact.token_prefix)

        def claim(connection: Connection) -> list[ClaimedDelivery]:
            claimed: list[ClaimedDelivery] = []
            for each in due:
                # While it is locked, no other worker sends this probe, and nobody resumes the destination.
                mine = and_(
                    pauses.c.organization_id == each.organization_id,
                    pauses.c.destination == each.destination,
                    pauses.c.probe_at == each.probe_at,
                    BY_ITSELF,
                )
                locked = select(pauses.c.probes).where(mine).with_for_update(skip_locked=True)
                if connection.execute(locked).first() is None:
                    continue
                doubt = self._contact.doubt()
                claiming_one = self._database.built(_claiming, bool(doubt), self._contact.lease_seconds)
                rows = connection.execute(claiming_one, {"token": token, "row": each.row, **doubt}).all()
                if rows:
                    number = each.probes + 1
                    again = self._database.now() + probe_delay_ms(number)
                    connection.execute(update(pauses).where(mine).values(probe_at=again, probes=number))
                    row, probed = (
                        read_row(rows[0], lease_end),
                        connection.execute(_PROBED, {"row": each.row}).all(),
                    )
                    if row.max_attempts < MAX_ATTEMPTS_CAP and not probed:
                        row = replace(row, max_attempts=row.max_attempts + 1, is_probe=True)
                    claimed.append(row)
            return claimed

        async with self._database.write() as connection:
            return await connection.run_sync(claim)


def _may_be_probed(sql: Dialect, in_doubt: bool) -> tuple[Any, ...]:
    """Return the conditions on a row that waits because its destination is paused, and that no claim holds."""
    now = sql.now()
    return (
        LIVE,
        outbox.c.takeovers < inline(QUARANTINE_AFTER),
        outbox.c.next_attempt_at >= inline(PAUSED_OFFSET_MS),
        outbox.c.next_attempt_at < inline(UNDO_OFFSET_MS),
        undoubted(now) if in_doubt else free(now),
    )


def _due(sql: Dialect, in_doubt: bool) -> Select[Any]:
    """Select the probes that are due, those that have waited for longest first, each with the row that would be sent."""
    oldest = (
        select(outbox.c.id)
        .where(
            *_may_be_probed(sql, in_doubt),
            outbox.c.destination == pauses.c.destination,
            outbox.c.organization_id == pauses.c.organization_id,
        )
        .order_by(outbox.c.next_attempt_at, outbox.c.id)
        .limit(inline(1))
        .correlate(pauses)
        .scalar_subquery()
    )
    everywhere = pauses.alias("everywhere")
    held = exists().where(
        everywhere.c.organization_id == inline(EVERY_ORGANIZATION),
        everywhere.c.destination == pauses.c.destination,
        everywhere.c.resumed_at.is_(None),
    )
    due = (
        select(
            pauses.c.organization_id,
            pauses.c.destination,
            pauses.c.probe_at,
            pauses.c.probes,
            oldest.label("row"),
        )
        .where(BY_ITSELF, pauses.c.probe_at <= sql.now(), ~held)
        .subquery("due")
    )
    return select(due).where(due.c.row.is_not(None)).order_by(due.c.probe_at).limit(inline(AT_ONCE))


def _claiming(sql: Dialect, in_doubt: bool, lease_seconds: float) -> Any:
    """Write the statement that claims the row of the parameter ``row`` for a probe, and returns it."""
    one = (
        select(outbox.c.id, outbox.c.next_attempt_at)
        .where(outbox.c.id == bindparam("row", type_=String), *_may_be_probed(sql, in_doubt))
        .with_for_update(skip_locked=True)
    )
    return claiming(sql, one, lease_seconds)
