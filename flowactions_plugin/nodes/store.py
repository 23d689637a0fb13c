"""All SQL of pacing: the nodes that wait for a content step (§3.2)."""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence
from typing import Any, Final, NamedTuple
from uuid import uuid4

from sqlalchemy import ColumnElement, Row, delete, func, or_, select, update
from sqlalchemy.ext.asyncio import AsyncConnection

from flowactions_hookspecs import Node, Walk
from flowactions_plugin.storage.database import Database
from flowactions_plugin.storage.schema import deferred

log = logging.getLogger("flowactions")

HOLD_SECONDS: Final = 15.0
"""Longer than one node takes, a message with all its attempts included. A holder that was killed is succeeded after."""

MAX_HOLDS: Final = 5
"""A node whose holder was gone so often is given up: it may be what ends them."""

WALK_FIELDS = ("organization_id", "agent_id", "flow_id", "run_id", "user_id", "content")


class Step(NamedTuple):
    """A content step of one run; ``step_id`` is empty for the end of the flow."""

    organization_id: str
    run_id: str
    step_id: str


class Record(NamedTuple):
    """A node that waits, the walk as it was when the node was reached, and the token of who holds it."""

    id: int
    walk: Walk
    node: Node
    token: str


def step_of(walk: Walk, step_id: str | None) -> Step:
    """Name the step of a walk's run; ``None`` is the end of the flow."""
    return Step(walk.organization_id, walk.run_id, step_id or "")


class DeferredStore:
    """The waiting nodes of one database."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def record(self, walk: Walk, node: Node, transaction: AsyncConnection | None) -> None:
        """Write down that a node waits for ``walk.next_step_id``; a second time changes nothing."""
        row = {
            **step_of(walk, walk.next_step_id)._asdict(),
            "node_id": node.id,
            # Written as ASCII: a text that UTF-8 cannot hold is kept, too.
            "walk": json.dumps({name: getattr(walk, name) for name in WALK_FIELDS}),
            "node": json.dumps({"id": node.id, "type": node.type, "config": dict(node.config)}),
            "created_at": self._database.now(),
            "holds": 0,
        }
        async with self._database.write(transaction) as connection:
            await connection.execute(self._database.insert_unless_there(deferred).values(row))

    async def hold(self, step: Step, connection: AsyncConnection | None = None) -> Sequence[Record]:
        """Keep everybody else from running what waits for a step, for `HOLD_SECONDS`.

        Args:
            step: which.
            connection: the host's own transaction, which then decides.

        Returns:
            What waits there and nobody else holds, in walk order; of any number of racing callers, one gets it.
        """
        now = self._database.now()
        free = (
            *_of(step),
            or_(deferred.c.held_until.is_(None), deferred.c.held_until < now),
        )
        # Looked for without a lock: before most steps nothing waits, and SQLite has one writer only.
        async with self._database.read(connection) as reading:
            first = (await reading.execute(select(func.min(deferred.c.id)).where(*free))).scalar_one()
        if first is None:
            return []
        # Whoever has the first record has them all. Who comes second does not wait: they are being run.
        gate = select(deferred.c.id).where(deferred.c.id == first, *free).with_for_update(skip_locked=True)
        token = uuid4().hex
        held = (
            update(deferred)
            .where(*free)
            .values(token=token, held_until=now + int(HOLD_SECONDS * 1000), holds=deferred.c.holds + 1)
            .returning(deferred.c.id, deferred.c.walk, deferred.c.node)
        )
        async with self._database.write(connection) as writing:
            if (await writing.execute(gate)).first() is None:
                return []
            rows = sorted((await writing.execute(held)).all(), key=lambda row: row.id)
            read = {row.id: _record(row, token) for row in rows}
            broken = [row_id for row_id, record in read.items() if record is None]
            if broken:
                log.error("run %s: %s deferred nodes cannot be read and are dropped", step.run_id, len(broken))
                await writing.execute(delete(deferred).where(deferred.c.id.in_(broken)))
        return [record for record in read.values() if record is not None]

    async def go_on_holding(self, record: Record) -> bool:
        """Hold for another `HOLD_SECONDS`, this record and those after it.

        Returns:
            Whether nobody else has taken over in the meantime.
        """
        held = (
            update(deferred)
            .where(
                deferred.c.organization_id == record.walk.organization_id,
                deferred.c.run_id == record.walk.run_id,
                deferred.c.id >= record.id,
                deferred.c.token == record.token,
            )
            .values(held_until=self._database.now() + int(HOLD_SECONDS * 1000))
        )
        async with self._database.write() as connection:
            return (await connection.execute(held)).rowcount > 0

    async def take(self, record: Record, connection: AsyncConnection) -> bool:
        """Remove a record that one holds.

        Returns:
            Whether it was still there and held under the same token.
        """
        removed = await connection.execute(
            delete(deferred).where(deferred.c.id == record.id, deferred.c.token == record.token)
        )
        return removed.rowcount == 1

    async def forget(self, walk: Walk, connection: AsyncConnection) -> None:
        """Remove everything that still waits in this run."""
        # In the order in which others lock them, so that nobody waits in a circle.
        rest = (
            select(deferred.c.id)
            .where(deferred.c.organization_id == walk.organization_id, deferred.c.run_id == walk.run_id)
            .order_by(deferred.c.id)
            .with_for_update()
        )
        await connection.execute(delete(deferred).where(deferred.c.id.in_(rest)))

    async def abandoned(self, limit: int) -> Sequence[Step]:
        """List steps whose holder is gone, the longest abandoned first.

        Args:
            limit: how many at the most.
        """
        gone = (
            select(deferred.c.organization_id, deferred.c.run_id, deferred.c.step_id)
            .where(deferred.c.held_until < self._database.now())
            .group_by(deferred.c.organization_id, deferred.c.run_id, deferred.c.step_id)
            .order_by(func.min(deferred.c.held_until))
            .limit(limit)
        )
        async with self._database.read() as connection:
            return [Step(*row) for row in (await connection.execute(gone)).all()]

    async def give_up(self, step: Step) -> str | None:
        """Remove the first record of an abandoned step when it was held `MAX_HOLDS` times: those after it never ran.

        Returns:
            Its node's id, ``None`` when there was nothing to remove.
        """
        first = select(func.min(deferred.c.id)).where(*_of(step)).scalar_subquery()
        worn = (
            delete(deferred)
            .where(
                deferred.c.id == first,
                deferred.c.held_until < self._database.now(),
                deferred.c.holds >= MAX_HOLDS,
            )
            .returning(deferred.c.node_id)
        )
        async with self._database.write() as connection:
            node_id: str | None = (await connection.execute(worn)).scalar_one_or_none()
        return node_id

    async def prune(self, older_than_ms: int, limit: int) -> int:
        """Remove records of runs that were abandoned longer ago than this; give how many there were."""
        return await self._database.prune(deferred.c.created_at, older_than_ms, limit)


def _of(step: Step) -> Sequence[ColumnElement[bool]]:
    return (
        deferred.c.organization_id == step.organization_id,
        deferred.c.run_id == step.run_id,
        deferred.c.step_id == step.step_id,
    )


def _record(row: Row[Any], token: str) -> Record | None:
    """Read a stored record; ``None`` when somebody has spoilt it."""
    try:
        return Record(row.id, Walk(**json.loads(row.walk)), Node(**json.loads(row.node)), token)
    except (ValueError, TypeError, RecursionError):
        return None
