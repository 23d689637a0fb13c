"""The SQL of pauses: which destinations are paused, and their rows, which are parked meanwhile."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from sqlalchemy import (
    ColumnElement,
    Row,
    Text,
    and_,
    delete,
    null,
    or_,
    select,
    update,
)
from sqlalchemy.engine import Connection

from flowactions_plugin.operate.scope import Actor, Scope
from flowactions_plugin.outbox.audit import Entry, recording
from flowactions_plugin.outbox.changes import raw
from flowactions_plugin.outbox.due import free
from flowactions_plugin.outbox.rules import HELD_MS, PARKED_MS, storable
from flowactions_plugin.storage.conflicts import repeated
from flowactions_plugin.storage.database import Database
from flowactions_plugin.storage.dialect import inline
from flowactions_plugin.storage.schema import EVERY_ORGANIZATION, LIVE, outbox, pauses
from flowactions_plugin.storage.text import is_text, read_all

BATCH: Final = 1000
"""How many rows a transaction parks, or makes due, at the most."""

_DUE: Final = outbox.c.next_attempt_at
_PARKED: Final = or_(
    and_(inline(PARKED_MS) <= _DUE, inline(HELD_MS) > _DUE),
    inline(HELD_MS + PARKED_MS) <= _DUE,
)


class PauseStore:
    """The pauses of one database.

    Args:
        database: where they are.
    """

    def __init__(self, database: Database) -> None:
        self._database = database

    @repeated
    async def pause(self, scope: Scope, destination: str, actor: Actor, reason: str) -> bool:
        """Pause a destination, with a line of the audit; return whether it was not paused before."""
        place = (scope.organization_id or EVERY_ORGANIZATION, destination)
        values = {
            "paused_at": self._database.now(),
            "paused_by": storable(actor.name) or "",
            "reason": storable(reason) or "",
        }
        added = self._database.insert_unless_there(pauses).values(
            organization_id=place[0], destination=place[1], **values
        )
        # Its rows are being made due: they are parked again.
        again = (
            update(pauses)
            .where(*_at(*place), pauses.c.resumed_at.is_not(None))
            .values(**values, resumed_at=null())
        )
        entry = Entry(
            who=actor,
            action="pause",
            organization_id=scope.organization_id,
            destination=destination,
            reason=reason,
        )
        async with self._database.write() as connection:
            changed = (await connection.execute(added)).rowcount == 1
            if not changed:
                changed = (await connection.execute(again)).rowcount == 1
            if changed:
                await connection.execute(recording(self._database, entry))
        return changed

    @repeated
    async def resume(self, scope: Scope, destination: str, actor: Actor, reason: str) -> bool:
        """End a pause, with a line of the audit; return whether it was paused."""
        place = (scope.organization_id or EVERY_ORGANIZATION, destination)
        here = _at(*place)
        found = select(pauses).where(*here, pauses.c.resumed_at.is_(None)).with_for_update()
        async with self._database.write() as connection:
            row = (await connection.execute(found)).one_or_none()
            if row is None:
                return False
            await connection.execute(update(pauses).where(*here).values(resumed_at=self._database.now()))
            entry = Entry(
                who=actor,
                action="resume",
                organization_id=scope.organization_id,
                destination=destination,
                reason=reason,
                before={"pausedAt": row.paused_at, "pausedBy": row.paused_by, "reason": row.reason},
            )
            await connection.execute(recording(self._database, entry))
        return True

    async def paused(self, scope: Scope) -> Sequence[Row[Any]]:
        """Return what is paused for a scope, in order."""
        query = select(pauses).where(pauses.c.resumed_at.is_(None))
        if scope.organization_id is not None:
            query = query.where(pauses.c.organization_id.in_([EVERY_ORGANIZATION, scope.organization_id]))
        async with self._database.read() as connection:
            ordered = query.order_by(pauses.c.destination, pauses.c.organization_id)
            return (await connection.execute(ordered)).all()

    async def any(self) -> tuple[bool, Sequence[tuple[str, str]]]:
        """Return whether anything is paused, and what was resumed and may still have parked rows."""
        query = select(pauses.c.organization_id, pauses.c.destination, pauses.c.resumed_at)
        async with self._database.read() as connection:
            rows = (await connection.execute(query)).all()
        resumed = [(row.organization_id, row.destination) for row in rows if row.resumed_at is not None]
        return len(rows) > len(resumed), resumed

    @repeated
    async def park(self) -> bool:
        """Park rows of paused destinations, the oldest first; return whether there may be more."""
        # While the pauses are locked, none is resumed: no row is parked behind it.
        locked = (
            select(pauses.c.organization_id, pauses.c.destination)
            .where(pauses.c.resumed_at.is_(None))
            .with_for_update(read=True)
        )
        given = self._database.values_table("places", organization_id=Text, destination=Text)
        waiting = (
            select(*raw([outbox.c.id]))
            .join_from(given, outbox, outbox.c.destination == given.c.destination)
            .where(
                LIVE,
                inline(PARKED_MS) > _DUE,
                free(self._database.now()),
                or_(
                    given.c.organization_id == inline(EVERY_ORGANIZATION),
                    given.c.organization_id == outbox.c.organization_id,
                ),
            )
            .order_by(_DUE, outbox.c.id)
            .limit(inline(BATCH))
            .with_for_update(of=outbox, skip_locked=True)
        )

        def work(connection: Connection) -> bool:
            places = [row._asdict() for row in connection.execute(locked)]
            if not places:
                return False
            return self._move(
                connection,
                read_all(connection, waiting, {"places": self._database.json_rows(places)}),
                PARKED_MS,
            )

        async with self._database.write() as connection:
            return await connection.run_sync(work)

    @repeated
    async def make_due(self, organization_id: str, destination: str) -> bool:
        """Make parked rows of a destination due that was resumed, the oldest first; return whether there may be more.

        Rows that another pause holds stay parked.
        """
        here = _at(organization_id, destination)
        mine = select(pauses.c.destination).where(*here, pauses.c.resumed_at.is_not(None)).with_for_update()
        others = select(pauses.c.organization_id).where(
            pauses.c.destination == destination, pauses.c.resumed_at.is_(None)
        )
        parked = select(*raw([outbox.c.id])).where(
            LIVE, outbox.c.destination == destination, _PARKED, outbox.c.organization_id.not_in(others)
        )
        if organization_id != EVERY_ORGANIZATION:
            parked = parked.where(outbox.c.organization_id == organization_id)
        parked = parked.order_by(_DUE, outbox.c.id).limit(inline(BATCH)).with_for_update()

        def work(connection: Connection) -> bool:
            if connection.execute(mine).first() is None:
                return False
            by_all = EVERY_ORGANIZATION in connection.execute(others).scalars().all()
            if not by_all and self._move(connection, read_all(connection, parked), -PARKED_MS):
                return True
            connection.execute(delete(pauses).where(*here))
            return False

        async with self._database.write() as connection:
            return await connection.run_sync(work)

    def _move(self, connection: Connection, rows: Sequence[Row[Any]], milliseconds: int) -> bool:
        """Move the due time of rows; return whether there may be more of them."""
        # An id of SQLite that is not text cannot be a parameter; claims leave such a row out all the same.
        ids = [{"id": row.id} for row in rows if is_text(row.id)]
        if ids:
            given = self._database.values_table("given", id=Text)
            moved = (
                update(outbox)
                .where(outbox.c.id.in_(select(given.c.id)))
                .values(next_attempt_at=_DUE + inline(milliseconds))
            )
            connection.execute(moved, {"given": self._database.json_rows(ids)})
        return len(rows) == BATCH and bool(ids)


def _at(organization_id: str, destination: str) -> tuple[ColumnElement[bool], ...]:
    return pauses.c.organization_id == organization_id, pauses.c.destination == destination
