"""Pauses: rows of a paused destination wait, use no attempt, and delay nobody (decision 39)."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any, Final, TypeAlias

from sqlalchemy import ColumnElement, Row, Select, Text, Update, and_, delete, null, or_, select, tuple_, update
from sqlalchemy.engine import Connection
from sqlalchemy.ext.asyncio import AsyncConnection

from flowactions_plugin.bulk.engine import IDLE_POLL_SECONDS, POLL_SECONDS
from flowactions_plugin.deliveries.results import Pause
from flowactions_plugin.deliveries.views import pause_of
from flowactions_plugin.egress.destination import parse_destination
from flowactions_plugin.errors import ActionForbidden, ActionInvalid, EgressRefused, PauseChanged, TooManyPauses
from flowactions_plugin.log_text import storable
from flowactions_plugin.operators.audit import Entry, recording
from flowactions_plugin.operators.scope import AUTOMATIC, OPEN, Actor, Scope
from flowactions_plugin.queue.due import free
from flowactions_plugin.queue.rules import PAUSED_OFFSET_MS, PROBE_FIRST_MS, UNDO_OFFSET_MS
from flowactions_plugin.storage.conflicts import repeated
from flowactions_plugin.storage.database import Database
from flowactions_plugin.storage.dialect import Dialect, inline
from flowactions_plugin.storage.outages import keep_on
from flowactions_plugin.storage.schema import EVERY_ORGANIZATION, LIVE, destinations, outbox, pauses

MOST_PAUSES: Final = 500
"""How many destinations may be paused for one organization, and how many for all."""

BATCH: Final = 1000
"""How many rows a transaction parks, or makes due, at the most."""

TARGETS: Final = 500
"""How many paused destinations are read at once."""

RESUME_SECONDS: Final = 2.0
"""For how long `Pauses.resume` itself makes rows due; then workers do the rest."""

Target: TypeAlias = tuple[str, str]
"""An organization, or all of them, and a destination."""

_TARGET: Final = (pauses.c.organization_id, pauses.c.destination)
_DUE: Final = outbox.c.next_attempt_at
_PARKED: Final = or_(
    and_(inline(PAUSED_OFFSET_MS) <= _DUE, inline(UNDO_OFFSET_MS) > _DUE),
    inline(UNDO_OFFSET_MS + PAUSED_OFFSET_MS) <= _DUE,
)


class Pauses:
    """The paused destinations of one database.

    Args:
        database: where they are.
    """

    def __init__(self, database: Database) -> None:
        self._database = database

    @repeated
    async def pause(
        self, scope: Scope, destination: str, actor: Actor, reason: str = "", *, over: int | None = None
    ) -> bool:
        """Pause a destination, with a line of the audit; requests that are on their way are finished.

        Args:
            scope: for whom; that of all organizations pauses it for each of them.
            destination: scheme, host and port as rows have it, or a URL.
            actor: who does it.
            reason: why.
            over: when the pause of the dashboard began that an operator has seen and takes over; 0: they have seen none;
                ``None``: they take over whichever is there.

        Returns:
            Whether that changed anything. What a person of the dashboard has paused, an operator takes over, and nobody the
            other way round. What was paused automatically, each person takes over.

        Raises:
            ActionInvalid: the destination is none.
            TooManyPauses: `MOST_PAUSES` are there.
            StorageUnavailable: the database failed.
        """
        destination = _destination(destination)
        target = (scope.organization_id or EVERY_ORGANIZATION, destination)
        values = {
            "paused_at": self._database.now(),
            "paused_by": storable(actor.name) or "",
            "paused_role": actor.role,
            "reason": storable(reason) or "",
            "probe_at": self._database.now() + PROBE_FIRST_MS if actor == AUTOMATIC else null(),
            "probes": 0 if actor == AUTOMATIC else null(),
        }
        added = self._database.sql.insert_unless_there(pauses).values(
            organization_id=target[0], destination=target[1], **values
        )
        # Of a resumed one, rows are being made due: they are parked again.
        is_free: ColumnElement[bool] = pauses.c.resumed_at.is_not(None)
        if actor != AUTOMATIC:
            is_free = or_(is_free, pauses.c.paused_role == AUTOMATIC.role)
        if actor.role not in OPEN:
            seen = [] if over is None else [pauses.c.paused_at == over]
            is_free = or_(is_free, and_(pauses.c.paused_role == "dashboard", *seen))
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
        """Check that an organization may pause one more destination, or has paused this one."""
        mine = select(pauses.c.destination).where(pauses.c.organization_id == organization_id)
        await connection.execute(mine.order_by(pauses.c.destination).limit(1).with_for_update())
        found = (await connection.execute(mine.limit(MOST_PAUSES))).scalars().all()
        if len(found) >= MOST_PAUSES and destination not in found:
            raise TooManyPauses(
                f"{MOST_PAUSES} destinations are paused, which is the most: resume one that need not be paused."
            )

    async def resume(
        self, scope: Scope, destination: str, actor: Actor, reason: str = "", *, seen: int | None = None
    ) -> bool:
        """Resume a destination, with a line of the audit: its rows are due at once, in their order.

        Args:
            scope: for whom; what is paused for all organizations, only the scope of all can resume.
            destination: as for `pause`.
            actor: who does it.
            reason: why.
            seen: when the pause began that the actor has seen; ``None``: whichever is there.

        Returns:
            Whether it was paused.

        Raises:
            ActionForbidden: an operator has paused it, and the actor is a person of the dashboard.
            ActionInvalid: the destination is none.
            PauseChanged: that pause has ended, and another one has begun.
            StorageUnavailable: the database failed.
        """
        target = (scope.organization_id or EVERY_ORGANIZATION, _destination(destination))
        if not await self._end(scope, target, actor, reason, seen):
            return False
        end = time.monotonic() + RESUME_SECONDS
        while await self.make_due(*target) and time.monotonic() < end:
            pass
        return True

    @repeated
    async def _end(
        self, scope: Scope, target: Target, actor: Actor, reason: str, seen: int | None = None
    ) -> bool:
        """Write that a pause has ended; return whether there was one."""
        here = _at(*target)
        found = select(pauses).where(*here, pauses.c.resumed_at.is_(None)).with_for_update()
        async with self._database.write() as connection:
            row = (await connection.execute(found)).one_or_none()
            if actor.role == "dashboard":
                held = row
                if held is None:
                    everywhere = (*_at(EVERY_ORGANIZATION, target[1]), pauses.c.resumed_at.is_(None))
                    held = (await connection.execute(select(pauses).where(*everywhere))).one_or_none()
                if held is not None and held.paused_role not in OPEN:
                    raise ActionForbidden(
                        "An operator has paused this destination: only operators can resume it."
                    )
            if row is None:
                return False
            if seen is not None and row.paused_at != seen:
                raise PauseChanged("This destination was resumed and paused again since you looked.")
            # A process of 0004 that pauses it again writes no role.
            ended = {"resumed_at": self._database.now(), "paused_role": None, "probe_at": None}
            await connection.execute(update(pauses).where(*here).values(ended))
            if actor != AUTOMATIC:
                # What has failed so far does not pause it again.
                await connection.execute(_forgetting_failures(*target))
            entry = Entry(
                who=actor,
                action="resume",
                organization_id=scope.organization_id,
                destination=target[1],
                reason=reason,
                before={"pausedAt": row.paused_at, "pausedBy": row.paused_by, "reason": row.reason},
            )
            await connection.execute(recording(self._database, entry))
        return True

    async def get(self, scope: Scope, destination: str) -> Pause | None:
        """Return the pause that `pause` of this scope would meet; ``None``: there is none.

        Raises:
            ActionInvalid: the destination is none.
            StorageUnavailable: the database failed.
        """
        target = (scope.organization_id or EVERY_ORGANIZATION, _destination(destination))
        query = select(*(pauses.c[name] for name in Pause.__struct_fields__))
        async with self._database.read() as connection:
            found = await connection.execute(query.where(*_at(*target), pauses.c.resumed_at.is_(None)))
            row = found.one_or_none()
        return None if row is None else pause_of(row, scope)

    async def list(self, scope: Scope, *, after: Target | None = None, limit: int = 50) -> Sequence[Pause]:
        """Return what is paused: of an organization with what is paused for all, or everything.

        Args:
            scope: whose.
            after: organization and destination of the last of the page before.
            limit: how many at the most.
        """
        shown = select(*(pauses.c[name] for name in Pause.__struct_fields__))
        query = _paused_behind(shown, after).limit(limit)
        if scope.organization_id is not None:
            query = query.where(pauses.c.organization_id.in_([EVERY_ORGANIZATION, scope.organization_id]))
        async with self._database.read() as connection:
            return [pause_of(row, scope) for row in await connection.execute(query)]

    async def any(self) -> bool:
        """Return whether anything is paused, or was resumed and may still have parked rows."""
        return bool(await self._database.rows(self._database.built(_any)))

    async def resumed(self) -> Sequence[Target]:
        """Return what was resumed and may still have parked rows, the longest ago first, `TARGETS` at the most."""
        return await self._targets(self._database.built(_resumed))

    async def paused_targets(self, after: Target | None) -> Sequence[Target]:
        """Return the next `TARGETS` that are paused, behind one of them."""
        if after is None:
            return await self._targets(self._database.built(_paused))
        return await self._targets(_paused_behind(select(*_TARGET), after).limit(inline(TARGETS)))

    async def _targets(self, query: Select[Any]) -> Sequence[Target]:
        found = await self._database.rows(query)
        return [(row.organization_id, row.destination) for row in found]

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
            select(outbox.c.id)
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
                connection.execute(waiting, {"targets": self._database.sql.json_rows(found)}).all(),
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
        parked = select(outbox.c.id).where(
            LIVE, outbox.c.destination == destination, _PARKED, outbox.c.organization_id.not_in(others)
        )
        if organization_id != EVERY_ORGANIZATION:
            parked = parked.where(outbox.c.organization_id == organization_id)
        parked = parked.order_by(_DUE, outbox.c.id).limit(inline(BATCH)).with_for_update()

        def work(connection: Connection) -> bool:
            if connection.execute(mine).first() is None:
                return False
            by_all = EVERY_ORGANIZATION in connection.execute(others).scalars().all()
            if not by_all and self._move(connection, connection.execute(parked).all(), -PAUSED_OFFSET_MS):
                return True
            connection.execute(delete(pauses).where(*here))
            return False

        async with self._database.write() as connection:
            return await connection.run_sync(work)

    def _move(self, connection: Connection, rows: Sequence[Row[Any]], milliseconds: int) -> bool:
        """Move the due time of rows; return whether there may be more of them."""
        ids = [{"id": row.id} for row in rows]
        if ids:
            given = self._database.sql.values_table("given", id=Text)
            moved = (
                update(outbox)
                .where(outbox.c.id.in_(select(given.c.id)))
                .values(next_attempt_at=_DUE + inline(milliseconds))
            )
            connection.execute(moved, {"given": self._database.sql.json_rows(ids)})
        return len(rows) == BATCH


def _any(_sql: Dialect) -> Select[Any]:
    return select(pauses.c.destination).limit(inline(1))


def _resumed(_sql: Dialect) -> Select[Any]:
    query = select(*_TARGET).where(pauses.c.resumed_at.is_not(None))
    return query.order_by(pauses.c.resumed_at).limit(inline(TARGETS))


def _paused(_sql: Dialect) -> Select[Any]:
    return _paused_behind(select(*_TARGET), None).limit(inline(TARGETS))


def _paused_behind(query: Select[Any], after: Target | None) -> Select[Any]:
    query = query.where(pauses.c.resumed_at.is_(None)).order_by(*_TARGET)
    return query if after is None else query.where(tuple_(*_TARGET) > after)


def _forgetting_failures(organization_id: str, destination: str) -> Update:
    forgetting = update(destinations).where(destinations.c.destination == destination)
    if organization_id != EVERY_ORGANIZATION:
        forgetting = forgetting.where(destinations.c.organization_id == organization_id)
    return forgetting.values(failures_in_row=0)


def _at(organization_id: str, destination: str) -> tuple[ColumnElement[bool], ...]:
    return pauses.c.organization_id == organization_id, pauses.c.destination == destination


async def parking_loop(database: Database) -> None:
    """Park the rows of paused destinations, and make due those of resumed ones, until cancelled; the task of a worker.

    Claims leave paused rows out. A backlog of them is parked besides, so that no claim has to pass over it.

    Args:
        database: where they are.
    """
    store = Pauses(database)
    last: tuple[str, str] | None = None

    async def park() -> float:
        nonlocal last
        if not await store.any():
            return IDLE_POLL_SECONDS
        paused = await store.paused_targets(last)
        more = await _share(partial(store.park, paused)) if paused else False
        # The others are next: rows that are not parked yet are not claimed either.
        last = paused[-1] if len(paused) == TARGETS else None
        for target in await store.resumed():
            more |= await _share(partial(store.make_due, *target))
        return 0.0 if more else POLL_SECONDS

    await keep_on(park, "pauses", database.outage_log)


async def _share(batch: Callable[[], Awaitable[bool]]) -> bool:
    """Do a batch, and pause for as long as it took: deliveries continue meanwhile."""
    begun = time.monotonic()
    more = await batch()
    if more:
        await asyncio.sleep(time.monotonic() - begun)
    return more


def _destination(text: str) -> str:
    try:
        return parse_destination(text).key
    except EgressRefused as exc:
        raise ActionInvalid(f"This is no destination: {exc}") from None
