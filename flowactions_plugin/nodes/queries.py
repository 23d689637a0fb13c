"""What is kept of the nodes that wait for a content step and of runs that were halted, and reading it."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, Literal, NamedTuple

import msgspec
from sqlalchemy import (
    ColumnElement,
    Integer,
    Text,
    and_,
    case,
    cast,
    exists,
    func,
    literal,
    not_,
    select,
    union_all,
)
from sqlalchemy.ext.asyncio import AsyncConnection

from flowactions_hookspecs import Deferred, Node, Walk
from flowactions_plugin.storage.database import Database
from flowactions_plugin.storage.schema import deferred, halted_runs

log = logging.getLogger("flowactions")

LEASE_SECONDS: Final = 15.0
"""Longer than most nodes take, a message with all its attempts included; the lease of a longer one is renewed."""

WALK_FIELDS: Final = ("agent_id", "user_id", "content")
"""What a record keeps of the walk beside its own columns."""

KEPT: Final = ("node_id", "node_type", "visit", "walk", "node")
"""What is read again of a record that is leased."""

RAN_FLOW: Final = ""
"""Instead of a flow's id, in a record that has run."""


class Step(NamedTuple):
    """A content step of one run of a flow; ``step_id`` is empty for the end of the flow."""

    organization_id: str
    run_id: str
    flow_id: str
    step_id: str


class Record(NamedTuple):
    """A node that waits, the walk as it was when the node was reached, and the token of its lease (§3.2)."""

    id: int
    walk: Walk
    node: Node
    token: str


class Lease(NamedTuple):
    """The answer to asking for a step's records.

    Attributes:
        state: ``leased`` (the records are the caller's to run), or why there are none: ``done`` (nothing waits),
            ``running`` (somebody else leases them), ``halted`` (the run was halted before), ``unavailable`` (the first
            one is of a type that is not offered here).
        records: those that the caller leases, in walk order.
        blocked: whether behind them waits one of a type that is not offered here.
    """

    state: Literal["leased", "done", "running", "halted", "unavailable"]
    records: Sequence[Record] = ()
    blocked: bool = False


class Found(NamedTuple):
    """What waits for a step.

    Attributes:
        state: why there is nothing to lease; ``None`` when there is.
        first: the first record that waits.
        mark: whether the rows do not say yet that the user got there and the first one waits for another process.
    """

    state: Literal["done", "running", "halted", "unavailable"] | None
    first: int = 0
    mark: bool = False


class DeferredQueries:
    """Reads the records of one database (§3.2).

    The column ``held_until`` is the end of a record's lease. Without a token it is the time from which the record is
    run again, and no record that nobody has got to has one. ``holds`` counts the leases of a record.
    """

    def __init__(self, database: Database, types: Callable[[], Iterable[str]]) -> None:
        self._database = database
        self._offered = types

    @property
    def types(self) -> Sequence[str]:
        """The node types whose records this process leases."""
        return tuple(self._offered())

    async def find(self, step: Step, transaction: AsyncConnection | None) -> Found:
        """Return what waits for a step, without a lock: before most steps nothing waits, and SQLite has one writer."""
        now = self._database.now()
        # Its lease was released, and it is run again after a while. A time too far ahead is none.
        later = and_(
            deferred.c.token.is_(None),
            deferred.c.held_until > now,
            deferred.c.held_until <= now + int(2 * LEASE_SECONDS * 1000),
        )
        waiting = select(
            deferred.c.id,
            deferred.c.node_type,
            cast(self.is_leased(), Integer).label("leased"),
            cast(deferred.c.held_until.is_not(None), Integer).label("reached"),
            case((later, 1), else_=0).label("later"),
        ).where(*of_step(step))
        # No record's id is 0.
        none: list[ColumnElement[Any]] = [literal(0), literal("", Text), *(literal(0) for _ in range(3))]
        both = union_all(waiting, select(*none).where(*of_run(halted_runs, step)))
        async with self._database.read(transaction) as connection:
            rows = sorted((await connection.execute(both)).all(), key=lambda row: row.id)
        if rows and rows[0].id == 0:
            return Found("halted")
        if any(row.leased for row in rows):
            return Found("running")
        if not rows:
            return Found("done")
        first = rows[0]
        if first.node_type in self.types:
            return Found("unavailable" if first.later else None, first.id)
        mark = not first.reached or any(row.reached for row in rows[1:])
        return Found("unavailable", first.id, mark=mark)

    async def expired(self, limit: int) -> Sequence[Step]:
        """List steps whose leases have expired and whose records this process can run, the earliest first."""
        other = deferred.alias("other")
        key = [deferred.c[name] for name in Step._fields]
        being_run = exists().where(
            *(other.c[name] == deferred.c[name] for name in Step._fields), self.is_leased(other)
        )
        gone = (
            select(
                func.min(deferred.c.id).label("first"),
                *key,
            )
            .where(
                deferred.c.node_type.in_(self.types),
                deferred.c.held_until < self._database.now(),
                not_(being_run),
            )
            .group_by(*key)
            .order_by(func.min(deferred.c.held_until))
            .limit(limit)
        )
        return [Step._make(row[1:]) for row in await self._database.rows(gone)]

    def is_leased(self, table: Any = deferred) -> ColumnElement[bool]:
        """Select records that somebody leases. A time that no lease can have come to does not count."""
        now = self._database.now()
        return and_(
            table.c.token.is_not(None),
            table.c.held_until.is_not(None),
            table.c.held_until.between(now, now + int(2 * LEASE_SECONDS * 1000)),
        )


def of_run(table: Any, step: Step) -> Sequence[ColumnElement[bool]]:
    """Select the rows of a step's run."""
    return (
        table.c.organization_id == step.organization_id,
        table.c.run_id == step.run_id,
        table.c.flow_id == step.flow_id,
    )


def of_step(step: Step, table: Any = deferred) -> Sequence[ColumnElement[bool]]:
    """Select the records that wait for a step."""
    return (*of_run(table, step), table.c.step_id == step.step_id)


def has_run(step: Step, node_id: Any, visit: Any) -> ColumnElement[bool]:
    """Select whether a node that was recorded for a step has run there."""
    ran = deferred.alias("ran")
    where = step._replace(flow_id=RAN_FLOW, step_id=ran_prefix(step.flow_id) + step.step_id)
    return exists().where(*of_step(where, ran), ran.c.node_id == node_id, ran.c.visit == visit)


def is_halted(step: Step) -> ColumnElement[bool]:
    """Select whether a step's run was halted."""
    return exists().where(*of_run(halted_runs, step))


def step_of(walk: Walk, step_id: str | None) -> Step:
    """Name the step of a walk's run; ``None`` is the end of the flow."""
    return Step(walk.organization_id, walk.run_id, walk.flow_id, step_id or "")


def ran_prefix(flow_id: str) -> str:
    """Return what precedes the step of a record that has run, in its column ``step_id``.

    Its column ``flow_id`` is empty then. No flow has such an id, so only a `reach` that asks for it finds the record.
    """
    return f"{len(flow_id)}:{flow_id}"


def columns_of(walk: Walk, node: Node, step_id: str | None) -> dict[str, str]:
    """Return what is kept of a node that waits for a step, column by column."""
    return {
        **step_of(walk, step_id)._asdict(),
        "node_id": node.id,
        "visit": walk.visit,
        "node_type": node.type,
        # Written as ASCII: a text that UTF-8 cannot hold is kept, too.
        "walk": json.dumps({name: getattr(walk, name) for name in WALK_FIELDS}),
        "node": json.dumps(
            {"id": node.id, "type": node.type, "version": node.version, "config": dict(node.config)}
        ),
    }


def read_record(row_id: int, token: str, step: Step, columns: Mapping[str, Any]) -> Record | None:
    """Read what was kept; ``None`` when it is corrupt.

    Args:
        row_id: the record's.
        token: of its lease.
        step: the step that it waits for; a record runs for no other run, whatever it says.
        columns: those of `KEPT`, as they are stored.
    """
    try:
        walk = json.loads(columns["walk"])
        kept = msgspec.convert({name: walk[name] for name in WALK_FIELDS}, dict[str, str])
        node = msgspec.convert(json.loads(columns["node"]), Node)
    except (ValueError, TypeError, LookupError, RecursionError, msgspec.ValidationError):
        return None
    if (node.id, node.type) != (columns["node_id"], columns["node_type"]):
        return None
    whole = Walk(
        organization_id=step.organization_id,
        run_id=step.run_id,
        flow_id=step.flow_id,
        visit=columns["visit"],
        pacing=Deferred(step.step_id or None),
        **kept,
    )
    return Record(row_id, whole, node, token)
