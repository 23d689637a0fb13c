"""All SQL of pacing: the nodes that wait for a content step (§3.2)."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Final, NamedTuple

from sqlalchemy import delete, or_, select, update
from sqlalchemy.ext.asyncio import AsyncConnection

from flowactions_hookspecs import Node, Walk
from flowactions_plugin.storage.database import Database
from flowactions_plugin.storage.schema import deferred

HOLD_SECONDS: Final = 15.0
"""Longer than a message takes with all its attempts. A holder that was killed is succeeded after that."""

WALK_FIELDS = ("organization_id", "agent_id", "flow_id", "run_id", "user_id", "content")


class Record(NamedTuple):
    """A node that waits, and the walk as it was when the node was reached."""

    id: int
    walk: Walk
    node: Node


class DeferredStore:
    """The waiting nodes of one database."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def record(self, walk: Walk, node: Node) -> None:
        """Write down that a node waits for ``walk.next_step_id``; a second time changes nothing."""
        row = {
            "organization_id": walk.organization_id,
            "run_id": walk.run_id,
            "step_id": walk.next_step_id or "",
            "node_id": node.id,
            # Written as ASCII: a text that UTF-8 cannot hold is kept, too.
            "walk": json.dumps({name: getattr(walk, name) for name in WALK_FIELDS}),
            "node": json.dumps({"id": node.id, "type": node.type, "config": dict(node.config)}),
            "created_at": self._database.now(),
        }
        async with self._database.write(walk.connection) as connection:
            await connection.execute(self._database.insert_unless_there(deferred).values(row))

    async def waiting(self, walk: Walk, step_id: str | None) -> Sequence[Record]:
        """List the nodes of this run that wait for a step, in walk order."""
        query = (
            select(deferred.c.id, deferred.c.walk, deferred.c.node)
            .where(
                deferred.c.organization_id == walk.organization_id,
                deferred.c.run_id == walk.run_id,
                deferred.c.step_id == (step_id or ""),
            )
            .order_by(deferred.c.id)
        )
        async with self._database.read(walk.connection) as connection:
            rows = (await connection.execute(query)).all()
        return [Record(row.id, Walk(**json.loads(row.walk)), Node(**json.loads(row.node))) for row in rows]

    async def take(self, record: Record, connection: AsyncConnection) -> bool:
        """Remove a record.

        Returns:
            Whether it was still there; of any number of racing callers, one is told so.
        """
        removed = await connection.execute(delete(deferred).where(deferred.c.id == record.id))
        return removed.rowcount == 1

    async def hold(self, record: Record) -> bool:
        """Keep everybody else from running a record for `HOLD_SECONDS`.

        Returns:
            Whether nobody else holds it; of any number of racing callers, one is told so.
        """
        now = self._database.now()
        held = (
            update(deferred)
            .where(
                deferred.c.id == record.id,
                or_(deferred.c.held_until.is_(None), deferred.c.held_until < now),
            )
            .values(held_until=now + int(HOLD_SECONDS * 1000))
        )
        async with self._database.write() as connection:
            return (await connection.execute(held)).rowcount == 1

    async def drop(self, record: Record) -> None:
        """Remove a record that was held and has run."""
        async with self._database.write() as connection:
            await self.take(record, connection)

    async def forget(self, walk: Walk) -> None:
        """Remove everything that still waits in this run."""
        rest = delete(deferred).where(
            deferred.c.organization_id == walk.organization_id, deferred.c.run_id == walk.run_id
        )
        async with self._database.write(walk.connection) as connection:
            await connection.execute(rest)

    async def prune(self, older_than_ms: int, limit: int) -> int:
        """Remove records of runs that were abandoned, oldest first.

        Args:
            older_than_ms: only records made longer ago than this.
            limit: how many at the most, so that nobody waits for the transaction.

        Returns:
            How many there were.
        """
        old = (
            select(deferred.c.id)
            .where(deferred.c.created_at < self._database.now() - older_than_ms)
            .order_by(deferred.c.created_at)
            .limit(limit)
        )
        # Looked for without a lock: mostly there is nothing, and SQLite has one writer only.
        async with self._database.read() as connection:
            ids = (await connection.execute(old)).scalars().all()
        if ids:
            async with self._database.write() as connection:
                await connection.execute(delete(deferred).where(deferred.c.id.in_(ids)))
        return len(ids)
