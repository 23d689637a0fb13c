"""The SQL of pauses: which destinations are paused, and their rows, which are parked meanwhile."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, TypeAlias

from sqlalchemy import (
    ColumnElement,
    Row,
    Select,
    Text,
    and_,
    delete,
    null,
    or_,
    select,
    tuple_,
    update,
)
from sqlalchemy.engine import Connection
from sqlalchemy.ext.asyncio import AsyncConnection

from flowactions_plugin.deliveries.changes import raw
from flowactions_plugin.deliveries.results import Pause
from flowactions_plugin.errors import ActionForbidden, TooManyPauses
from flowactions_plugin.log_text import storable
from flowactions_plugin.operators.audit import Entry, recording
from flowactions_plugin.operators.scope import Actor, Scope
from flowactions_plugin.queue.due import free
from flowactions_plugin.queue.rules import PAUSED_OFFSET_MS, UNDO_OFFSET_MS
from flowactions_plugin.storage.conflicts import repeated
from flowactions_plugin.storage.database import Database
from flowactions_plugin.storage.dialect import inline
from flowactions_plugin.storage.schema import EVERY_ORGANIZATION, LIVE, outbox, pauses
from flowactions_plugin.storage.text import is_text, read_all

MOST_PAUSES: Final = 500
"""How many destinations may be paused for one organization, and how many for all."""

BATCH: Final = 1000
"""How many rows a transaction parks, or makes due, at the most."""

TARGETS: Final = 500
"""How many paused destinations are read at once."""

Target: TypeAlias = tuple[str, str]
"""An organization, or all of them, and a destination."""

_TARGET: Final = (pauses.c.organization_id, pauses.c.destination)
_DUE: Final = outbox.c.next_attempt_at
_PARKED: Final = or_(
    and_(inline(PAUSED_OFFSET_MS) <= _DUE, inline(UNDO_OFFSET_MS) > _DUE),
    inline(UNDO_OFFSET_MS + PAUSED_OFFSET_MS) <= _DUE,
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
        """Pause a destination, with a line of the audit; return whether that changed anything.

        What a person of the dashboard has paused, an operator takes over, and nobody the other way round.

        Raises:
            TooManyPauses: `MOST_PAUSES` are there.
        """
        target = (scope.organization_id or EVERY_ORGANIZATION, destination)
        values = {
            "paused_at": self._database.now(),
            "paused_by": storable(actor.name) or "",
            "paused_role": actor.role,
            "reason": storable(reason) or "",
        }
        added = self._database.sql.insert_unless_there(pauses).values(
            organization_id=target[0], destination=target[1], **values
        )
        # Of a resumed one, rows are being made due: they are parked again.
        is_free: ColumnElement[bool] = pauses.c.resumed_at.is_not(None)
        if actor.role != "dashboard":
            is_free = or_(is_free, pauses.c.paused_role == "dashboard")
        again = update(pauses).where(*_at(*target), is_free).values(**values, resumed_at=null())
        entry = Entry(
            who=actor,
            action="pause",
            organization_id=scope.organization_id,
            destination=destination,
            reason=reason,
        )
        async with self._database.write() as connection:
            changed = (await connection.execute(again)).rowcount == 1
            if not changed:
                await self._check_room(connection, *target)
                changed = (await connection.execute(added)).rowcount == 1
            if changed:
                await connection.execute(recording(self._database, entry))
        return changed

    async def _check_room(self, connection: AsyncConnection, organization_id: str, destination: str) -> None:
        """Check that an organization may pause one more destination, or has paused this one.

        Its first pause is locked, so that of those who pause at once none passes the limit.
        """
        mine = select(pauses.c.destination).where(pauses.c.organization_id == organization_id)
        await connection.execute(mine.order_by(pauses.c.destination).limit(1).with_for_update())
        found = (await connection.execute(mine.limit(MOST_PAUSES))).scalars().all()
        if len(found) >= MOST_PAUSES and destination not in found:
            raise TooManyPauses(
                f"{MOST_PAUSES} destinations are paused, which is the most: resume one that need not be paused."
            )

    @repeated
    async def resume(self, scope: Scope, destination: str, actor: Actor, reason: str) -> bool:
        """End a pause, with a line of the audit; return whether it was paused.

        Raises:
            ActionForbidden: an operator has paused it, and the actor is a person of the dashboard.
        """
        target = (scope.organization_id or EVERY_ORGANIZATION, destination)
        here = _at(*target)
        found = select(pauses).where(*here, pauses.c.resumed_at.is_(None)).with_for_update()
        async with self._database.write() as connection:
            row = (await connection.execute(found)).one_or_none()
            if actor.role == "dashboard":
                held = row
                if held is None:
                    everywhere = (*_at(EVERY_ORGANIZATION, destination), pauses.c.resumed_at.is_(None))
                    held = (await connection.execute(select(pauses).where(*everywhere))).one_or_none()
                if held is not None and held.paused_role != "dashboard":
                    raise ActionForbidden(
                        "An operator has paused this destination: only operators can resume it."
                    )
            if row is None:
                return False
            # A process of 0004 that pauses it again writes no role.
            ended = {"resumed_at": self._database.now(), "paused_role": None}
            await connection.execute(update(pauses).where(*here).values(ended))
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

    async def paused(self, scope: Scope, after: Target | None, limit: int) -> Sequence[Row[Any]]:
        """Return what is paused for a scope, that for all organizations first, behind a place in this order."""
        shown = select(*(pauses.c[name] for name in Pause.__struct_fields__))
        query = _paused_behind(shown, after).limit(limit)
        if scope.organization_id is not None:
            query = query.where(pauses.c.organization_id.in_([EVERY_ORGANIZATION, scope.organization_id]))
        async with self._database.read() as connection:
            found: Sequence[Row[Any]] = (await connection.execute(query)).all()
        return found

    async def resumed(self) -> Sequence[Target]:
        """Return what was resumed and may still have parked rows, the longest ago first, `TARGETS` at the most."""
        query = (
            select(*_TARGET)
            .where(pauses.c.resumed_at.is_not(None))
            .order_by(pauses.c.resumed_at)
            .limit(inline(TARGETS))
        )
        async with self._database.read() as connection:
            return [(row.organization_id, row.destination) for row in await connection.execute(query)]

    async def paused_targets(self, after: Target | None) -> Sequence[Target]:
        """Return the next `TARGETS` that are paused, behind one of them."""
        query = _paused_behind(select(*_TARGET), after).limit(inline(TARGETS))
        async with self._database.read() as connection:
            return [(row.organization_id, row.destination) for row in await connection.execute(query)]

    @repeated
    async def park(self, targets: Sequence[Target]) -> bool:
        """Park rows of paused destinations, the oldest first; return whether there may be more."""
        # While the pauses are locked, none is resumed: no row is parked behind it.
        asked = self._database.sql.values_table("asked", organization_id=Text, destination=Text)
        locked = (
            select(*_TARGET)
            .join_from(
                asked,
                pauses,
                and_(
                    pauses.c.organization_id == asked.c.organization_id,
                    pauses.c.destination == asked.c.destination,
                ),
            )
            .where(pauses.c.resumed_at.is_(None))
            .with_for_update(read=True, of=pauses)
        )
        wanted = self._database.sql.json_rows(
            [
                {"organization_id": organization, "destination": destination}
                for organization, destination in targets
            ]
        )
        given = self._database.sql.values_table("targets", organization_id=Text, destination=Text)
        waiting = (
            select(*raw([outbox.c.id]))
            .join_from(given, outbox, outbox.c.destination == given.c.destination)
            .where(
                LIVE,
                inline(PAUSED_OFFSET_MS) > _DUE,
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
            found = [row._asdict() for row in connection.execute(locked, {"asked": wanted})]
            if not found:
                return False
            return self._move(
                connection,
                read_all(connection, waiting, {"targets": self._database.sql.json_rows(found)}),
                PAUSED_OFFSET_MS,
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
            if not by_all and self._move(connection, read_all(connection, parked), -PAUSED_OFFSET_MS):
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
            given = self._database.sql.values_table("given", id=Text)
            moved = (
                update(outbox)
                .where(outbox.c.id.in_(select(given.c.id)))
                .values(next_attempt_at=_DUE + inline(milliseconds))
            )
            connection.execute(moved, {"given": self._database.sql.json_rows(ids)})
        return len(rows) == BATCH and bool(ids)


def _paused_behind(query: Select[Any], after: Target | None) -> Select[Any]:
    query = query.where(pauses.c.resumed_at.is_(None)).order_by(*_TARGET)
    return query if after is None else query.where(tuple_(*_TARGET) > after)


def _at(organization_id: str, destination: str) -> tuple[ColumnElement[bool], ...]:
    return pauses.c.organization_id == organization_id, pauses.c.destination == destination
