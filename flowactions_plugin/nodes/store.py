"""All SQL of pacing: the nodes that wait for a content step, and the runs that were halted (§3.2)."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, Literal, NamedTuple
from uuid import uuid4

from sqlalchemy import (
    ColumnElement,
    Integer,
    LargeBinary,
    Text,
    and_,
    case,
    cast,
    delete,
    exists,
    func,
    literal,
    not_,
    null,
    or_,
    select,
    union_all,
    update,
)
from sqlalchemy.ext.asyncio import AsyncConnection

from flowactions_hookspecs import Node, Walk
from flowactions_plugin.log_text import printable
from flowactions_plugin.nodes.records import Lease, Record, Step, columns_of, read_record, step_of, stored_text
from flowactions_plugin.storage.database import Database
from flowactions_plugin.storage.schema import deferred, halted_runs

log = logging.getLogger("flowactions")

LEASE_SECONDS: Final = 15.0
"""Longer than one node takes, a message with all its attempts included. A holder that was killed is succeeded after."""

MAX_LEASES: Final = 5
"""A node whose holder was gone so often is given up: it may be what ends them."""

UNREADABLE_TYPE: Final = ""
"""The node type of records whose type could not be read when they were carried over from an earlier release."""

LAST_ID: Final = 2**63 - 1

KEPT: Final = ("node_id", "node_type", "visit", "walk", "node")


class DeferredStore:
    """The waiting nodes of one database.

    Args:
        database: which.
        types: returns the node types that this process offers. Records of others wait for a process that does.
    """

    def __init__(self, database: Database, types: Callable[[], Iterable[str]]) -> None:
        self._database = database
        self._offered = types

    @property
    def _types(self) -> Sequence[str]:
        return (*self._offered(), UNREADABLE_TYPE)

    async def record(
        self, walk: Walk, node: Node, step_id: str | None, transaction: AsyncConnection | None
    ) -> bool:
        """Records that a node waits for a step; a second time changes nothing.

        Returns:
            Whether it waits; not so when the run was halted.
        """
        step = step_of(walk, step_id)
        row = {**columns_of(walk, node, step_id), "holds": 0}
        values = [literal(value, deferred.c[name].type).label(name) for name, value in row.items()]
        source = select(*values, self._database.now().label("created_at")).where(not_(_halted(step)))
        added = self._database.insert_unless_there(deferred).from_select([*row, "created_at"], source)
        async with self._database.write(transaction) as connection:
            if (await connection.execute(added)).rowcount == 1:
                return True
            # It waits already, or the run was halted.
            return not (await connection.execute(select(_halted(step)))).scalar_one()

    async def lease(
        self, step: Step, transaction: AsyncConnection | None = None, token: str | None = None
    ) -> Lease:
        """Keep everybody else from running what waits for a step, for `LEASE_SECONDS`.

        Args:
            step: which.
            transaction: the host's own transaction, which then decides.
            token: new for each call; by it the records can be released though the answer was lost.

        Returns:
            What waits there and nobody else holds, up to the first one of a type that is not offered here; of any
            number of racing callers, one gets it.
        """
        # Looked for without a lock: before most steps nothing waits, and SQLite has one writer only.
        seen = await self._look(step, transaction)
        if seen.state is not None and not seen.mark and not seen.unreadable:
            return Lease(seen.state)
        async with self._database.write(transaction) as connection:
            await self._drop(step, seen.unreadable, connection)
            if seen.mark:
                await self._mark(step, seen.first, connection)
            if seen.state is not None:
                return Lease(seen.state)
            # Whoever has the first record has them all. Who comes second does not wait: they are being run.
            gate = (
                select(deferred.c.holds >= MAX_LEASES)
                .where(deferred.c.id == seen.first, not_(self._live()), not_(_halted(step)))
                .with_for_update(skip_locked=True, of=deferred)
            )
            exhausted = (await connection.execute(gate)).scalar_one_or_none()
            if exhausted is None:
                return Lease("running")
            if exhausted:
                await self._drop_exhausted(step, seen.first, connection)
            return await self._lease_all(step, token or uuid4().hex, connection)

    async def state(
        self, step: Step, transaction: AsyncConnection | None = None
    ) -> Literal["done", "running", "halted"]:
        """Tell how a step stands whose records somebody else has taken."""
        seen = await self._look(step, transaction)
        return seen.state if seen.state == "done" or seen.state == "halted" else "running"  # noqa: PLR1714  narrows

    async def _look(self, step: Step, transaction: AsyncConnection | None) -> _Seen:
        waiting = select(
            deferred.c.id,
            self._raw(deferred.c.node_type),
            cast(self._live(), Integer).label("live"),
            cast(deferred.c.held_until.is_not(None), Integer).label("reached"),
        ).where(*_of(step))
        # No record's id is 0.
        halted = select(literal(0), self._raw(literal("", Text)), literal(0), literal(0))
        both = union_all(waiting, halted.where(*_run(halted_runs, step)))
        async with self._database.read(transaction) as connection:
            rows = sorted((await connection.execute(both)).all(), key=lambda row: row.id)
        if rows and rows[0].id == 0:
            return _Seen("halted")
        types = {row.id: stored_text(row.node_type) for row in rows}
        unreadable = [row_id for row_id, node_type in types.items() if node_type is None]
        rows = [row for row in rows if row.id not in unreadable]
        if any(row.live for row in rows):
            return _Seen("running")
        if not rows:
            return _Seen("done", unreadable=unreadable)
        if types[rows[0].id] in self._types:
            return _Seen(None, rows[0].id, unreadable=unreadable)
        mark = not rows[0].reached or any(row.reached for row in rows[1:])
        return _Seen("unavailable", rows[0].id, mark=mark, unreadable=unreadable)

    async def _mark(self, step: Step, first: int, connection: AsyncConnection) -> None:
        """Have a record that this process cannot run found by one that can; what is behind it waits for that."""
        is_first = deferred.c.id == first
        await connection.execute(
            update(deferred)
            .where(*_of(step), not_(self._live()), or_(is_first, deferred.c.held_until.is_not(None)))
            .values(token=None, held_until=case((is_first, self._database.now()), else_=null()))
        )

    async def _drop_exhausted(self, step: Step, first: int, connection: AsyncConnection) -> None:
        removed = delete(deferred).where(deferred.c.id == first).returning(self._raw(deferred.c.node_id))
        node_id = stored_text((await connection.execute(removed)).scalar_one())
        node, run = printable(node_id), printable(step.run_id)
        log.error("node %s of run %s is given up: each process that ran it was gone", node, run)

    async def _lease_all(self, step: Step, token: str, connection: AsyncConnection) -> Lease:
        now = self._database.now()
        other = deferred.alias("other")
        first = select(func.min(other.c.id)).where(*_of(step, other)).scalar_subquery()
        # Of a type that is not offered here: it stays free, and is found by those who look after what was abandoned.
        blocked = func.coalesce(
            select(func.min(other.c.id))
            .where(*_of(step, other), other.c.node_type.not_in(self._types))
            .scalar_subquery(),
            LAST_ID,
        )
        mine = deferred.c.id < blocked
        held = (
            update(deferred)
            .where(*_of(step), not_(self._live()))
            .values(
                token=case((mine, token), else_=null()),
                held_until=case(
                    (mine, now + int(LEASE_SECONDS * 1000)), (deferred.c.id == blocked, now), else_=null()
                ),
                # Only the first one's: should this process end, it is what may have ended it.
                holds=case(
                    (and_(mine, deferred.c.id == first, deferred.c.holds < MAX_LEASES), deferred.c.holds + 1),
                    else_=deferred.c.holds,
                ),
            )
            .returning(
                deferred.c.id,
                deferred.c.token,
                *(self._raw(deferred.c[name]) for name in KEPT),
            )
        )
        rows = sorted((await connection.execute(held)).all(), key=lambda row: row.id)
        read = {
            row.id: read_record(row.id, token, step, {name: getattr(row, name) for name in KEPT})
            for row in rows
            if row.token == token
        }
        await self._drop(step, [row_id for row_id, record in read.items() if record is None], connection)
        records = [record for record in read.values() if record is not None]
        is_blocked = len(read) < len(rows)
        if not records:
            return Lease("unavailable" if is_blocked else "done", blocked=is_blocked)
        return Lease("leased", records, is_blocked)

    async def _drop(self, step: Step, unreadable: Sequence[int], connection: AsyncConnection) -> None:
        for row_id in unreadable:
            log.error(
                "run %s: deferred record %s cannot be read and is dropped", printable(step.run_id), row_id
            )
        if unreadable:
            await connection.execute(delete(deferred).where(deferred.c.id.in_(unreadable)))

    async def renew(self, record: Record) -> bool:
        """Hold for another `LEASE_SECONDS`, this record and those after it.

        Returns:
            Whether nobody else has taken over in the meantime.
        """
        walk = record.walk
        held = (
            update(deferred)
            .where(
                deferred.c.organization_id == walk.organization_id,
                deferred.c.run_id == walk.run_id,
                deferred.c.flow_id == walk.flow_id,
                deferred.c.id >= record.id,
                deferred.c.token == record.token,
            )
            .values(held_until=self._database.now() + int(LEASE_SECONDS * 1000))
        )
        async with self._database.write() as connection:
            return (await connection.execute(held)).rowcount > 0

    async def release(self, step: Step, token: str, transaction: AsyncConnection | None = None) -> None:
        """Let others run what is left of a lease whose holder lives and could not go on; it does not count."""
        freed = (
            update(deferred)
            .where(*_of(step), deferred.c.token == token)
            .values(
                token=None,
                held_until=self._database.now(),
                holds=case((deferred.c.holds > 0, deferred.c.holds - 1), else_=0),
            )
        )
        async with self._database.write(transaction) as connection:
            await connection.execute(freed)

    async def pop(self, record: Record, connection: AsyncConnection) -> bool:
        """Remove a record that one holds.

        Returns:
            Whether it was still there and held under the same token.
        """
        removed = await connection.execute(
            delete(deferred).where(deferred.c.id == record.id, deferred.c.token == record.token)
        )
        return removed.rowcount == 1

    async def halt(self, walk: Walk, connection: AsyncConnection) -> None:
        """Remember that a run was halted, and remove everything that still waits in it."""
        step = step_of(walk, None)
        # In the order in which others lock them, so that nobody waits in a circle.
        rest = select(deferred.c.id).where(*_run(deferred, step)).order_by(deferred.c.id).with_for_update()
        await connection.execute(delete(deferred).where(deferred.c.id.in_(rest)))
        halted = {**step._asdict(), "halted_at": self._database.now()}
        del halted["step_id"]
        await connection.execute(self._database.insert_unless_there(halted_runs).values(halted))

    async def expired(self, limit: int) -> Sequence[Step]:
        """List steps whose holder is gone and whose records this process can run, the longest abandoned first.

        Args:
            limit: how many at the most.
        """
        other = deferred.alias("other")
        key = [deferred.c[name] for name in Step._fields]
        being_run = exists().where(
            *(other.c[name] == deferred.c[name] for name in Step._fields), self._live(other)
        )
        gone = (
            select(func.min(deferred.c.id).label("first"), *(self._raw(column) for column in key))
            .where(
                deferred.c.node_type.in_(self._types),
                deferred.c.held_until < self._database.now(),
                not_(being_run),
            )
            .group_by(*key)
            .order_by(func.min(deferred.c.held_until))
            .limit(limit)
        )
        async with self._database.read() as connection:
            rows = (await connection.execute(gone)).all()
        steps = {row.first: [stored_text(part) for part in row[1:]] for row in rows}
        broken = [first for first, parts in steps.items() if None in parts]
        if broken:
            log.error("deferred records %s cannot be read and are dropped", broken)
            async with self._database.write() as connection:
                await connection.execute(delete(deferred).where(deferred.c.id.in_(broken)))
        return [Step(*parts) for parts in steps.values() if None not in parts]  # type: ignore[arg-type]

    async def prune(self, older_than_ms: int, limit: int) -> int:
        """Remove records of runs that were abandoned longer ago than this; give how many there were."""
        return await self._database.prune(deferred.c.created_at, older_than_ms, limit)

    async def prune_halted(self, older_than_ms: int, limit: int) -> int:
        """Forget runs that were halted longer ago than this; give how many there were."""
        return await self._database.prune(halted_runs.c.halted_at, older_than_ms, limit)

    def _live(self, table: Any = deferred) -> ColumnElement[bool]:
        """Tell whether somebody holds a record. A time that no lease can have come to does not count."""
        now = self._database.now()
        return and_(
            table.c.token.is_not(None),
            table.c.held_until.is_not(None),
            table.c.held_until.between(now, now + int(2 * LEASE_SECONDS * 1000)),
        )

    def _raw(self, column: ColumnElement[Any]) -> ColumnElement[Any]:
        """Select a text as it is stored: in SQLite, it may be none that the driver can decode."""
        if self._database.dialect != "sqlite":
            return column
        return cast(column, LargeBinary).label(getattr(column, "name", None))


class _Seen(NamedTuple):
    """What a look at a step found.

    Attributes:
        state: why there is nothing to hold; ``None`` when there is.
        first: the first record that waits.
        mark: whether the rows do not say yet that the user got there and the first one waits for another process.
        unreadable: records whose type is no text, so that no process can ever offer it.
    """

    state: Literal["done", "running", "halted", "unavailable"] | None
    first: int = 0
    mark: bool = False
    unreadable: Sequence[int] = ()


def _run(table: Any, step: Step) -> Sequence[ColumnElement[bool]]:
    return (
        table.c.organization_id == step.organization_id,
        table.c.run_id == step.run_id,
        table.c.flow_id == step.flow_id,
    )


def _of(step: Step, table: Any = deferred) -> Sequence[ColumnElement[bool]]:
    return (*_run(table, step), table.c.step_id == step.step_id)


def _halted(step: Step) -> ColumnElement[bool]:
    return exists().where(*_run(halted_runs, step))
