"""Deletes all rows of an organization."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Final, TypeAlias

import msgspec
from sqlalchemy import ColumnElement, Table, delete, func, select, tuple_, update
from sqlalchemy.engine import Connection

from flowactions_plugin.chat.store import ConnectionStore
from flowactions_plugin.clock import new_id
from flowactions_plugin.errors import ActionInvalid
from flowactions_plugin.log_text import printable
from flowactions_plugin.operations.changes import WITHDRAWN_SECONDS
from flowactions_plugin.operators.audit import PURGE, Entry, recording
from flowactions_plugin.operators.scope import Actor
from flowactions_plugin.queue.lanes import PURGED
from flowactions_plugin.storage.database import Database
from flowactions_plugin.storage.dialect import inline
from flowactions_plugin.storage.schema import (
    EVERY_ORGANIZATION,
    actions,
    attempts,
    audit,
    chat_connections,
    deferred,
    destinations,
    enqueue_keys,
    enqueue_rates,
    halted_runs,
    oauth_states,
    outbox,
    pauses,
    statistics,
    workers,
)
from flowactions_plugin.storage.waiting import repeated

log = logging.getLogger("flowactions.actions")

Disconnect: TypeAlias = Callable[[str], Awaitable[object]]
"""Removes an organization's chat connection, and revokes its token (`Connections.disconnect`)."""

BATCH: Final = 500
"""How many rows a transaction removes at the most."""

# Bulk actions and pauses first: what they hold would otherwise be held for good. Of records, deliveries are made.
_FIRST: Final = {"actions": actions, "pauses": pauses, "records": deferred}
_REST: Final = {
    "halted_runs": halted_runs,
    "idempotency_keys": enqueue_keys,
    "rates": enqueue_rates,
    "statistics": statistics,
    "destinations": destinations,
    "installs": oauth_states,
    "audit": audit,
}


class Purge:
    """Removes all that is kept of an organization, in small batches; it can be repeated when it was interrupted.

    One line of the audit stays: who purged, and the numbers. What workers have counted in memory is not written any more, and
    of rows that are being sent, the host is told that they are ``purged``. What is enqueued after the purge has begun is
    removed too, or stays and is sent.

    Args:
        database: where it is.
        organization_id: the tenant.

    Raises:
        ActionInvalid: no organization is named.
    """

    def __init__(self, database: Database, organization_id: str) -> None:
        if not organization_id or "\0" in organization_id:
            raise ActionInvalid("Name the organization whose data is to be removed.")
        self._database = database
        self._organization_id = organization_id
        self._was_claimed = False

    async def count(self) -> dict[str, int]:
        """Return how many rows of each kind there are."""
        mine = select(outbox.c.id).where(*self._of(outbox))
        logged = select(func.count()).select_from(attempts).where(attempts.c.delivery_id.in_(mine))
        queries = {"attempts": logged}
        counted = {"deliveries": outbox, "chat_connection": chat_connections, **_FIRST, **_REST}
        for name, table in counted.items():
            queries[name] = select(func.count()).select_from(table).where(*self._of(table))
        async with self._database.read() as connection:
            found = {name: (await connection.execute(query)).scalar_one() for name, query in queries.items()}
        return {**found, "alerts": len(await self._alerts())}

    async def run(self, who: Actor, disconnect: Disconnect | None = None) -> dict[str, int]:
        """Remove everything, and return how many rows of each kind that were.

        Args:
            who: does it.
            disconnect: ``None``: chat is not configured, so that a connection is removed and its token cannot be revoked.

        Raises:
            StorageUnavailable: the database failed; what was removed before stays removed.
        """
        line_id = await self.begin(who)
        connections = ConnectionStore(self._database)
        connected = await connections.get(self._organization_id) is not None
        if connected:
            await (disconnect or connections.pop)(self._organization_id)
        removed = {**await self.remove(), "chat_connection": int(connected)}
        number = sum(removed.values())
        values = {"number": number, "before": msgspec.json.encode(removed).decode()}
        written = update(audit).where(audit.c.id == line_id).values(values)
        await self._database.in_transaction(lambda connection: connection.execute(written))
        log.info(
            "organization %s is purged: %s rows",
            printable(self._organization_id),
            number,
            extra={"event": "organization.purged"},
        )
        return removed

    async def begin(self, who: Actor) -> str:
        """Write the line of the audit that stays, and return its id.

        From then on no process writes statistics that it has counted before (`add_counts`).
        """
        line_id = new_id(self._database.clock())
        entry = Entry(who=who, action=PURGE, organization_id=self._organization_id)
        line = recording(self._database, entry, line_id)
        await self._database.in_transaction(lambda connection: connection.execute(line))
        return line_id

    async def remove(self) -> dict[str, int]:
        """Remove everything but the chat connection; return how many rows of each kind that were."""
        removed = {name: await self._remove(table) for name, table in _FIRST.items()}
        removed["deliveries"], removed["attempts"] = await self._remove_deliveries(*self._of(outbox))
        await self._wait_for_statistics()
        for name, table in _REST.items():
            removed[name] = await self._remove(table)
        removed["alerts"] = await self._remove_alerts()
        clearing = update(workers).values(limited=PURGED)
        await self._database.in_transaction(lambda connection: connection.execute(clearing))
        if self._was_claimed:
            await asyncio.sleep(WITHDRAWN_SECONDS)
        return removed

    async def _alerts(self) -> list[str]:
        """Return the ids of alerts that name the organization: they belong to none, and their body has its id."""
        named = b'"organizationId":' + msgspec.json.encode(self._organization_id)
        key, body = outbox.c.id, outbox.c.body
        alerts = select(key, body).where(outbox.c.organization_id == inline(EVERY_ORGANIZATION)).order_by(key)
        found: list[str] = []
        last = ""
        async with self._database.read() as connection:
            while rows := (await connection.execute(alerts.where(key > last).limit(inline(BATCH)))).all():
                found += [row.id for row in rows if named in (row.body or b"")]
                last = rows[-1].id
        return found

    async def _remove_alerts(self) -> int:
        ids = await self._alerts()
        return sum(
            [
                (await self._remove_deliveries(outbox.c.id.in_(ids[start : start + BATCH])))[0]
                for start in range(0, len(ids), BATCH)
            ]
        )

    @repeated
    async def _wait_for_statistics(self) -> None:
        """Wait until the processes have written that have not seen that the purge began, and may have added statistics."""
        async with self._database.write() as connection:
            await self._database.lock_table(connection, statistics, "SHARE")

    def _of(self, table: Table) -> list[ColumnElement[bool]]:
        conditions = [table.c.organization_id == self._organization_id]
        if table is audit:
            conditions.append(audit.c.action != PURGE)
        return conditions

    async def _remove(self, table: Table) -> int:
        key = list(table.primary_key)
        # They are locked. Otherwise a row that somebody else deletes meanwhile makes the batch look like the last one.
        chosen = select(*key).where(*self._of(table)).limit(inline(BATCH)).with_for_update()
        gone = delete(table).where((key[0] if len(key) == 1 else tuple_(*key)).in_(chosen))
        total = 0
        while True:
            number = await self._database.in_transaction(lambda connection: connection.execute(gone).rowcount)
            total += number
            if number < BATCH:
                return total

    async def _remove_deliveries(self, *which: ColumnElement[bool]) -> tuple[int, int]:
        """Remove rows of the outbox with their attempts; return how many of each."""
        chosen = select(outbox.c.id, outbox.c.claimed_by).where(*which).order_by(outbox.c.id)

        def remove(connection: Connection) -> tuple[int, int]:
            found = connection.execute(chosen.limit(inline(BATCH)).with_for_update()).all()
            self._was_claimed |= any(row.claimed_by is not None for row in found)
            ids = [row.id for row in found]
            logged = connection.execute(delete(attempts).where(attempts.c.delivery_id.in_(ids))).rowcount
            return connection.execute(delete(outbox).where(outbox.c.id.in_(ids))).rowcount, logged

        @repeated
        async def batch() -> tuple[int, int]:
            async with self._database.write() as connection:
                return await connection.run_sync(remove)

        rows = logged = 0
        while True:
            number, attempted = await batch()
            rows, logged = rows + number, logged + attempted
            if number < BATCH:
                return rows, logged
