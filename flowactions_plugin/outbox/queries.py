"""What operators do with the queue: list, look at, retry, cancel; and retention.

An organization reaches its own rows only.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import msgspec
from sqlalchemy import ColumnElement, Row, TextClause, case, delete, select, type_coerce, update
from sqlalchemy.types import NullType

from flowactions_plugin.outbox.claims import inline
from flowactions_plugin.outbox.log_lines import log_dead
from flowactions_plugin.outbox.outcomes import CLEARED
from flowactions_plugin.outbox.rules import MAX_COUNT, storable
from flowactions_plugin.storage.database import Database
from flowactions_plugin.storage.schema import LIVE, UNDELIVERED, attempts, outbox
from flowactions_plugin.storage.text import is_text, read_all


class Filter(msgspec.Struct, frozen=True, kw_only=True):
    """Which rows of an organization are selected; ``None`` selects all.

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
        """Return the SQL conditions."""
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


class OutboxQueries:
    """The queue of one database, for operators.

    Args:
        database: where it is.
    """

    def __init__(self, database: Database) -> None:
        self._database = database

    async def page(
        self,
        organization_id: str,
        *,
        status: str | None,
        wanted: Filter,
        before: str | None,
        limit: int,
    ) -> Sequence[Row[Any]]:
        """Return an organization's rows, newest first, without their bodies.

        Args:
            organization_id: the tenant.
            status: only rows in this state.
            wanted: only these.
            before: only rows older than the one with this id.
            limit: how many at the most.
        """
        conditions: list[ColumnElement[bool] | TextClause] = [
            outbox.c.organization_id == organization_id,
            *wanted.conditions(),
        ]
        if status is not None:
            conditions += _in_state(status)
        if before is not None:
            conditions.append(outbox.c.id < before)
        columns = [
            column
            for column in outbox.c
            if column.name not in {"body", "headers", "origin", "delivered_response"}
        ]
        query = select(*_raw(columns)).where(*conditions).order_by(outbox.c.id.desc()).limit(inline(limit))
        async with self._database.read() as connection:
            return await connection.run_sync(read_all, query)

    async def detail(self, row_id: str, organization_id: str) -> tuple[Row[Any], Sequence[Any]] | None:
        """Return a row of this organization with its attempts; ``None`` when there is none.

        The attempt that has delivered it is kept in the row, and is the last of those that are returned.

        Values are as they are stored, which on SQLite may be of any type; `views` makes them presentable.
        """
        one = select(*_raw(outbox.c)).where(outbox.c.id == row_id, outbox.c.organization_id == organization_id)
        made = select(*_raw(attempts.c)).where(attempts.c.delivery_id == row_id).order_by(attempts.c.number)
        async with self._database.read() as connection:
            rows = await connection.run_sync(read_all, one)
            if not rows:
                return None
            tried: list[Any] = [*await connection.run_sync(read_all, made)]
        last = _delivering(rows[0])
        if last is not None and all(each.number != last.number for each in tried):
            tried.append(last)
        return rows[0], tried

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
            reset_attempts: whether each row has all of its attempts again; if not, each gets one.
            limit: how many at the most.

        Returns:
            How many there were.
        """
        now = self._database.now()
        dead = (
            select(outbox.c.id)
            .where(
                outbox.c.organization_id == organization_id,
                *_in_state("dead"),
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
            # A count out of bounds would overflow, and end the replay of the other rows.
            total = case((counts, outbox.c.earlier_attempts + outbox.c.attempts), else_=0)
            requeued = requeued.values(attempts=0, earlier_attempts=total)
        async with self._database.write() as connection:
            # Counted, since SQLite's driver gives no row count for a statement that begins with WITH.
            return len((await connection.execute(requeued.returning(outbox.c.id))).all())

    async def cancel(self, row_id: str, organization_id: str, reason: str) -> bool:
        """End a row of this organization that waits for an attempt.

        Returns:
            Whether there was one; a row that a worker has claimed does not wait.
        """
        now = self._database.now()
        cancelled = (
            update(outbox)
            .where(
                LIVE,
                outbox.c.id == row_id,
                outbox.c.organization_id == organization_id,
                outbox.c.claimed_by.is_(None),
            )
            .values(
                **CLEARED,
                status="dead",
                last_error=storable(reason),
                error_class="cancelled",
                updated_at=now,
                finished_at=now,
            )
            .returning(outbox.c.destination)
        )
        async with self._database.write() as connection:
            ended = await connection.run_sync(read_all, cancelled)
        for row in ended:
            log_dead(row_id, row.destination, reason)
        return bool(ended)

    async def prune(self, status: str, older_than_ms: int, limit: int) -> int:
        """Remove finished rows with their attempts, oldest first.

        Args:
            status: ``delivered`` or ``dead``.
            older_than_ms: only rows that finished longer ago than this.
            limit: about how many at the most, which keeps the transaction short; those that finished in one
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
        # Searched without a lock: mostly there is nothing, and SQLite has one writer only.
        async with self._database.read() as connection:
            found = (await connection.execute(times)).scalars().all()
        if not found:
            return 0
        # A row that was retried meanwhile stays.
        kept = (outbox.c.delivered_started_at, outbox.c.attempts, outbox.c.earlier_attempts)
        ended = (*old, outbox.c.finished_at <= found[-1])
        gone = delete(outbox).where(*ended).returning(outbox.c.id, *_raw(kept))
        async with self._database.write() as connection:
            removed = await connection.run_sync(read_all, gone)
            logged = [row.id for row in removed if _is_logged(row) and is_text(row.id)]
            if logged:
                await connection.execute(delete(attempts).where(attempts.c.delivery_id.in_(logged)))
        return len(removed)


class _Delivering(NamedTuple):
    """The attempt that has delivered a row, as a row of the attempts log."""

    number: Any
    started_at: Any
    duration_ms: Any
    status_code: Any
    error: Any
    response: Any


def _delivering(row: Row[Any]) -> _Delivering | None:
    """Return the attempt that is kept in a row; ``None`` when there is none."""
    if row.delivered_started_at is None:
        return None
    counts = (row.attempts, row.earlier_attempts)
    number = sum(counts) if all(type(each) is int for each in counts) else None
    return _Delivering(
        number,
        row.delivered_started_at,
        row.delivered_duration_ms,
        row.last_status_code,
        row.last_error,
        row.delivered_response,
    )


def _is_logged(row: Row[Any]) -> bool:
    """Return whether the attempts log may hold attempts of a row: not of one that its first attempt has delivered."""
    return row.delivered_started_at is None or (row.attempts, row.earlier_attempts) != (1, 0)


def _in_state(status: str) -> list[ColumnElement[bool] | TextClause]:
    """Return the condition on a state, so that SQLite, too, finds those that are few by their index."""
    state: ColumnElement[bool] = outbox.c.status == inline(status)
    return [state] if status == "delivered" else [state, UNDELIVERED]


def _raw(columns: Iterable[ColumnElement[Any]]) -> list[ColumnElement[Any]]:
    """Return columns as the driver returns them: on SQLite there may be any type in any column."""
    return [type_coerce(column, NullType()).label(column.name) for column in columns]
