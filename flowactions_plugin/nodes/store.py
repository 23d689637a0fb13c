"""Writes the nodes that wait for a content step, their leases, and the runs that were halted."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from typing import Final, Literal, NamedTuple

from sqlalchemy import Text, Update, and_, case, delete, func, literal, not_, null, or_, select, update
from sqlalchemy.ext.asyncio import AsyncConnection

from flowactions_hookspecs import Node, Walk
from flowactions_plugin.clock import new_token
from flowactions_plugin.log_text import printable
from flowactions_plugin.nodes.queries import (
    KEPT,
    LEASE_SECONDS,
    RAN_FLOW,
    DeferredQueries,
    Lease,
    Record,
    Step,
    columns_of,
    has_run,
    is_halted,
    of_run,
    of_step,
    ran_prefix,
    read_record,
    step_of,
)
from flowactions_plugin.storage.database import Database
from flowactions_plugin.storage.schema import deferred, halted_runs
from flowactions_plugin.storage.waiting import repeated

log = logging.getLogger("flowactions")

MAX_LEASES: Final = 5
"""A node is dropped after so many leases in which its process ended or the node failed."""

RETRY_SECONDS: Final = 15.0
"""How long a node that failed waits before it is run again."""

LAST_ID: Final = 2**63 - 1

AGAIN: Final = "has run"
"""Instead of a token, in a record of a node that has run already. It is deleted in the same transaction."""


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
        self.queries = DeferredQueries(database, types)

    @repeated
    async def record(
        self, walk: Walk, node: Node, step_id: str | None, transaction: AsyncConnection | None
    ) -> Literal["recorded", "run_halted", "already_run"]:
        """Record that a node waits for a step; a second time changes nothing.

        Returns:
            ``recorded`` if it waits. It does not when the run was halted, or when it has run at this step. If this call
            races with the one that runs it, the answer may be ``recorded``: `lease` then removes the second record.
        """
        step = step_of(walk, step_id)
        ran = has_run(step, node.id, walk.visit)
        row = {**columns_of(walk, node, step_id), "holds": 0}
        values = [literal(value, deferred.c[name].type).label(name) for name, value in row.items()]
        source = select(*values, self._database.now().label("created_at")).where(
            not_(is_halted(step)), not_(ran)
        )
        added = self._database.sql.insert_unless_there(deferred).from_select([*row, "created_at"], source)
        async with self._database.write(transaction) as connection:
            if (await connection.execute(added)).rowcount == 1:
                return "recorded"
            halted, has = (await connection.execute(select(is_halted(step), ran))).one()
        return "run_halted" if halted else "already_run" if has else "recorded"

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
        found = await self.queries.find(step, transaction)
        if found.state is not None and not found.mark:
            return Lease(found.state)
        async with self._database.write(transaction) as connection:
            if found.mark:
                await self._mark(step, found.first, connection)
            if found.state is not None:
                return Lease(found.state)
            again = has_run(step, deferred.c.node_id, deferred.c.visit)
            # Whoever has the first record has them all. Who comes second does not wait: they are being run.
            gate = (
                select(and_(deferred.c.holds >= MAX_LEASES, not_(again)))
                .where(
                    deferred.c.id == found.first,
                    *of_step(step),  # no longer, if it has run meanwhile
                    not_(self.queries.is_leased()),
                    not_(is_halted(step)),
                )
                .with_for_update(skip_locked=True, of=deferred)
            )
            exhausted = (await connection.execute(gate)).scalar_one_or_none()
            if exhausted is None:
                return Lease("running")
            if exhausted:
                await self._drop_exhausted(step, found.first, connection)
            return await self._lease_all(step, token or new_token(), connection)

    async def state(
        self, step: Step, transaction: AsyncConnection | None = None
    ) -> Literal["done", "running", "halted"]:
        """Return the state of a step whose records another call has leased."""
        found = await self.queries.find(step, transaction)
        return found.state if found.state == "done" or found.state == "halted" else "running"  # noqa: PLR1714  narrows

    async def _mark(self, step: Step, first: int, connection: AsyncConnection) -> None:
        """Have a record that this process cannot run found by one that can; what is behind it waits for that."""
        is_first = deferred.c.id == first
        await connection.execute(
            update(deferred)
            .where(
                *of_step(step),
                not_(self.queries.is_leased()),
                or_(is_first, deferred.c.held_until.is_not(None)),
            )
            .values(token=None, held_until=case((is_first, self._database.now()), else_=null()))
        )

    async def _drop_exhausted(self, step: Step, first: int, connection: AsyncConnection) -> None:
        emptied = _emptied(step.flow_id).where(deferred.c.id == first)
        dropped = await connection.execute(emptied.returning(deferred.c.node_id))
        log.error(
            "deferred node %s of run %s is dropped: it failed or ended its process %s times",
            printable(dropped.scalar_one()),
            printable(step.run_id),
            MAX_LEASES,
            extra={"event": "deferred.dropped"},
        )

    async def _lease_all(self, step: Step, token: str, connection: AsyncConnection) -> Lease:
        now = self._database.now()
        other = deferred.alias("other")
        first = select(func.min(other.c.id)).where(*of_step(step, other)).scalar_subquery()
        # Of a type that is not offered here: it is not leased, and the recovery of another process finds it.
        blocked = func.coalesce(
            select(func.min(other.c.id))
            .where(
                *of_step(step, other),
                other.c.node_type.not_in(self.queries.types),
                not_(has_run(step, other.c.node_id, other.c.visit)),
            )
            .scalar_subquery(),
            LAST_ID,
        )
        mine = deferred.c.id < blocked
        again = has_run(step, deferred.c.node_id, deferred.c.visit)
        leased = (
            update(deferred)
            .where(*of_step(step), not_(self.queries.is_leased()))
            .values(
                token=case((again, AGAIN), (mine, token), else_=null()),
                held_until=case(
                    (mine, now + int(LEASE_SECONDS * 1000)), (deferred.c.id == blocked, now), else_=null()
                ),
                # Only the first one's: should this process end, it may be what has ended it.
                holds=case(
                    (and_(mine, deferred.c.id == first, deferred.c.holds < MAX_LEASES), deferred.c.holds + 1),
                    else_=deferred.c.holds,
                ),
            )
            .returning(
                deferred.c.id,
                deferred.c.token,
                *(deferred.c[name] for name in KEPT),
            )
        )
        rows = sorted((await connection.execute(leased)).all(), key=lambda row: row.id)
        read = {
            row.id: read_record(row.id, token, step, {name: getattr(row, name) for name in KEPT})
            for row in rows
            if row.token == token
        }
        await self._drop(step, [row_id for row_id, record in read.items() if record is None], connection)
        ran = [row.id for row in rows if row.token == AGAIN]
        if ran:
            await connection.execute(delete(deferred).where(deferred.c.id.in_(ran)))
        records = [record for record in read.values() if record is not None]
        is_blocked = len(read) + len(ran) < len(rows)
        if not records:
            return Lease("unavailable" if is_blocked else "done", blocked=is_blocked)
        return Lease("leased", records, is_blocked)

    async def _drop(self, step: Step, unreadable: Sequence[int], connection: AsyncConnection) -> None:
        for row_id in unreadable:
            log.error(
                "run %s: deferred record %s cannot be read and is dropped",
                printable(step.run_id),
                row_id,
                extra={"event": "deferred.dropped"},
            )
        if unreadable:
            await connection.execute(delete(deferred).where(deferred.c.id.in_(unreadable)))

    @repeated
    async def renew(self, record: Record) -> bool:
        """Renew the lease of a record and of those after it; return whether nobody else has reclaimed it meanwhile."""
        leased = (
            update(deferred)
            .where(
                *of_run(deferred, step_of(record.walk, None)),
                deferred.c.id >= record.id,
                deferred.c.token == record.token,
            )
            .values(held_until=self._database.now() + int(LEASE_SECONDS * 1000))
        )
        async with self._database.answering(), self._database.write() as connection:
            return (await connection.execute(leased)).rowcount > 0

    @repeated
    async def release(self, release: Release, transaction: AsyncConnection | None = None) -> None:
        """Release the remaining records of a lease whose process runs but cannot continue."""
        leases = case((deferred.c.holds > 0, deferred.c.holds - 1), else_=0)
        released = (
            update(deferred)
            .where(*of_step(release.step), deferred.c.token == release.token)
            .values(
                token=None,
                held_until=self._database.now() + int(release.seconds * 1000),
                holds=deferred.c.holds if release.counts else leases,
            )
        )
        async with self._database.write(transaction) as connection:
            await connection.execute(released)

    async def pop(self, record: Record, connection: AsyncConnection) -> bool:
        """Empty a record, so that its node does not run again at this step; return whether its lease still held."""
        emptied = _emptied(record.walk.flow_id).where(
            deferred.c.id == record.id, deferred.c.token == record.token
        )
        return (await connection.execute(emptied)).rowcount == 1

    async def halt(self, walk: Walk, connection: AsyncConnection) -> None:
        """Record that a run was halted, and remove everything that still waits in it."""
        step = step_of(walk, None)
        # To avoid deadlock, rows are locked in id order.
        rest = select(deferred.c.id).where(*of_run(deferred, step)).order_by(deferred.c.id).with_for_update()
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


def _emptied(flow_id: str) -> Update:
    """Empty records that have run; what is left tells a `reach` that comes again."""
    return update(deferred).values(
        flow_id=RAN_FLOW,
        step_id=literal(ran_prefix(flow_id), Text) + deferred.c.step_id,
        walk="",
        node="",
        token=None,
        held_until=None,
        holds=0,
    )
