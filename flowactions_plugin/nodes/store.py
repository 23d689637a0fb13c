"""The nodes that wait for a content step: their records, the leases on them, and the runs that were halted.

``held_until`` is the end of a record's lease. Without a token it is the time from which any process may run the record; no
record that nobody has got to has one. ``holds`` counts leases. A record with ``ran_at`` has run: its ids stay, and answer a
`reach` that comes again.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, Literal, NamedTuple, TypeAlias

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
    null,
    select,
    update,
)
from sqlalchemy.ext.asyncio import AsyncConnection

from flowactions_hookspecs import Deferred, Node, Walk
from flowactions_plugin.clock import new_token
from flowactions_plugin.log_text import printable
from flowactions_plugin.storage.database import Database
from flowactions_plugin.storage.schema import deferred, halted_runs
from flowactions_plugin.storage.waiting import repeated

log = logging.getLogger("flowactions")

LEASE_SECONDS: Final = 15.0
"""Longer than most nodes take, a message with all its attempts included; the lease of a longer one is renewed."""

MAX_LEASES: Final = 5
"""A node is dropped after so many leases in which its process ended or the node failed."""

Nothing: TypeAlias = Literal["done", "running", "halted", "unavailable"]
"""Why no record can be leased: nothing waits, somebody else leases them, the run was halted, or the first one is of a type
that is not offered here or runs again only after a while."""


class Step(NamedTuple):
    """A content step of one run of a flow; ``step_id`` is empty for the end of the flow."""

    organization_id: str
    run_id: str
    flow_id: str
    step_id: str


class Record(NamedTuple):
    """A node that waits, as it was stored when it was reached, and the token of its lease (§3.2)."""

    id: int
    step: Step
    token: str
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


class Lease(NamedTuple):
    """The answer to asking for a step's records.

    Attributes:
        state: ``leased``, or why there are none.
        records: those that the caller leases, in walk order.
        blocked: whether behind them waits one of a type that is not offered here.
    """

    state: Literal["leased"] | Nothing
    records: Sequence[Record] = ()
    blocked: bool = False


class Found(NamedTuple):
    """What waits for a step: why there is nothing to lease, if so; the first record; whether it waits for another process."""

    state: Nothing | None
    first: int = 0
    of_others: bool = False


class Release(NamedTuple):
    """A lease that is given back.

    Attributes:
        step: what was leased.
        token: of the lease.
        seconds: after which it is run again.
        counts: whether the lease counts towards `MAX_LEASES`.
    """

    step: Step
    token: str
    seconds: float = 0.0
    counts: bool = False


class DeferredStore:
    """The waiting nodes of one database (§3.2).

    Args:
        database: where they are.
        types: returns the node types that this process offers. Records of others wait for a process that does.
    """

    def __init__(self, database: Database, types: Callable[[], Iterable[str]]) -> None:
        self._database = database
        self._types = types

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
    async def lease(
        self, step: Step, transaction: AsyncConnection | None = None, token: str | None = None
    ) -> Lease:
        """Lease what waits for a step, for `LEASE_SECONDS`: nobody else runs it meanwhile.

        Args:
            step: which.
            transaction: the host's own transaction, which then decides.
            token: new for each call; by it the records can be released though the answer was lost.

        Returns:
            What waits there and nobody else leases, up to the first one of a type that is not offered here; of any
            number of racing callers, one gets it.
        """
        found = await self.find(step, transaction)
        if found.state is not None and not found.of_others:
            return Lease(found.state)
        async with self._database.write(transaction) as connection:
            if found.state is not None:
                # The user has got here: the recovery of a process that offers the type finds it.
                reached = update(deferred).where(*_waiting(step), deferred.c.held_until.is_(None))
                await connection.execute(reached.values(held_until=self._database.now()))
                return Lease(found.state)
            # Whoever has the first record has them all. The second caller does not wait: the nodes are already running.
            gate = (
                select(deferred.c.holds)
                .where(
                    deferred.c.id == found.first,
                    *_waiting(step),  # no longer, if it has run meanwhile
                    not_(self._is_leased()),
                    not_(_is_halted(step)),
                )
                .with_for_update(skip_locked=True, of=deferred)
            )
            holds = (await connection.execute(gate)).scalar_one_or_none()
            if holds is None:
                return Lease("running")
            if holds >= MAX_LEASES:
                await self._drop_exhausted(step, found.first, connection)
            return await self._lease_all(step, token or new_token(), connection)

    async def find(self, step: Step, transaction: AsyncConnection | None) -> Found:
        """Return what waits for a step, without a lock: before most steps nothing waits, and SQLite has one writer."""
        now, until = self._database.now(), deferred.c.held_until
        one = select(literal(1)).subquery()  # so that there is an answer also where nothing waits
        query = (
            select(
                deferred.c.id,
                deferred.c.node_type,
                until,
                _is_halted(step).label("halted"),
                self._is_leased().label("leased"),
                and_(deferred.c.token.is_(None), until > now, until <= now + _MOST_AHEAD).label("later"),
            )
            .select_from(one.outerjoin(deferred, and_(*_waiting(step))))
            .order_by(deferred.c.id)
        )
        async with self._database.read(transaction) as connection:
            rows = (await connection.execute(query)).all()
        first = rows[0]
        if first.halted:
            return Found("halted")
        if any(row.leased for row in rows):
            return Found("running")
        if first.id is None:
            return Found("done")
        if first.node_type in self._types():
            return Found("unavailable" if first.later else None, first.id)
        return Found("unavailable", first.id, of_others=any(row.held_until is None for row in rows))

    async def expired(self, limit: int) -> Sequence[Step]:
        """List steps whose leases have expired and whose first records this process can run, the earliest first."""
        other = deferred.alias("other")
        key = [deferred.c[name] for name in Step._fields]
        types = tuple(self._types())
        same_step = (*(other.c[name] == deferred.c[name] for name in Step._fields), other.c.ran_at.is_(None))
        others = (other.c.held_until.is_not(None), other.c.node_type.not_in(types))
        gone = (
            select(*key)
            .where(
                deferred.c.node_type.in_(types),
                deferred.c.held_until < self._database.now(),
                not_(exists().where(*same_step, self._is_leased(other))),
                not_(exists().where(*same_step, *others, other.c.id < deferred.c.id)),
            )
            .group_by(*key)
            .order_by(func.min(deferred.c.held_until))
            .limit(limit)
        )
        return [Step._make(row) for row in await self._database.rows(gone)]

    async def _drop_exhausted(self, step: Step, first: int, connection: AsyncConnection) -> None:
        """Have a node count as run that was leased too often."""
        dropped = self._ended().where(deferred.c.id == first).returning(deferred.c.node_id)
        log.error(
            "deferred node %s of run %s is dropped: it failed or ended its process %s times",
            printable((await connection.execute(dropped)).scalar_one()),
            printable(step.run_id),
            MAX_LEASES,
            extra={"event": "deferred.dropped"},
        )

    async def _lease_all(self, step: Step, token: str, connection: AsyncConnection) -> Lease:
        """Lease the records of a step up to the first of a type that is not offered here; the others wait for its process."""
        other = deferred.alias("other")
        first = select(func.min(other.c.id)).where(*_waiting(step, other)).scalar_subquery()
        blocked = (
            select(func.min(other.c.id))
            .where(*_waiting(step, other), other.c.node_type.not_in(tuple(self._types())))
            .scalar_subquery()
        )
        mine = deferred.c.id < func.coalesce(blocked, 2**63 - 1)
        # Only the first one's: should this process end, it may be what has ended it.
        counts = and_(mine, deferred.c.id == first, deferred.c.holds < MAX_LEASES)
        leased = (
            update(deferred)
            .where(*_waiting(step), not_(self._is_leased()))
            .values(
                token=case((mine, token), else_=null()),
                held_until=self._database.now() + case((mine, int(LEASE_SECONDS * 1000)), else_=0),
                holds=deferred.c.holds + case((counts, 1), else_=0),
            )
            .returning(deferred)
        )
        rows = sorted((await connection.execute(leased)).all(), key=lambda row: row.id)
        records = [_record(step, row) for row in rows if row.token == token]
        is_blocked = len(records) < len(rows)
        if records:
            return Lease("leased", records, is_blocked)
        return Lease("unavailable" if is_blocked else "done", blocked=is_blocked)

    @repeated
    async def renew(self, record: Record) -> bool:
        """Renew the lease of a record and of those after it; return whether nobody else has reclaimed it meanwhile."""
        leased = (
            update(deferred)
            .where(*_waiting(record.step), deferred.c.id >= record.id, deferred.c.token == record.token)
            .values(held_until=self._database.now() + int(LEASE_SECONDS * 1000))
        )
        async with self._database.answering(), self._database.write() as connection:
            return (await connection.execute(leased)).rowcount > 0

    @repeated
    async def release(self, release: Release, transaction: AsyncConnection | None = None) -> None:
        """Release the remaining records of a lease whose process runs but cannot continue."""
        uncounted = case((deferred.c.holds > 0, deferred.c.holds - 1), else_=0)
        released = (
            update(deferred)
            .where(*_waiting(release.step), deferred.c.token == release.token)
            .values(
                token=None,
                held_until=self._database.now() + int(release.seconds * 1000),
                holds=deferred.c.holds if release.counts else uncounted,
            )
        )
        async with self._database.write(transaction) as connection:
            await connection.execute(released)

    async def pop(self, record: Record, connection: AsyncConnection) -> bool:
        """Record that a node has run, so that it does not run again at this step; return whether its lease still held."""
        ended = self._ended().where(deferred.c.id == record.id, deferred.c.token == record.token)
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

    async def prune(self, older_than_ms: int, limit: int) -> int:
        """Remove records of runs that were abandoned longer ago than this; give how many there were."""
        return await self._database.prune(deferred.c.created_at, older_than_ms, limit)

    async def prune_halted(self, older_than_ms: int, limit: int) -> int:
        """Forget runs that were halted longer ago than this; give how many there were."""
        return await self._database.prune(halted_runs.c.halted_at, older_than_ms, limit)

    def _ended(self) -> Update:
        """Note when records ran, and keep nothing but their ids."""
        return update(deferred).values(
            ran_at=self._database.now(), walk="", node="", token=None, held_until=None, holds=0
        )

    def _is_leased(self, table: Any = deferred) -> ColumnElement[bool]:
        """Select records that somebody leases. A time that no lease can have come to does not count."""
        now = self._database.now()
        has_end = table.c.held_until.is_not(None)  # so that the index of held records can be used
        return and_(has_end, table.c.token.is_not(None), table.c.held_until.between(now, now + _MOST_AHEAD))


_MOST_AHEAD: Final = int(2 * LEASE_SECONDS * 1000)


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


def _waiting(step: Step, table: Any = deferred) -> Sequence[ColumnElement[bool]]:
    """Select the records that wait for a step."""
    return (*_of_run(table, step), table.c.step_id == step.step_id, table.c.ran_at.is_(None))


def _is_halted(step: Step) -> ColumnElement[bool]:
    """Select whether a step's run was halted."""
    return exists().where(*_of_run(halted_runs, step))


def _record(step: Step, row: Row[Any]) -> Record:
    """Return a row that was leased as a record."""
    return Record(row.id, step, row.token, row.node_id, row.node_type, row.visit, row.walk, row.node)
