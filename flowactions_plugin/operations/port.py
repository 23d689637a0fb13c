"""What people do: to deliveries, single ones at once and those of a filter as a bulk action, and to destinations.

A bulk action is bound to the set that was shown: a filter and a time. Rows that come to meet the filter later are not in it.
Workers execute it; a cancellation begins in the call.
"""

from __future__ import annotations

import asyncio
import time
from typing import Any, Final

from sqlalchemy import ColumnElement, Row, Select, Update, delete, null, select, update
from sqlalchemy.ext.asyncio import AsyncConnection

from flowactions_plugin.clock import is_id
from flowactions_plugin.egress.destination import destination_of
from flowactions_plugin.errors import ActionForbidden, ActionInvalid, EgressRefused, TooManyPauses
from flowactions_plugin.insights.filters import Filter
from flowactions_plugin.insights.results import Action, Kind
from flowactions_plugin.insights.views import action_of
from flowactions_plugin.log_text import storable
from flowactions_plugin.operations import bulk
from flowactions_plugin.operations.bulk import Preview, Selection
from flowactions_plugin.operations.changes import change_one
from flowactions_plugin.operations.engine import Engine
from flowactions_plugin.operations.resend import send_one_again
from flowactions_plugin.operations.store import ActionRow, ActionStore, Connection
from flowactions_plugin.operators.audit import Entry, recording
from flowactions_plugin.operators.scope import AUTOMATIC, OPEN, Actor, Scope
from flowactions_plugin.queue.keys import KeyUse
from flowactions_plugin.queue.rules import PROBE_FIRST_MS
from flowactions_plugin.storage.database import Database
from flowactions_plugin.storage.schema import EVERY_ORGANIZATION, destinations, pauses
from flowactions_plugin.storage.waiting import repeated

AT_ONCE_SECONDS: Final = 3.0
"""For how long `Operations.change` itself does what is done at once; workers do what is left then."""

OTHER_KEY: Final = "This idempotency key was used for another request."

MOST_PAUSES: Final = 500
"""How many destinations may be paused for one organization, and how many for all."""


class Operations:
    """Changes deliveries and pauses of one database, within the scope of who does it, with a line of the audit for each.

    Each method raises `StorageUnavailable` if the database fails: nothing was changed then; of a bulk action that has begun,
    workers do the rest.

    Args:
        database: where they are.
    """

    def __init__(self, database: Database) -> None:
        self._database = database
        self._store = ActionStore(database)

    async def one(
        self,
        scope: Scope,
        kind: Kind,
        delivery_id: str,
        actor: Actor,
        reason: str = "",
        *,
        reset_attempts: bool = False,
        once: KeyUse | None = None,
    ) -> str | None:
        """Change one delivery now (§4.3). When a cancellation returns, no worker begins the delivery any more.

        Args:
            scope: whose it is.
            kind: what is done.
            delivery_id: the delivery; what is no id is none.
            actor: who does it.
            reason: why; of one that is cancelled, what it shows as its error.
            reset_attempts: whether a retry gives it all of its attempts again; if not, it gets one.
            once: of a resend, the caller's idempotency key; ``None``: each call sends it once more.

        Returns:
            Its id; of a resend, that of the new delivery. ``None``: there is none in this scope that this can be done to.
        """
        if not is_id(delivery_id):
            return None
        if kind == "resend":
            return await send_one_again(self._database, delivery_id, scope, actor, reason, once)
        if kind == "cancel":
            reason = reason or f"cancelled by {actor.public_name}"
        changed = await change_one(
            self._database, kind, delivery_id, scope, actor, reason, reset_attempts=reset_attempts
        )
        return delivery_id if changed else None

    async def preview(self, scope: Scope, kind: Kind, wanted: Filter) -> Preview:
        """Count the rows that an action would be done to.

        Args:
            scope: whose rows.
            kind: what would be done.
            wanted: which of the rows that are dead, for ``cancel`` wait, or for ``resend`` are delivered.

        Raises:
            ActionInvalid: the filter cannot be used; the message says why.
        """
        as_of = round(await self._database.time() * 1000)
        chosen = Selection(kind, wanted, as_of, scope.organization_id)
        may_leave_out = kind == "retry" and not wanted.values("status")
        return Preview(
            chosen,
            await self._count(chosen),
            destinations=await self._store.shares(chosen, "destination"),
            organizations=await self._store.shares(chosen, "organization_id"),
            delivered=await self._store.delivered(scope, wanted) if may_leave_out else None,
        )

    async def change(
        self,
        scope: Scope,
        chosen: Selection,
        actor: Actor,
        reason: str,
        *,
        reset_attempts: bool = False,
        rate: float | None = None,
        once: KeyUse | None = None,
    ) -> Action | None:
        """Begin a bulk action on the set that a preview has shown, once, however often it is called for the same set.

        A ``cancel`` ends the rows at once, also those that a worker has claimed, and returns when no worker begins one of them any
        more, if that is soon.

        Args:
            scope: whose rows.
            chosen: the set, as the preview has shown it; the organization is that of the scope.
            actor: who does it.
            reason: why, for the audit; may be empty.
            reset_attempts: whether each row has all of its attempts again; if not, each gets one.
            rate: rows per second at the most; ``None``: without limit.
            once: the caller's idempotency key. If it was used before, the action of that call is returned.

        Returns:
            The action; ``None``: no row meets the filter.

        Raises:
            ActionInvalid: the filter or an option cannot be used, or the key was used for another filter; the message says why.
        """
        kind, words = chosen.kind, str(chosen.filter)
        bulk.check_options(kind, reset_attempts=reset_attempts, rate=rate)
        if chosen.as_of > round(await self._database.time() * 1000):
            raise ActionInvalid("The preview is of a time to come: look at the rows again.")
        chosen = chosen._replace(organization_id=scope.organization_id)
        action_id = bulk.once_id(chosen)
        row = await self._store.begun(action_id, once)
        if row is None and (count := await self._count(chosen)):
            owner = chosen.organization_id or chosen.filter.only("organization")
            entry = Entry(
                who=actor, action=kind, organization_id=owner, filter=words, reason=reason, number=count
            )
            values = {
                "kind": kind,
                "organization_id": owner or EVERY_ORGANIZATION,
                "filter": words,
                "as_of": chosen.as_of,
                "counted": count,
                "actor_id": storable(actor.id),
                "actor_name": storable(actor.name),
                "actor_role": actor.role,
                "reason": storable(reason),
                "reset_attempts": int(reset_attempts),
                "rate": rate,
            }
            row = await self._store.begin(values, entry, action_id, once)
            if row is None:
                raise ActionInvalid(OTHER_KEY)
        if row is None:
            return None
        if row.filter != words:
            raise ActionInvalid(OTHER_KEY)
        if kind == "cancel" and row.finished_at is None:
            await self._carry_on(row.id)
            row = await self._store.get(scope, row.id) or row
        return action_of(row, scope)

    async def _count(self, chosen: Selection) -> int:
        """Return how many rows a set has."""
        bulk.check_filter(chosen.filter, chosen.kind)
        count = await self._store.count(chosen)
        if chosen.kind == "resend" and count > bulk.MOST_RESENT:
            raise ActionInvalid(
                f"More than {bulk.MOST_RESENT:,} delivered rows meet the filter. Send them again in parts, by time or destination."
            )
        return count

    @repeated
    async def stop(self, scope: Scope, action_id: str, actor: Actor) -> Action | None:
        """Stop an action; what was done stays.

        Returns:
            The action; ``None``: there is none in this scope.

        Raises:
            ActionForbidden: it is an operator's, and the actor a principal of a dashboard.
        """

        def stop(connection: Connection) -> ActionRow | None:
            row = self._store.lock_for_person(connection, scope, action_id)
            if row is None:
                return None
            if actor.role == "dashboard" and row.actor_role != "dashboard":
                raise ActionForbidden("An operator has begun this action: only operators can stop it.")
            if row.finished_at is None:
                self._store.stop(connection, row, actor, storable(f"stopped by {actor.public_name}"))
            return self._store.lock_for_person(connection, scope, action_id)

        if not is_id(action_id):
            return None
        async with self._database.write() as transaction:
            row = await transaction.run_sync(stop)
        return None if row is None else action_of(row, scope)

    @repeated
    async def pause(
        self, scope: Scope, destination: str, actor: Actor, reason: str = "", *, only: int | None = None
    ) -> bool:
        """Pause a destination; requests that are on their way are finished.

        A pause that is there is replaced: among equals, the last one wins. What pauses automatically replaces none.

        Args:
            scope: for whom; that of all organizations pauses it for each of them.
            destination: scheme, host and port as rows have it, or a URL.
            actor: who does it.
            reason: why.
            only: pause it only if it still has at least so many failures in a row; ``None``: pause it in any case.

        Returns:
            Whether that changed anything.

        Raises:
            ActionForbidden: an operator has paused it, and the actor is a person of the dashboard.
            ActionInvalid: the destination is none.
            TooManyPauses: `MOST_PAUSES` are there.
        """
        target = _target(scope, destination)
        now = self._database.now()
        values = {
            "paused_at": now,
            "paused_by": storable(actor.name) or "",
            "paused_role": actor.role,
            "reason": storable(reason) or "",
            "probe_at": now + PROBE_FIRST_MS if actor == AUTOMATIC else null(),
            "probes": 0 if actor == AUTOMATIC else null(),
        }
        added = self._database.sql.insert_unless_there(pauses).values(
            organization_id=target[0], destination=target[1], **values
        )
        entry = Entry(
            who=actor,
            action="pause",
            organization_id=scope.organization_id,
            destination=target[1],
            reason=reason,
        )
        async with self._database.write() as connection:
            while (row := (await connection.execute(_one_pause(target))).one_or_none()) is None:
                if only is not None and not (await connection.execute(_failing(*target, only))).all():
                    return False
                await self._check_room(connection, *target)
                if (await connection.execute(added)).rowcount == 1:
                    break  # otherwise somebody has paused it meanwhile
            if row is not None:
                if actor == AUTOMATIC:
                    return False
                _check_role(row, actor)
                theirs = (row.paused_by, row.paused_role, row.reason)
                if theirs == (values["paused_by"], actor.role, values["reason"]):
                    return False  # a form that was sent twice
                await connection.execute(update(pauses).where(*_at(*target)).values(**values))
            await connection.execute(recording(self._database, entry))
        return True

    @repeated
    async def resume(
        self, scope: Scope, destination: str, actor: Actor, reason: str = "", *, only: int | None = None
    ) -> bool:
        """Resume a destination: its deliveries are due at once.

        Args:
            scope: for whom it was paused.
            destination: as for `pause`.
            actor: who does it.
            reason: why.
            only: when the automatic pause began that is ended, and no other; ``None``: whichever is there.

        Returns:
            Whether it was paused.

        Raises:
            ActionForbidden: an operator has paused it, and the actor is a person of the dashboard.
            ActionInvalid: the destination is none.
        """
        target = _target(scope, destination)
        async with self._database.write() as connection:
            row = (await connection.execute(_one_pause(target))).one_or_none()
            everywhere = _one_pause((EVERY_ORGANIZATION, target[1]))
            held = row if row is not None else (await connection.execute(everywhere)).one_or_none()
            if held is not None:
                _check_role(held, actor)
            if row is None or (only is not None and (row.paused_role, row.paused_at) != (AUTOMATIC.role, only)):
                return False
            await connection.execute(delete(pauses).where(*_at(*target)))
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

    async def _check_room(self, connection: AsyncConnection, organization_id: str, destination: str) -> None:
        """Check that an organization may pause one more destination, or has paused this one."""
        mine = select(pauses.c.destination).where(pauses.c.organization_id == organization_id)
        await connection.execute(mine.order_by(pauses.c.destination).limit(1).with_for_update())
        found = (await connection.execute(mine.limit(MOST_PAUSES))).scalars().all()
        if len(found) >= MOST_PAUSES and destination not in found:
            raise TooManyPauses(
                f"{MOST_PAUSES} destinations are paused, which is the most: resume one that need not be paused."
            )

    async def _carry_on(self, action_id: str) -> None:
        """Do what is due of an action now, as long as that is soon done."""
        engine = Engine(self._database)
        until = time.monotonic() + AT_ONCE_SECONDS
        wait = await engine.run_step(action_id)
        while wait is not None and time.monotonic() + wait < until:
            await asyncio.sleep(wait)
            wait = await engine.run_step(action_id)


def _check_role(held: Row[Any], actor: Actor) -> None:
    """Check that somebody may end or replace a pause."""
    if actor.role == "dashboard" and held.paused_role not in OPEN:
        raise ActionForbidden("An operator has paused this destination: only operators can resume it.")


def _one_pause(target: tuple[str, str]) -> Select[Any]:
    return select(pauses).where(*_at(*target)).with_for_update()


def _failing(organization_id: str, destination: str, failures: int) -> Select[Any]:
    health = destinations.c
    of = (health.organization_id == organization_id, health.destination == destination)
    return select(health.failures_in_row).where(*of, health.failures_in_row >= failures)


def _forgetting_failures(organization_id: str, destination: str) -> Update:
    forgetting = update(destinations).where(destinations.c.destination == destination)
    if organization_id != EVERY_ORGANIZATION:
        forgetting = forgetting.where(destinations.c.organization_id == organization_id)
    return forgetting.values(failures_in_row=0)


def _at(organization_id: str, destination: str) -> tuple[ColumnElement[bool], ...]:
    return pauses.c.organization_id == organization_id, pauses.c.destination == destination


def _target(scope: Scope, destination: str) -> tuple[str, str]:
    """Return the organization, or all of them, and the destination that a pause is for."""
    try:
        return scope.organization_id or EVERY_ORGANIZATION, destination_of(destination)
    except EgressRefused as exc:
        raise ActionInvalid(f"This is no destination: {exc}") from None
