"""Bulk actions: changes to all rows of a filter, which workers execute.

An action is bound to the set that was shown. `Actions.preview` counts it and gives a token; `Actions.begin` takes the token
and refuses when the set has another number of rows by then. Rows that come to meet the filter later are not in it. A
cancellation acts at once, and so does the retry of one delivery; everything else begins ten seconds later, so that it can be
stopped before it has changed anything.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from typing import Any, Final

import msgspec

from flowactions_plugin.bulk.engine import Engine
from flowactions_plugin.bulk.results import Action, Preview, Share
from flowactions_plugin.bulk.sets import (
    MOST_RESENT,
    SENDING,
    Kind,
    Selection,
    acts_at_once,
    check_filter,
    check_options,
    check_rate,
    once_id,
    read_token,
    write_token,
)
from flowactions_plugin.bulk.store import ActionRow, ActionStore, Aged, Connection
from flowactions_plugin.clock import is_id
from flowactions_plugin.deliveries.changes import Change, change_one
from flowactions_plugin.deliveries.filters import Filter
from flowactions_plugin.errors import ActionForbidden, ActionInvalid, SetChanged
from flowactions_plugin.log_text import storable
from flowactions_plugin.operators.audit import Entry
from flowactions_plugin.operators.scope import Actor, Scope
from flowactions_plugin.queue.keys import KeyUse
from flowactions_plugin.storage.database import Database
from flowactions_plugin.storage.schema import EVERY_ORGANIZATION
from flowactions_plugin.storage.waiting import repeated

DELAY_SECONDS: Final = 10.0
"""So long after its order an action begins that can be stopped before it changes anything."""

AT_ONCE_SECONDS: Final = 3.0
"""For how long `Actions.begin` itself does what is done at once; workers do what is left then."""


class Actions:
    """The bulk actions of one database.

    Args:
        database: where they are.
    """

    def __init__(self, database: Database) -> None:
        self._database = database
        self._store = ActionStore(database)

    async def preview(self, scope: Scope, kind: Kind, wanted: Filter, *, rate: float | None = None) -> Preview:
        """Count the rows that an action would be done to.

        Args:
            scope: whose rows.
            kind: what would be done.
            wanted: which of the rows that are dead, for ``cancel`` wait, or for ``resend`` are delivered.
            rate: rows per second, for the time to drain.

        Raises:
            ActionInvalid: the filter or the rate cannot be used; the message says why.
            StorageUnavailable: the database failed.
        """
        check_rate(rate)
        check_filter(wanted, kind)
        as_of = await self._store.now()
        selection = Selection(kind=kind, organization_id=scope.organization_id, filter=wanted, as_of=as_of)
        count = await self._store.count(selection)
        if kind == "resend" and count > MOST_RESENT:
            raise ActionInvalid(
                f"More than {MOST_RESENT:,} delivered rows meet the filter. Send them again in parts, by time or destination."
            )
        selection = msgspec.structs.replace(selection, count=count)
        may_leave_out = kind == "retry" and wanted.status in {None, "delivered"}
        return Preview(
            kind=kind,
            filter=wanted,
            count=count,
            as_of=as_of,
            token=write_token(selection),
            destinations=[Share(*each) for each in await self._store.shares(selection, "destination")],
            organizations=[Share(*each) for each in await self._store.shares(selection, "organization_id")],
            seconds_to_drain=await self._seconds_to_drain(selection, rate),
            delivered=await self._store.delivered(scope, wanted) if may_leave_out else None,
        )

    async def begin(
        self,
        scope: Scope,
        kind: Kind,
        token: str,
        actor: Actor,
        reason: str,
        *,
        reset_attempts: bool = False,
        rate: float | None = None,
        canary: int = 0,
        delay_seconds: float = DELAY_SECONDS,
        once: KeyUse | None = None,
    ) -> Action:
        """Begin an action on the set that a preview has shown.

        A ``cancel`` ends the rows at once, also those that a worker has claimed, and returns when no worker begins one of them any
        more, if that is soon. A ``retry`` of one id is done at once, too. Everything else begins after ``delay_seconds``.

        Args:
            scope: whose rows; not more than the preview was for.
            kind: what is done; that of the preview.
            token: of the preview.
            actor: who does it.
            reason: why, for the audit; may be empty.
            reset_attempts: whether each row has all of its attempts again; if not, each gets one.
            rate: rows per second at the most; ``None``: without limit.
            canary: how many rows go first. The others wait for their first attempts, and if more than a tenth of these fails,
                the action stops. 0: no canary.
            delay_seconds: how long nothing is changed.
            once: the caller's idempotency key. If it was used before, the action of that call is returned.

        Raises:
            ActionInvalid: the token or an option cannot be used, or the key was used for another filter; the message says why.
            SetChanged: the set has another number of rows than was shown; for ``cancel``, rows may have left it.
            StorageUnavailable: the database failed; nothing was begun.
        """
        check_options(kind, reset_attempts=reset_attempts, rate=rate, canary=canary)
        selection = read_token(scope, kind, token)
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
        only_id = once_id(selection) if kind == "resend" else None
        at_once = acts_at_once(kind, selection.filter)
        delay_ms = 0 if at_once else int(delay_seconds * 1000)
        row = await self._store.begin(values, delay_ms, entry, aged, only_id, once)
        if row is None or row.filter != filter_text:
            raise ActionInvalid("This idempotency key was used for another request.")
        begun = _action(row, scope)
        if not at_once:
            return begun
        await self._carry_on(begun.id)
        return await self.get(scope, begun.id) or begun

    @repeated
    async def stop(self, scope: Scope, action_id: str, actor: Actor) -> Action | None:
        """Stop an action; what was done stays.

        Returns:
            The action; ``None``: there is none in this scope.

        Raises:
            ActionForbidden: it is an operator's, and the actor a principal of a dashboard.
            StorageUnavailable: the database failed.
        """
        if not is_id(action_id):
            return None
        async with self._database.write() as connection:
            row = await connection.run_sync(self._stopped, scope, action_id, actor)
        return None if row is None else _action(row, scope)

    async def get(self, scope: Scope, action_id: str) -> Action | None:
        """Return an action; ``None``: there is none in this scope."""
        row = await self._store.get(scope, action_id) if is_id(action_id) else None
        return None if row is None else _action(row, scope)

    async def list(self, scope: Scope, *, before: str | None = None, limit: int = 50) -> Sequence[Action]:
        """Return actions, the latest first.

        Args:
            scope: whose.
            before: only those older than the one with this id.
            limit: how many at the most.
        """
        return [_action(row, scope) for row in await self._store.page(scope, before, limit)]

    async def one(
        self,
        scope: Scope,
        kind: Change,
        delivery_id: str,
        actor: Actor,
        reason: str = "",
        *,
        reset_attempts: bool = False,
    ) -> bool:
        """Retry, cancel or delete one delivery now, and write it to the audit in the same transaction.

        Returns:
            Whether there was one in this scope that this can be done to.

        Raises:
            StorageUnavailable: the database failed; nothing was changed.
        """
        if kind == "cancel":
            reason = reason or f"cancelled by {actor.public_name}"
        return await change_one(
            self._database,
            kind,
            delivery_id,
            scope.organization_id,
            actor,
            reason,
            reset_attempts=reset_attempts,
        )

    async def _check_set(self, selection: Selection) -> Aged:
        """Check that a set is the one that was shown, and return what retention may remove of it."""
        now = await self._store.now()
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

    async def _seconds_to_drain(self, selection: Selection, rate: float | None) -> float | None:
        if selection.kind not in SENDING:
            return None
        rates = [each for each in (rate, await self._store.best_rate()) if each]
        return selection.count / min(rates) if rates else None

    async def _carry_on(self, action_id: str) -> None:
        """Do what is due of an action now, as long as that is soon done."""
        engine = Engine(self._database)
        until = time.monotonic() + AT_ONCE_SECONDS
        wait = await engine.run_step(action_id)
        while wait is not None and time.monotonic() + wait < until:
            await asyncio.sleep(wait)
            wait = await engine.run_step(action_id)

    def _stopped(self, connection: Connection, scope: Scope, action_id: str, actor: Actor) -> ActionRow | None:
        """Stop an action within a transaction, as far as it is not finished; return it as it is then."""
        row = self._store.lock_for_person(connection, scope, action_id)
        if row is None:
            return None
        if actor.role == "dashboard" and row.actor_role != "dashboard":
            raise ActionForbidden("An operator has begun this action: only operators can stop it.")
        if row.finished_at is not None:
            return row
        self._store.stop(connection, row, actor, storable(f"stopped by {actor.public_name}"))
        return self._store.lock_for_person(connection, scope, action_id)


def _action(row: ActionRow, scope: Scope) -> Action:
    values: dict[str, Any] = {name: getattr(row, name) for name in Action.__struct_fields__}
    who = scope.shown(Actor(row.actor_id, row.actor_name, row.actor_role))
    values |= {"actor_id": who.id, "actor_name": who.name}
    values["reset_attempts"] = bool(row.reset_attempts)
    try:
        values["filter"] = msgspec.json.decode(row.filter, type=Filter)
    except msgspec.MsgspecError:
        values["filter"] = Filter()
    return Action(**values)
