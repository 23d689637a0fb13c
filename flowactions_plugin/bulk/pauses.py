"""Pauses: rows of a paused destination wait, use no attempt, and delay nobody (decision 39)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, TypeAlias

from sqlalchemy import ColumnElement, Select, Update, and_, delete, false, null, or_, select, tuple_, update
from sqlalchemy.ext.asyncio import AsyncConnection

from flowactions_plugin.deliveries.results import Pause
from flowactions_plugin.deliveries.views import pause_of
from flowactions_plugin.egress.destination import parse_destination
from flowactions_plugin.errors import ActionForbidden, ActionInvalid, EgressRefused, PauseChanged, TooManyPauses
from flowactions_plugin.log_text import storable
from flowactions_plugin.operators.audit import Entry, recording
from flowactions_plugin.operators.scope import AUTOMATIC, OPEN, Actor, Scope
from flowactions_plugin.queue.rules import PROBE_FIRST_MS
from flowactions_plugin.storage.database import Database
from flowactions_plugin.storage.schema import EVERY_ORGANIZATION, destinations, pauses
from flowactions_plugin.storage.waiting import repeated

MOST_PAUSES: Final = 500
"""How many destinations may be paused for one organization, and how many for all."""

Target: TypeAlias = tuple[str, str]
"""An organization, or all of them, and a destination."""

_TARGET: Final = (pauses.c.organization_id, pauses.c.destination)


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
        is_free: ColumnElement[bool] = false()
        if actor != AUTOMATIC:
            is_free = or_(is_free, pauses.c.paused_role == AUTOMATIC.role)
        if actor.role not in OPEN:
            seen = [] if over is None else [pauses.c.paused_at == over]
            is_free = or_(is_free, and_(pauses.c.paused_role == "dashboard", *seen))
        again = update(pauses).where(*_at(*target), is_free).values(**values)
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

    @repeated
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
        here = _at(*target)
        found = select(pauses).where(*here).with_for_update()
        async with self._database.write() as connection:
            row = (await connection.execute(found)).one_or_none()
            if actor.role == "dashboard":
                held = row
                if held is None:
                    everywhere = _at(EVERY_ORGANIZATION, target[1])
                    held = (await connection.execute(select(pauses).where(*everywhere))).one_or_none()
                if held is not None and held.paused_role not in OPEN:
                    raise ActionForbidden(
                        "An operator has paused this destination: only operators can resume it."
                    )
            if row is None:
                return False
            if seen is not None and row.paused_at != seen:
                raise PauseChanged("This destination was resumed and paused again since you looked.")
            await connection.execute(delete(pauses).where(*here))
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
            found = await connection.execute(query.where(*_at(*target)))
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


def _paused_behind(query: Select[Any], after: Target | None) -> Select[Any]:
    query = query.order_by(*_TARGET)
    return query if after is None else query.where(tuple_(*_TARGET) > after)


def _forgetting_failures(organization_id: str, destination: str) -> Update:
    forgetting = update(destinations).where(destinations.c.destination == destination)
    if organization_id != EVERY_ORGANIZATION:
        forgetting = forgetting.where(destinations.c.organization_id == organization_id)
    return forgetting.values(failures_in_row=0)


def _at(organization_id: str, destination: str) -> tuple[ColumnElement[bool], ...]:
    return pauses.c.organization_id == organization_id, pauses.c.destination == destination


def _destination(text: str) -> str:
    try:
        return parse_destination(text).key
    except EgressRefused as exc:
        raise ActionInvalid(f"This is no destination: {exc}") from None
