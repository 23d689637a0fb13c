"""Deletes what is kept for a year: finished bulk actions, and the audit."""

from __future__ import annotations

from typing import Final

from sqlalchemy import Column, ColumnElement, delete, select

from flowactions_plugin.clock import id_at
from flowactions_plugin.storage.conflicts import repeated
from flowactions_plugin.storage.database import Database
from flowactions_plugin.storage.schema import actions, audit

KEPT_MS: Final = 365 * 24 * 3600 * 1000


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
