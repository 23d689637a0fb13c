"""Retention: removes deliveries that have ended, and after a year finished bulk actions and the audit."""

from __future__ import annotations

from typing import Any, Final

from sqlalchemy import Column, ColumnElement, delete, exists, select

from flowactions_plugin.clock import id_at
from flowactions_plugin.storage.database import Database
from flowactions_plugin.storage.dialect import inline
from flowactions_plugin.storage.schema import EVERY_ORGANIZATION, OPEN_ACTION, actions, attempts, audit, outbox
from flowactions_plugin.storage.waiting import repeated

KEPT_MS: Final = 365 * 24 * 3600 * 1000
"""For how long actions and the audit are kept."""


class Retention:
    """Removes rows of the outbox.

    Args:
        database: where they are.
    """

    def __init__(self, database: Database) -> None:
        self._database = database
        self._passed: dict[str, int] = {}

    @repeated
    async def prune(self, status: str, older_than_ms: int, limit: int) -> int:
        """Remove finished rows with their attempts, oldest first, but for those that an unfinished bulk action may be for.

        Args:
            status: ``delivered`` or ``dead``.
            older_than_ms: only rows that finished longer ago than this.
            limit: about how many at the most, which keeps the transaction short; those that finished in one
                millisecond go together.

        Returns:
            How many there were.
        """
        ended: ColumnElement[int] = outbox.c.finished_at
        old = (
            outbox.c.status == inline(status),
            ended.is_not(None),
            ended < self._database.now() - older_than_ms,
        )
        is_awaited = _is_awaited(status)
        found: list[int] = []
        # A run that has passed rows over does not read them again for each of its transactions.
        position = self._passed.pop(status, -1)
        more = True
        while more and len(found) < limit:
            page = select(ended, is_awaited.label("awaited")).where(*old, ended > position)
            # Searched without a lock: mostly there is nothing, and SQLite has one writer only.
            async with self._database.read() as connection:
                rows = (await connection.execute(page.order_by(ended).limit(inline(limit)))).all()
            found += [row.finished_at for row in rows if not row.awaited]
            more = len(rows) == limit
            position = rows[-1].finished_at if rows else position
        if not found:
            return 0
        # A row that was retried meanwhile stays.
        kept = (outbox.c.delivered_started_at, outbox.c.attempts, outbox.c.earlier_attempts)
        those = (*old, ended.between(found[0], found[-1]), ~is_awaited)
        gone = delete(outbox).where(*those).returning(outbox.c.id, *kept)
        async with self._database.write() as connection:
            removed = (await connection.execute(gone)).all()
            logged = [row.id for row in removed if _is_logged(row)]
            if logged:
                await connection.execute(delete(attempts).where(attempts.c.delivery_id.in_(logged)))
        if more:
            self._passed[status] = found[-1]
        return len(removed)


def _is_awaited(status: str) -> ColumnElement[bool]:
    """Return the condition that a row in this state may belong to the set of a bulk action that is not finished."""
    resends = actions.c.kind == inline("resend")
    return exists().where(
        OPEN_ACTION,
        resends if status == "delivered" else ~resends,
        actions.c.organization_id.in_([inline(EVERY_ORGANIZATION), outbox.c.organization_id]),
        actions.c.as_of >= outbox.c.finished_at,
    )


def _is_logged(row: Any) -> bool:
    """Return whether the attempts log may hold attempts of a row: not of one that its first attempt has delivered."""
    return row.delivered_started_at is None or (row.attempts, row.earlier_attempts) != (1, 0)


async def prune_audit(database: Database, limit: int) -> int:
    """Delete lines of the audit that are older than a year, the oldest first; return how many."""
    return await _prune(database, audit.c.id, limit)


async def prune_actions(database: Database, limit: int) -> int:
    """Delete bulk actions that were begun more than a year ago and are finished, the oldest first; return how many."""
    return await _prune(database, actions.c.id, limit, actions.c.finished_at.is_not(None))


@repeated
async def _prune(database: Database, key: Column[str], limit: int, *conditions: ColumnElement[bool]) -> int:
    # Ids are in the order of time, and indexed.
    before = id_at(int(database.clock() * 1000) - KEPT_MS)
    old = select(key).where(key < before, *conditions).order_by(key).limit(limit)
    async with database.read() as connection:
        found = (await connection.execute(old)).scalars().all()
    if not found:
        return 0
    async with database.write() as connection:
        return (await connection.execute(delete(key.table).where(key.in_(found)))).rowcount
