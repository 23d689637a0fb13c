"""The nodes that wait for a content step: their records, the leases on them, and the runs that were halted.

``held_until`` is the end of a record's lease, ``token`` names the process that has it. Without a token it is the time from
which any process may run the record; no record that nobody has got to has one. ``holds`` counts leases. A record with
``ran_at`` has run: its ids stay, and answer a `reach` that comes again.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Collection, Sequence
from functools import cached_property
from itertools import takewhile
from typing import Any, Final, Literal, NamedTuple

import msgspec
from sqlalchemy import (
    ColumnElement,
    Row,
    Update,
    and_,
    case,
    delete,
    exists,
    func,
    literal,
    not_,
    select,
    update,
)
from sqlalchemy.ext.asyncio import AsyncConnection

from flowactions_hookspecs import Deferred, Node, Walk
from flowactions_hookspecs.nodes import AdvancedState
from flowactions_plugin.clock import new_token
from flowactions_plugin.errors import LeaseLost
from flowactions_plugin.log_text import printable
from flowactions_plugin.storage.database import Database
from flowactions_plugin.storage.schema import deferred, halted_runs
from flowactions_plugin.storage.waiting import repeated

log = logging.getLogger("flowactions")

LEASE_SECONDS: Final = 15.0
"""Longer than most nodes take, a message with all its attempts included."""

RENEW_SECONDS: Final = LEASE_SECONDS / 3
"""After which a lease is renewed, while its nodes run."""

RETRY_SECONDS: Final = 15.0
"""How long a node that failed waits before it is run again."""

MAX_LEASES: Final = 5
"""A node is dropped after so many leases in which its process ended or the node failed."""


class Step(NamedTuple):
    """A content step of one run of a flow; ``step_id`` is empty for the end of the flow."""

    organization_id: str
    run_id: str
    flow_id: str
    step_id: str


class Record(NamedTuple):
    """A node that waits, as it was stored when it was reached (§3.2)."""

    step: Step
    id: int
    node_id: str
    node_type: str
    visit: str
    stored_walk: str
    stored_node: str

    @property
    def walk(self) -> Walk:
        """The walk as it was when the node was reached; raises an error if it is corrupt."""
        where = self.step._asdict()
        pacing = Deferred(where.pop("step_id") or None)
        return Walk(**where, visit=self.visit, pacing=pacing, **json.loads(self.stored_walk))

    @property
    def node(self) -> Node:
        """The node as it was when it was reached; raises an error if it is corrupt."""
        return msgspec.convert(json.loads(self.stored_node), Node)


_OF_A_RECORD: Final = ("id", "node_id", "node_type", "visit", "walk", "node")


class Lease(NamedTuple):
    """The answer to asking for a step's records.

    Attributes:
        state: the step's, apart from the records.
        records: those that the caller leases, in walk order; none: the state says why.
    """

    state: AdvancedState
    records: Sequence[Record] = ()


class DeferredStore:
    """The waiting nodes of one database, and their leases by this process (§3.2).

    Args:
        database: where they are.
        types: returns the node types that this process offers. Records of others wait for a process that does.
    """

    def __init__(self, database: Database, types: Callable[[], Collection[str]]) -> None:
        self._database = database
        self._types = types

    @cached_property
    def _token(self) -> str:
        """The token of this process; processes that were forked before their first lease each have their own."""
        return new_token()

    @repeated
    async def record(
        self, walk: Walk, node: Node, step_id: str | None, transaction: AsyncConnection | None
    ) -> Literal["recorded", "run_halted", "already_run"]:
        """Record that a node waits for a step; a second time changes nothing.

        Returns:
            ``recorded`` if it waits. It does not when the run was halted, or when it has run at this step.
        """
        step = step_of(walk, step_id)
        row = {
            **step._asdict(),
            "node_id": node.id,
            "visit": walk.visit,
            "node_type": node.type,
            # Written as ASCII: a text that UTF-8 cannot hold is kept, too.
            "walk": json.dumps({"agent_id": walk.agent_id, "user_id": walk.user_id, "content": walk.content}),
            "node": json.dumps({**msgspec.structs.asdict(node), "config": dict(node.config)}),
            "holds": 0,
        }
        values = [literal(value, deferred.c[name].type).label(name) for name, value in row.items()]
        source = select(*values, self._database.now().label("created_at")).where(not_(_is_halted(step)))
        added = self._database.sql.insert_unless_there(deferred).from_select([*row, "created_at"], source)
        same = (deferred.c.node_id == node.id, deferred.c.visit == walk.visit, deferred.c.ran_at.is_not(None))
        async with self._database.write(transaction) as connection:
            if (await connection.execute(added)).rowcount == 1:
                return "recorded"
            has_run = exists().where(*_of_run(deferred, step), deferred.c.step_id == step.step_id, *same)
            halted, ran = (await connection.execute(select(_is_halted(step), has_run))).one()
        return "run_halted" if halted else "already_run" if ran else "recorded"

    @repeated
    async def lease(self, step: Step, transaction: AsyncConnection | None = None) -> Lease:
        """Lease what waits for a step, for `LEASE_SECONDS`: no other process runs it meanwhile.

        What this process leases already is leased again, and counts once: an answer was lost, or the lease was left.

        Args:
            step: which.
            transaction: the host's own transaction, which then decides.

        Returns:
            What waits there and no other process leases, up to the first one of a type that is not offered here; of any
            number of racing processes, one gets it.
        """
        rows = await self.find(step, transaction)
        first, offered = rows[0], self._types()
        if (unleased := _state(rows)) is not None:
            return Lease(unleased)
        mine = list(takewhile(lambda row: row.node_type in offered, rows))
        others = [row.id for row in rows[len(mine) :]]
        state: AdvancedState = "unavailable" if others or first.later else "done"
        if first.later:
            mine.clear()
        if not mine and not others:
            return Lease(state)
        records: list[Record] = []
        async with self._database.write(transaction) as connection:
            if mine:
                is_spent = first.holds >= MAX_LEASES
                # Whoever has the first record has them all. The second caller does not wait: the nodes are already running.
                # It waits no longer, if it has run meanwhile.
                is_mine = (*_waiting(step), not_(self._is_leased()), not_(_is_halted(step)))
                gate = select(deferred.c.id).where(deferred.c.id == first.id, deferred.c.holds == first.holds)
                gate = gate.where(*is_mine).with_for_update(skip_locked=True, of=deferred).correlate(None)
                # Only the first one's count: should this process end, it may be what has ended it.
                counted = mine[1:2] if is_spent else mine[:1]
                is_new = func.coalesce(deferred.c.token, "") != self._token
                counts = and_(deferred.c.id.in_([row.id for row in counted]), is_new)
                leased = (
                    update(deferred)
                    .where(*_waiting(step), deferred.c.id <= mine[-1].id, gate.exists())
                    .values(
                        token=self._token,
                        held_until=self._after(LEASE_SECONDS),
                        holds=deferred.c.holds + case((counts, 1), else_=0),
                    )
                    .returning(*(deferred.c[name] for name in _OF_A_RECORD))
                )
                records = sorted(Record(step, *row) for row in (await connection.execute(leased)).all())
                if not records:
                    return Lease("running")
                if is_spent:
                    records = [record for record in records if record.id != first.id]
                    await connection.execute(self._ended().where(deferred.c.id == first.id))
                    log.error(
                        "deferred node %s of run %s is dropped: it failed or ended its process %s times",
                        printable(first.node_id),
                        printable(step.run_id),
                        MAX_LEASES,
                        extra={"event": "deferred.dropped"},
                    )
            if others:
                # The user has got here: the recovery of a process that offers the type finds them.
                told = update(deferred).where(deferred.c.id.in_(others), deferred.c.held_until.is_(None))
                await connection.execute(told.values(held_until=self._database.now()))
        return Lease(state, records)

    async def find(self, step: Step, transaction: AsyncConnection | None) -> Sequence[Row[Any]]:
        """Return what waits for a step, without a lock: before most steps nothing waits, and SQLite has one writer.

        The one row of a step for which nothing waits has no id, and says whether its run was halted.
        """
        one = select(literal(1)).subquery()
        query = (
            select(
                deferred.c.id,
                deferred.c.node_id,
                deferred.c.node_type,
                deferred.c.holds,
                _is_halted(step).label("halted"),
                self._is_leased().label("leased"),
                and_(deferred.c.token.is_(None), deferred.c.held_until > self._database.now()).label("later"),
            )
            .select_from(one.outerjoin(deferred, and_(*_waiting(step))))
            .order_by(deferred.c.id)
        )
        async with self._database.read(transaction) as connection:
            return (await connection.execute(query)).all()

    async def expired(self, limit: int) -> Sequence[Step]:
        """List steps whose leases have expired and whose first records this process can run, the earliest first."""
        other = deferred.alias("other")
        key = [deferred.c[name] for name in Step._fields]
        types = tuple(self._types())
        now = self._database.now()
        same_step = (*(other.c[name] == deferred.c[name] for name in Step._fields), other.c.ran_at.is_(None))
        leased = (other.c.token.is_not(None), other.c.held_until > now)
        others = (other.c.held_until.is_not(None), other.c.node_type.not_in(types))
        gone = (
            select(*key)
            .where(
                deferred.c.node_type.in_(types),
                deferred.c.held_until < now,
                not_(exists().where(*same_step, *leased)),
                not_(exists().where(*same_step, *others, other.c.id < deferred.c.id)),
            )
            .group_by(*key)
            .order_by(func.min(deferred.c.held_until))
            .limit(limit)
        )
        return [Step._make(row) for row in await self._database.rows(gone)]

    @repeated
    async def renew(self, step: Step) -> bool:
        """Renew this process's lease of a step; return False if nothing waits there any more.

        Raises:
            LeaseLost: another process has reclaimed it, or may.
        """
        renewed = self._leased(step).values(held_until=self._after(LEASE_SECONDS))
        async with self._database.answering(), self._database.write() as connection:
            if (await connection.execute(renewed)).rowcount:
                return True
            if await self.state(step, connection) in {"running", "unavailable"}:
                raise LeaseLost
            return False

    async def state(self, step: Step, transaction: AsyncConnection | None) -> AdvancedState:
        """Return the state of a step whose records this call does not lease, or no longer."""
        return _state(await self.find(step, transaction)) or "unavailable"

    @repeated
    async def release(
        self, step: Step, transaction: AsyncConnection | None = None, *, counts: bool = False
    ) -> None:
        """Release the remaining records of this process's lease of a step; they run again after `RETRY_SECONDS`.

        Args:
            step: what was leased.
            transaction: the host's own transaction, which then decides.
            counts: whether the lease counts towards `MAX_LEASES`.
        """
        uncounted = case((deferred.c.holds > 0, deferred.c.holds - 1), else_=0)
        released = self._leased(step).values(
            token=None, held_until=self._after(RETRY_SECONDS), holds=deferred.c.holds if counts else uncounted
        )
        async with self._database.write(transaction) as connection:
            await connection.execute(released)

    async def pop(self, record: Record, connection: AsyncConnection) -> bool:
        """Record that a node has run, so that it does not run again at this step; return whether its lease still held."""
        ended = self._ended().where(deferred.c.id == record.id, deferred.c.token == self._token)
        return (await connection.execute(ended)).rowcount == 1

    async def halt(self, step: Step, connection: AsyncConnection) -> None:
        """Record that a run was halted, and remove everything that still waits in it."""
        # To avoid deadlock, rows are locked in id order.
        waiting = (*_of_run(deferred, step), deferred.c.ran_at.is_(None))
        rest = select(deferred.c.id).where(*waiting).order_by(deferred.c.id).with_for_update()
        await connection.execute(delete(deferred).where(deferred.c.id.in_(rest)))
        halted = {**step._asdict(), "halted_at": self._database.now()}
        del halted["step_id"]
        await connection.execute(self._database.sql.insert_unless_there(halted_runs).values(halted))

    def _ended(self) -> Update:
        """Note when records ran, and keep nothing but their ids."""
        return update(deferred).values(
            ran_at=self._database.now(), walk="", node="", token=None, held_until=None, holds=0
        )

    def _after(self, seconds: float) -> ColumnElement[int]:
        return self._database.now() + int(seconds * 1000)

    def _leased(self, step: Step) -> Update:
        """Change what this process leases of a step."""
        return update(deferred).where(*_waiting(step), deferred.c.token == self._token)

    def _is_leased(self) -> ColumnElement[bool]:
        """Select records that another process leases."""
        others = func.coalesce(deferred.c.token, self._token) != self._token
        return and_(others, deferred.c.held_until > self._database.now())


def _state(rows: Sequence[Row[Any]]) -> AdvancedState | None:
    """Return the state of a step that nobody can lease now, by what `DeferredStore.find` has found; ``None``: it can be leased."""
    if rows[0].halted:
        return "halted"
    if rows[0].id is None:
        return "done"
    return "running" if any(row.leased for row in rows) else None


def step_of(walk: Walk, step_id: str | None) -> Step:
    """Name the step of a walk's run; ``None`` is the end of the flow."""
    return Step(walk.organization_id, walk.run_id, walk.flow_id, step_id or "")


def _of_run(table: Any, step: Step) -> Sequence[ColumnElement[bool]]:
    """Select the rows of a step's run."""
    return (
        table.c.organization_id == step.organization_id,
        table.c.run_id == step.run_id,
        table.c.flow_id == step.flow_id,
    )


def _waiting(step: Step) -> Sequence[ColumnElement[bool]]:
    """Select the records that wait for a step."""
    return (*_of_run(deferred, step), deferred.c.step_id == step.step_id, deferred.c.ran_at.is_(None))


def _is_halted(step: Step) -> ColumnElement[bool]:
    """Select whether a step's run was halted."""
    return exists().where(*_of_run(halted_runs, step))
