"""The queue of one database: what goes in, what workers take and write, what operators see and do.

The lease contract stands in `outbox.claims`, what is written of a claimed row in `outbox.outcomes`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from typing import Any

import msgspec
from sqlalchemy import ColumnElement, Executable, Row, case, delete, select, type_coerce, update
from sqlalchemy.ext.asyncio import AsyncConnection
from sqlalchemy.types import NullType

from flowactions_plugin.outbox.claimed import ClaimedDelivery, Completion, Return
from flowactions_plugin.outbox.claims import Claims, inline
from flowactions_plugin.outbox.delivery import (
    CLAIM_SECONDS,
    LONGEST_WAIT_SECONDS,
    MAX_COUNT,
    NewDelivery,
    loggable,
    storable,
)
from flowactions_plugin.outbox.outcomes import CLEARED, Outcomes
from flowactions_plugin.storage.database import Database
from flowactions_plugin.storage.dialect import Dialect
from flowactions_plugin.storage.schema import LIVE, NO_AGENT, attempts, outbox
from flowactions_plugin.storage.text import as_text, is_text, read_all

log = logging.getLogger("flowactions.outbox")


class Filter(msgspec.Struct, frozen=True, kw_only=True):
    """Which rows of an organization are meant; what is ``None`` does not matter.

    Attributes:
        ids: only these rows.
        agent_id: only this agent's rows.
        destination: only rows to this scheme, host and port.
        event_type: only rows of this type (§6.1).
        finished_from: only rows that ended at this time or later, Unix milliseconds.
        finished_before: only rows that ended before this time, Unix milliseconds.
    """

    ids: tuple[str, ...] | None = None
    agent_id: str | None = None
    destination: str | None = None
    event_type: str | None = None
    finished_from: int | None = None
    finished_before: int | None = None

    def conditions(self) -> list[ColumnElement[bool]]:
        """Give the SQL for it."""
        found: list[ColumnElement[bool]] = []
        if self.ids is not None:
            found.append(outbox.c.id.in_(self.ids))
        for name in ("agent_id", "destination", "event_type"):
            value = getattr(self, name)
            if value is not None:
                found.append(outbox.c[name] == value)
        if self.finished_from is not None:
            found.append(outbox.c.finished_at >= self.finished_from)
        if self.finished_before is not None:
            found.append(outbox.c.finished_at < self.finished_before)
        return found


class OutboxStore:
    """The queue of one database."""

    def __init__(self, database: Database, lease_seconds: float = CLAIM_SECONDS) -> None:
        self._database = database
        self._lease_seconds = lease_seconds
        self._claims = Claims(database, lease_seconds)
        self._outcomes = Outcomes(database)

    async def enqueue(self, delivery: NewDelivery, connection: AsyncConnection | None) -> None:
        """Write a row that is due now (§3.1), within the caller's transaction; ``None``: in one of its own."""
        row = msgspec.structs.asdict(delivery)
        row["agent_id"] = delivery.agent_id or NO_AGENT
        row["origin"] = msgspec.json.encode(delivery.origin).decode()
        row["headers"] = msgspec.json.encode(delivery.headers).decode()
        statement = self._database.built(_enqueued)
        if connection is None:
            await self._database.at_once(lambda own: own.execute(statement, row))
        else:
            async with self._database.write(connection) as joined:
                await joined.execute(statement, row)

    def transaction(self, connection: AsyncConnection | None) -> AbstractAsyncContextManager[AsyncConnection]:
        """Open a transaction, or join the caller's."""
        return self._database.write(connection)

    def reading(self, connection: AsyncConnection | None) -> AbstractAsyncContextManager[AsyncConnection]:
        """Open a connection for reading, or read in the caller's transaction."""
        return self._database.read(connection)

    def using(self, transaction: AsyncConnection | None) -> AbstractContextManager[None]:
        """Keep a host's transaction for one call."""
        return self._database.using(transaction)

    def after_commit(self, connection: AsyncConnection, call: Callable[[], None]) -> None:
        """Have something called when what was enqueued on a connection is there for others."""
        self._database.after_commit(connection, call)

    async def claim(
        self, limit: int, *, per_destination: int | None = None, busy: Mapping[str, int] | None = None
    ) -> list[ClaimedDelivery]:
        """Claim up to ``limit`` rows that are due, oldest first (§8).

        Args:
            limit: how many at the most.
            per_destination: how many to one destination at the most, counted with those that are in flight.
                What is due elsewhere is then found behind any backlog, at a cost that does not grow with it.
            busy: how many are in flight to each destination.
        """
        return await self._claims.claim(limit, per_destination, busy or {})

    async def any_quarantined(self) -> bool:
        """Tell whether a row is due that may be sent in quarantine only."""
        return await self._claims.any_quarantined()

    async def claim_quarantined(self) -> ClaimedDelivery | None:
        """Claim the oldest row that may be sent in quarantine only, if one is due."""
        return await self._claims.claim_quarantined()

    async def begin_quarantined(self, delivery: ClaimedDelivery) -> bool:
        """Count a round in quarantine as begun, before its request leaves.

        Returns:
            Whether the claim still held.
        """
        return await self._claims.begin_quarantined(delivery)

    async def recall(self) -> int:
        """Bring back rows that wait longer than any rule lets them: the clock was set back after they were due.

        Returns:
            How many there were; they are due when a claim that may still hold has expired.
        """
        now = self._database.now()
        lost = (LIVE, outbox.c.next_attempt_at > now + int(LONGEST_WAIT_SECONDS * 1000))
        async with self._database.read() as connection:
            if (await connection.execute(select(outbox.c.id).where(*lost).limit(1))).first() is None:
                return 0
        recalled = (
            update(outbox)
            .where(*lost)
            .values(next_attempt_at=now + int(self._lease_seconds * 1000), updated_at=now)
        )
        async with self._database.write() as connection:
            return (await connection.execute(recalled)).rowcount

    async def complete(self, completions: Sequence[Completion]) -> set[str]:
        """Write what came of attempts, and what ends without one, of each if its claim still holds.

        Repeating it after its answer was lost finds what the first try wrote.

        Returns:
            The ids of those whose claim held. The others are in other workers' hands, and nothing of them was
            written.

        Raises:
            RowInvalid: an outcome cannot be stored, and none was.
        """
        return await self._outcomes.complete(completions)

    async def give_back(self, returns: Sequence[Return]) -> dict[str, str]:
        """Give claims back without an attempt, of each if its claim still holds.

        Returns:
            The state of each row whose claim held: as it was, or ``dead`` for one that waited too long.
        """
        return await self._outcomes.give_back(returns)

    async def release(self, deliveries: Sequence[ClaimedDelivery], delay_seconds: float = 0.0) -> int:
        """Give claims back without an attempt; the rows are due again after ``delay_seconds``.

        Returns:
            How many claims still held.
        """
        return len(await self.give_back([Return(each, delay_seconds) for each in deliveries]))

    async def retry(self, row_id: str, organization_id: str) -> bool:
        """Make a dead row of this organization due now (§4.3).

        Returns:
            Whether there was one.
        """
        now = self._database.now()
        requeued = (
            update(outbox)
            .where(
                outbox.c.id == row_id,
                outbox.c.organization_id == organization_id,
                outbox.c.status == inline("dead"),
            )
            .values(**CLEARED, status="pending", next_attempt_at=now, updated_at=now, finished_at=None)
        )
        async with self._database.write() as connection:
            return (await connection.execute(requeued)).rowcount == 1

    async def retry_many(
        self, organization_id: str, wanted: Filter, *, reset_attempts: bool, limit: int
    ) -> int:
        """Make dead rows of this organization due now, oldest first.

        Args:
            organization_id: the tenant.
            wanted: which of its dead rows.
            reset_attempts: whether the attempts made so far count no more, so that each row has all of its
                attempts again; if not, each gets one.
            limit: how many at the most.

        Returns:
            How many there were.
        """
        now = self._database.now()
        dead = (
            select(outbox.c.id)
            .where(
                outbox.c.organization_id == organization_id,
                outbox.c.status == inline("dead"),
                *wanted.conditions(),
            )
            .order_by(outbox.c.id)
            .limit(inline(limit))
            .with_for_update(skip_locked=True)
            .cte("dead")
        )
        requeued = (
            update(outbox)
            .where(outbox.c.id.in_(select(dead.c.id)), outbox.c.status == inline("dead"))
            .values(**CLEARED, status="pending", next_attempt_at=now, updated_at=now, finished_at=None)
        )
        if reset_attempts:
            counts = outbox.c.attempts.between(0, MAX_COUNT) & outbox.c.earlier_attempts.between(0, MAX_COUNT)
            # A count that is out of all bounds would be an overflow, and end the replay of the others.
            total = case((counts, outbox.c.earlier_attempts + outbox.c.attempts), else_=0)
            requeued = requeued.values(attempts=0, earlier_attempts=total)
        async with self._database.write() as connection:
            # Counted, since SQLite's driver gives no row count for a statement that begins with WITH.
            return len((await connection.execute(requeued.returning(outbox.c.id))).all())

    async def prune(self, status: str, older_than_ms: int, limit: int) -> int:
        """Remove finished rows with their attempts, oldest first.

        Args:
            status: ``delivered`` or ``dead``.
            older_than_ms: only rows that finished longer ago than this.
            limit: about how many at the most, so that nobody waits for the transaction; those that finished in one
                millisecond go together.

        Returns:
            How many there were.
        """
        old = (
            outbox.c.status == inline(status),
            outbox.c.finished_at.is_not(None),
            outbox.c.finished_at < self._database.now() - older_than_ms,
        )
        times = select(outbox.c.finished_at).where(*old).order_by(outbox.c.finished_at).limit(inline(limit))
        # Looked for without a lock: mostly there is nothing, and SQLite has one writer only.
        async with self._database.read() as connection:
            found = (await connection.execute(times)).scalars().all()
        if not found:
            return 0
        # A row that was retried meanwhile stays.
        gone = delete(outbox).where(*old, outbox.c.finished_at <= found[-1]).returning(outbox.c.id)
        async with self._database.write() as connection:
            removed = [row.id for row in await connection.run_sync(read_all, gone)]
            named = [row_id for row_id in removed if is_text(row_id)]
            await connection.execute(delete(attempts).where(attempts.c.delivery_id.in_(named)))
        return len(removed)

    async def cancel(self, row_id: str, organization_id: str, reason: str) -> bool:
        """End a row of this organization that waits for its next attempt.

        Returns:
            Whether there was one; a row that is being sent just now does not wait.
        """
        now = self._database.now()
        cancelled = (
            update(outbox)
            .where(
                LIVE,
                outbox.c.id == row_id,
                outbox.c.organization_id == organization_id,
                outbox.c.claim_token.is_(None),
            )
            .values(**CLEARED, status="dead", last_error=storable(reason), updated_at=now, finished_at=now)
            .returning(outbox.c.destination)
        )
        async with self._database.write() as connection:
            ended = await connection.run_sync(read_all, cancelled)
        for row in ended:
            log_dead(row_id, row.destination, reason)
        return bool(ended)

    async def page(
        self,
        organization_id: str,
        *,
        status: str | None,
        wanted: Filter,
        before: str | None,
        limit: int,
    ) -> Sequence[Row[Any]]:
        """List an organization's rows, newest first, without their bodies.

        Args:
            organization_id: the tenant.
            status: only rows in this state.
            wanted: only these.
            before: only rows older than the one with this id.
            limit: how many at the most.
        """
        conditions = [outbox.c.organization_id == organization_id, *wanted.conditions()]
        if status is not None:
            conditions.append(outbox.c.status == inline(status))
        if before is not None:
            conditions.append(outbox.c.id < before)
        columns = [column for column in outbox.c if column.name not in {"body", "headers", "origin"}]
        query = select(*_raw(columns)).where(*conditions).order_by(outbox.c.id.desc()).limit(inline(limit))
        async with self._database.read() as connection:
            return await connection.run_sync(read_all, query)

    async def detail(self, row_id: str, organization_id: str) -> tuple[Row[Any], Sequence[Row[Any]]] | None:
        """Give a row of this organization with its attempts, ``None`` when there is none.

        Values are as they are stored, which on SQLite may be of any type; `views` shows them.
        """
        one = select(*_raw(outbox.c)).where(outbox.c.id == row_id, outbox.c.organization_id == organization_id)
        made = select(*_raw(attempts.c)).where(attempts.c.delivery_id == row_id).order_by(attempts.c.number)
        async with self._database.read() as connection:
            rows = await connection.run_sync(read_all, one)
            if not rows:
                return None
            tried = await connection.run_sync(read_all, made)
        return rows[0], tried


def log_dead(row_id: object, destination: object, reason: str) -> None:
    """Say that a delivery is dead: one line for each, whatever stands in its row."""
    name, where = loggable(as_text(row_id)), loggable(as_text(destination))
    log.warning("delivery %s to %s is dead: %s", name, where, loggable(reason))


def _raw(columns: Iterable[ColumnElement[Any]]) -> list[ColumnElement[Any]]:
    """Select columns as the driver gives them: on SQLite there may be anything in any of them."""
    return [type_coerce(column, NullType()).label(column.name) for column in columns]


def _enqueued(database: Dialect) -> Executable:
    now = database.now()
    # A row that is written again is the same row.
    return database.insert_unless_there(outbox).values(
        status="pending",
        attempts=0,
        earlier_attempts=0,
        takeovers=0,
        next_attempt_at=now,
        created_at=now,
        updated_at=now,
    )
