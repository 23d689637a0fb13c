"""What people do: to deliveries, single ones at once and those of a filter as a bulk action, and to destinations.

A bulk action is bound to the set that was shown: a filter, a time and a count. It is refused when the set has another number of
rows by then, and rows that come to meet the filter later are not in it. A cancellation acts at once. Everything else begins ten
seconds later, so that it can be stopped before it has changed anything. Workers execute it.
"""

from __future__ import annotations

import asyncio
import time
from typing import Any, Final

import msgspec
from msgspec.structs import replace
from sqlalchemy import ColumnElement, Row, Select, Update, delete, null, select, update
from sqlalchemy.ext.asyncio import AsyncConnection

from flowactions_plugin.clock import is_id
from flowactions_plugin.egress.destination import parse_destination
from flowactions_plugin.errors import (
    ActionForbidden,
    ActionInvalid,
    EgressRefused,
    SetChanged,
    TooManyPauses,
)
from flowactions_plugin.insights.filters import Filter
from flowactions_plugin.insights.results import Action, Kind
from flowactions_plugin.insights.views import action_of
from flowactions_plugin.log_text import storable
from flowactions_plugin.operations import bulk
from flowactions_plugin.operations.bulk import Preview, Selection
from flowactions_plugin.operations.changes import change_one
from flowactions_plugin.operations.engine import Engine
from flowactions_plugin.operations.resend import send_one_again
from flowactions_plugin.operations.store import ActionRow, ActionStore, Aged, Connection
from flowactions_plugin.operators.audit import Entry, recording
from flowactions_plugin.operators.scope import AUTOMATIC, OPEN, Actor, Scope
from flowactions_plugin.queue.keys import KeyUse
from flowactions_plugin.queue.rules import PROBE_FIRST_MS
from flowactions_plugin.storage.database import Database
from flowactions_plugin.storage.schema import EVERY_ORGANIZATION, destinations, pauses
from flowactions_plugin.storage.waiting import repeated

DELAY_SECONDS: Final = 10.0
"""So long after its order an action begins that can be stopped before it changes anything."""

AT_ONCE_SECONDS: Final = 3.0
"""For how long `Operations.change` itself does what is done at once; workers do what is left then."""

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

    async def preview(self, scope: Scope, kind: Kind, wanted: Filter, *, rate: float | None = None) -> Preview:
        """Count the rows that an action would be done to.

        Args:
            scope: whose rows.
            kind: what would be done.
            wanted: which of the rows that are dead, for ``cancel`` wait, or for ``resend`` are delivered.
            rate: rows per second, for the time to drain.

        Raises:
            ActionInvalid: the filter or the rate cannot be used; the message says why.
        """
        bulk.check_rate(rate)
        bulk.check_filter(wanted, kind)
        as_of = round(await self._database.time() * 1000)
        selection = Selection(kind, wanted, as_of, organization_id=scope.organization_id)
        count = await self._store.count(selection)
        selection = replace(selection, count=count)
        if kind == "resend" and count > bulk.MOST_RESENT:
            raise ActionInvalid(
                f"More than {bulk.MOST_RESENT:,} delivered rows meet the filter. Send them again in parts, by time or destination."
            )
        seconds = None
        if kind in bulk.SENDING:
            rates = [each for each in (rate, await self._store.best_rate()) if each]
            seconds = count / min(rates) if rates else None
        may_leave_out = kind == "retry" and wanted.status in {None, "delivered"}
        return Preview(
            selection,
            destinations=await self._store.shares(selection, "destination"),
            organizations=await self._store.shares(selection, "organization_id"),
            seconds_to_drain=seconds,
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
        canary: int = 0,
        delay_seconds: float = DELAY_SECONDS,
        once: KeyUse | None = None,
    ) -> Action:
        """Begin a bulk action on the set that a preview has shown.

        A ``cancel`` ends the rows at once, also those that a worker has claimed, and returns when no worker begins one of them any
        more, if that is soon. Everything else begins after ``delay_seconds``.

        Args:
            scope: whose rows.
            chosen: the set, as the preview has shown it; the organization is that of the scope.
            actor: who does it.
            reason: why, for the audit; may be empty.
            reset_attempts: whether each row has all of its attempts again; if not, each gets one.
            rate: rows per second at the most; ``None``: without limit.
            canary: how many rows go first. The others wait for their first attempts, and if more than a tenth of these fails,
                the action stops. 0: no canary.
            delay_seconds: how long nothing is changed.
            once: the caller's idempotency key. If it was used before, the action of that call is returned.

        Raises:
            ActionInvalid: the filter or an option cannot be used, or the key was used for another filter; the message says why.
            SetChanged: the set has another number of rows than was shown; for ``cancel``, rows may have left it.
        """
        kind = chosen.kind
        bulk.check_options(kind, reset_attempts=reset_attempts, rate=rate, canary=canary)
        bulk.check_filter(chosen.filter, kind)
        selection = replace(chosen, organization_id=scope.organization_id)
        aged = await self._check_set(selection)
        filter_text = msgspec.json.encode(selection.filter).decode()
        owner = scope.organization_id or selection.filter.organization_id
        entry = Entry(
            who=actor,
            action=kind,
            organization_id=owner,
            filter=filter_text,
            reason=reason,
            number=selection.count,
        )
        values = {
            "kind": kind,
            "organization_id": owner or EVERY_ORGANIZATION,
            "filter": filter_text,
            "as_of": selection.as_of,
            "counted": selection.count,
            "actor_id": storable(actor.id),
            "actor_name": storable(actor.name),
            "actor_role": actor.role,
            "reason": storable(reason),
            "reset_attempts": int(reset_attempts),
            "rate": rate,
            "canary": canary,
        }
        # The set of what is sent again is still there after it: a form that is sent twice must not send it twice.
        only_id = bulk.once_id(selection) if kind == "resend" else None
        delay_ms = 0 if kind == "cancel" else int(delay_seconds * 1000)
        row = await self._store.begin(values, delay_ms, entry, aged, only_id, once)
        if row is None or row.filter != filter_text:
            raise ActionInvalid("This idempotency key was used for another request.")
        if kind == "cancel":
            await self._carry_on(row.id)
            row = await self._store.get(scope, row.id) or row
        return action_of(row, scope)

    async def stop(self, scope: Scope, action_id: str, actor: Actor) -> Action | None:
        """Stop an action; what was done stays.

        Returns:
            The action; ``None``: there is none in this scope.

        Raises:
            ActionForbidden: it is an operator's, and the actor a principal of a dashboard.
        """
        if not is_id(action_id):
            return None
        row = await self._stop(scope, action_id, actor)
        return None if row is None else action_of(row, scope)

    @repeated
    async def pause(self, scope: Scope, destination: str, actor: Actor, reason: str = "") -> bool:
        """Pause a destination; requests that are on their way are finished.

        A pause that is there is replaced: among equals, the last one wins. What pauses automatically replaces none.

        Args:
            scope: for whom; that of all organizations pauses it for each of them.
            destination: scheme, host and port as rows have it, or a URL.
            actor: who does it.
            reason: why.

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
            row = (await connection.execute(_one_pause(target))).one_or_none()
            if row is not None:
                if actor == AUTOMATIC:
                    return False
                _check_role(row, actor)
                theirs = (row.paused_by, row.paused_role, row.reason)
                if theirs == (values["paused_by"], actor.role, values["reason"]):
                    return False  # a form that was sent twice
                await connection.execute(update(pauses).where(*_at(*target)).values(**values))
            else:
                await self._check_room(connection, *target)
                if (await connection.execute(added)).rowcount != 1:
                    return False
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

    async def _check_set(self, selection: Selection) -> Aged:
        """Check that a set is the one that was shown, and return what retention may remove of it."""
        now = round(await self._database.time() * 1000)
        if selection.as_of > now:
            raise ActionInvalid("The preview is of a time to come: look at the rows again.")
        if not selection.count:
            raise ActionInvalid("No row meets the filter: nothing to do.")
        aged = await self._store.aged(selection, now)
        count = await self._store.count(selection)
        # What was delivered since does not wait any more.
        is_fewer = selection.kind == "cancel" and count < selection.count
        if not is_fewer and count != selection.count:
            raise SetChanged(
                f"The rows have changed since they were shown: {selection.count:,} then, {count:,} now. Look at them again."
            )
        return aged

    async def _carry_on(self, action_id: str) -> None:
        """Do what is due of an action now, as long as that is soon done."""
        engine = Engine(self._database)
        until = time.monotonic() + AT_ONCE_SECONDS
        wait = await engine.run_step(action_id)
        while wait is not None and time.monotonic() + wait < until:
            await asyncio.sleep(wait)
            wait = await engine.run_step(action_id)

    @repeated
    async def _stop(self, scope: Scope, action_id: str, actor: Actor) -> ActionRow | None:
        """Stop an action, as far as it is not finished; return it as it is then."""

        def stop(connection: Connection) -> ActionRow | None:
            row = self._store.lock_for_person(connection, scope, action_id)
            if row is None:
                return None
            if actor.role == "dashboard" and row.actor_role != "dashboard":
                raise ActionForbidden("An operator has begun this action: only operators can stop it.")
            if row.finished_at is None:
                self._store.stop(connection, row, actor, storable(f"stopped by {actor.public_name}"))
            return self._store.lock_for_person(connection, scope, action_id)

        async with self._database.write() as connection:
            return await connection.run_sync(stop)


def _check_role(held: Row[Any], actor: Actor) -> None:
    """Check that somebody may end or replace a pause."""
    if actor.role == "dashboard" and held.paused_role not in OPEN:
        raise ActionForbidden("An operator has paused this destination: only operators can resume it.")


def _one_pause(target: tuple[str, str]) -> Select[Any]:
    return select(pauses).where(*_at(*target)).with_for_update()


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
        return scope.organization_id or EVERY_ORGANIZATION, parse_destination(destination).key
    except EgressRefused as exc:
        raise ActionInvalid(f"This is no destination: {exc}") from None
