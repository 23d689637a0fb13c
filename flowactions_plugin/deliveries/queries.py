"""What operators do with the queue: list, look at, retry, cancel; and retention.

An organization reaches its own rows only.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import msgspec
from sqlalchemy import ColumnElement, Row, TextClause, delete, exists, false, select

from flowactions_plugin.deliveries.changes import change_one, raw, requeueing
from flowactions_plugin.deliveries.fields import FIELDS, RANGES
from flowactions_plugin.deliveries.filters import Filter
from flowactions_plugin.operators.audit import SOMEBODY, Entry, Who, recording
from flowactions_plugin.storage.conflicts import repeated
from flowactions_plugin.storage.database import Database
from flowactions_plugin.storage.dialect import inline
from flowactions_plugin.storage.schema import (
    EVERY_ORGANIZATION,
    FAILED,
    KEYED,
    OPEN_ACTION,
    UNDELIVERED,
    actions,
    attempts,
    outbox,
)
from flowactions_plugin.storage.text import is_text, read_all

MOST_ATTEMPTS: Final = 200
"""Of a delivery, so many attempts are shown at the most, the last ones; replays make any number."""


def conditions(wanted: Filter) -> list[ColumnElement[bool] | TextClause]:
    """Return the SQL conditions of a filter, with those of the indexes that serve them (decision 33)."""
    found: list[ColumnElement[bool] | TextClause] = []
    if wanted.ids is not None:
        found.append(outbox.c.id.in_(wanted.ids))
    if wanted.status is not None:
        found += _in_state(wanted.status)
    for name in _EQUAL:
        value = getattr(wanted, name)
        if value is not None:
            found.append(outbox.c[name] == value)
    if wanted.error_class is not None:
        found.append(FAILED)
    if wanted.idempotency_key is not None:
        found.append(KEYED)
    for name, _ in RANGES:
        start, end = getattr(wanted, f"{name}_from"), getattr(wanted, f"{name}_before")
        if start is not None:
            found.append(outbox.c[f"{name}_at"] >= start)
        if end is not None:
            found.append(outbox.c[f"{name}_at"] < end)
    return found


_EQUAL: Final = tuple(field.attribute for field in FIELDS if field.is_column)


class OutboxQueries:
    """The queue of one database, for operators.

    Args:
        database: where it is.
    """

    def __init__(self, database: Database) -> None:
        self._database = database
        self._passed: dict[str, int] = {}

    async def detail(self, row_id: str, organization_id: str | None) -> tuple[Row[Any], Sequence[Any]] | None:
        """Return a row of this organization, or of any, with its last `MOST_ATTEMPTS`; ``None`` when there is none.

        The attempt that has delivered it is kept in the row, and is the last of those that are returned.

        Values are as they are stored, which on SQLite may be of any type; `views` makes them presentable.
        """
        one = select(*raw(outbox.c)).where(outbox.c.id == row_id)
        if organization_id is not None:
            one = one.where(outbox.c.organization_id == organization_id)
        made = select(*raw(attempts.c)).where(attempts.c.delivery_id == row_id)
        made = made.order_by(attempts.c.number.desc()).limit(inline(MOST_ATTEMPTS))
        async with self._database.read() as connection:
            rows = await connection.run_sync(read_all, one)
            if not rows:
                return None
            tried: list[Any] = [*await connection.run_sync(read_all, made)][::-1]
        last = _delivering(rows[0])
        if last is not None and all(each.number != last.number for each in tried):
            tried.append(last)
        return rows[0], tried

    async def retry(self, row_id: str, organization_id: str, by: Who = SOMEBODY) -> bool:
        """Make a dead row of this organization due now (§4.3), and write it to the audit.

        Returns:
            Whether there was one.
        """
        return await change_one(self._database, "retry", row_id, organization_id, by, "")

    @repeated
    async def retry_many(
        self, organization_id: str, wanted: Filter, *, reset_attempts: bool, limit: int, by: Who = SOMEBODY
    ) -> int:
        """Make dead rows of this organization due now, oldest first, and write it to the audit.

        Args:
            organization_id: the tenant.
            wanted: which of its dead rows.
            reset_attempts: whether each row has all of its attempts again; if not, each gets one.
            limit: how many at the most.
            by: who does it.

        Returns:
            How many there were.
        """
        dead = (
            select(outbox.c.id)
            .where(
                outbox.c.organization_id == organization_id,
                *_in_state("dead"),
                *conditions(wanted),
            )
            .order_by(outbox.c.id)
            .limit(inline(limit))
            .with_for_update(skip_locked=True)
            .cte("dead")
        )
        requeued = requeueing(self._database, outbox.c.id.in_(select(dead.c.id)), reset_attempts=reset_attempts)
        async with self._database.write() as connection:
            # Counted, since SQLite's driver gives no row count for a statement that begins with WITH.
            number = len((await connection.execute(requeued.returning(outbox.c.id))).all())
            if number:
                entry = Entry(
                    who=by,
                    action="retry",
                    organization_id=organization_id,
                    filter=msgspec.json.encode(wanted).decode(),
                    number=number,
                )
                await connection.execute(recording(self._database, entry))
        return number

    async def cancel(self, row_id: str, organization_id: str, reason: str, by: Who = SOMEBODY) -> bool:
        """End a row of this organization that waits for an attempt, and write it to the audit.

        Returns:
            Whether there was one; a row that a worker has claimed does not wait.
        """
        return await change_one(self._database, "cancel", row_id, organization_id, by, reason)

    @repeated
    async def prune(self, status: str, older_than_ms: int, limit: int) -> int:
        """Remove finished rows with their attempts, oldest first, but for those that an unfinished bulk action may be for.

        Args:
            status: ``delivered`` or ``dead``.
            older_than_ms: only rows that finished longer ago than this.
            limit: about how many at the most, which keeps the transaction short; those that finished in one
                millisecond go together.

        Returns:
            How many there were.
        """
        ended: ColumnElement[int] = outbox.c.finished_at
        old = (
            outbox.c.status == inline(status),
            ended.is_not(None),
            ended < self._database.now() - older_than_ms,
        )
        is_awaited = _is_awaited() if status == "dead" else false()
        found: list[int] = []
        # A run that has passed rows over does not read them again for each of its transactions.
        position = self._passed.pop(status, -1)
        more = True
        while more and len(found) < limit:
            page = select(ended, is_awaited.label("awaited")).where(*old, ended > position)
            # Searched without a lock: mostly there is nothing, and SQLite has one writer only.
            async with self._database.read() as connection:
                rows = (await connection.execute(page.order_by(ended).limit(inline(limit)))).all()
            found += [row.finished_at for row in rows if not row.awaited]
            more = len(rows) == limit
            position = rows[-1].finished_at if rows else position
        if not found:
            return 0
        # A row that was retried meanwhile stays.
        kept = (outbox.c.delivered_started_at, outbox.c.attempts, outbox.c.earlier_attempts)
        those = (*old, ended.between(found[0], found[-1]), ~is_awaited)
        gone = delete(outbox).where(*those).returning(outbox.c.id, *raw(kept))
        async with self._database.write() as connection:
            # An action that begins meanwhile is waited for, and one that begins later sees what is removed here.
            if status == "dead":
                await self._database.lock_table(connection, actions, "SHARE")
            removed = await connection.run_sync(read_all, gone)
            logged = [row.id for row in removed if _is_logged(row) and is_text(row.id)]
            if logged:
                await connection.execute(delete(attempts).where(attempts.c.delivery_id.in_(logged)))
        if more:
            self._passed[status] = found[-1]
        return len(removed)


def _is_awaited() -> ColumnElement[bool]:
    """Return the condition that a dead row may belong to the set of a bulk action that is not finished."""
    return exists().where(
        OPEN_ACTION,
        actions.c.organization_id.in_([inline(EVERY_ORGANIZATION), outbox.c.organization_id]),
        actions.c.as_of >= outbox.c.finished_at,
    )


class _Delivering(NamedTuple):
    """The attempt that has delivered a row, as a row of the attempts log."""

    number: Any
    started_at: Any
    duration_ms: Any
    status_code: Any
    error: Any
    response: Any
    phases: Any = None


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
        row.delivered_phases,
    )


def _is_logged(row: Row[Any]) -> bool:
    """Return whether the attempts log may hold attempts of a row: not of one that its first attempt has delivered."""
    return row.delivered_started_at is None or (row.attempts, row.earlier_attempts) != (1, 0)


def _in_state(status: str) -> list[ColumnElement[bool] | TextClause]:
    """Return the condition on a state, so that SQLite, too, finds those that are few by their index."""
    state: ColumnElement[bool] = outbox.c.status == inline(status)
    return [state] if status == "delivered" else [state, UNDELIVERED]
