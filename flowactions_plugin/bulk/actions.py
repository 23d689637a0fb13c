"""Bulk actions: changes to all rows of a filter, which workers execute.

An action is bound to the set that was shown. `Actions.preview` counts it and gives a token; `Actions.begin` takes the token
and refuses when the set is another by then. Rows that come to meet the filter later are not in it. Nothing leaves before
the time for undoing has passed.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any, Final, Literal, TypeAlias

import msgspec

from flowactions_plugin.bulk.engine import Engine
from flowactions_plugin.bulk.results import Action, Preview, Share
from flowactions_plugin.bulk.sets import (
    MOST_RESENT,
    SENDING,
    Kind,
    Selection,
    check_filter,
    check_options,
    check_rate,
    once_id,
    read_token,
    write_token,
)
from flowactions_plugin.bulk.store import ActionRow, ActionStore, Aged, Connection
from flowactions_plugin.clock import is_id
from flowactions_plugin.deliveries.changes import change_one
from flowactions_plugin.deliveries.filters import Filter
from flowactions_plugin.deliveries.resend import send_one_again
from flowactions_plugin.errors import ActionForbidden, ActionInvalid, SetChanged
from flowactions_plugin.log_text import storable
from flowactions_plugin.operators.audit import Entry
from flowactions_plugin.operators.scope import Actor, Scope
from flowactions_plugin.queue.keys import KeyUse
from flowactions_plugin.storage.conflicts import repeated
from flowactions_plugin.storage.database import Database
from flowactions_plugin.storage.schema import EVERY_ORGANIZATION

How: TypeAlias = Literal["undo", "stop"]

UNDO_SECONDS: Final = 10.0
"""The time for undoing by default."""

HOLD_SECONDS: Final = 2.0
"""For how long `Actions.begin` itself holds the rows of a cancellation; workers hold what is left then."""


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
        count, mark = await self._store.count(selection)
        if kind == "resend" and count > MOST_RESENT:
            raise ActionInvalid(
                f"More than {MOST_RESENT:,} delivered rows meet the filter. Send them again in parts, by time or destination."
            )
        selection = msgspec.structs.replace(selection, count=count, mark=mark)
        may_leave_out = kind in {"retry", "replay"} and wanted.status in {None, "delivered"}
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
        undo_seconds: float = UNDO_SECONDS,
        once: KeyUse | None = None,
    ) -> Action:
        """Begin an action on the set that a preview has shown.

        A ``cancel`` ends the rows at once. Everything else begins after ``undo_seconds``, within which `stop` undoes it.

        Args:
            scope: whose rows; not more than the preview was for.
            kind: what is done; that of the preview.
            token: of the preview.
            actor: who does it.
            reason: why, for the audit; may be empty.
            reset_attempts: whether each row has all of its attempts again; if not, each gets one.
            rate: rows per second at the most; ``None``: without limit.
            canary: how many rows go first. Then ten times as many go, and so on; each stage waits for the first attempts
                of the one before, and a stage of which more than a tenth fails stops the action. 0: no canary.
            undo_seconds: the time for undoing.
            once: the caller's idempotency key. If it was used before, the action of that call is returned.

        Raises:
            ActionInvalid: the token or an option cannot be used, or the key was used for another filter; the message says why.
            SetChanged: the set is another than the one that was shown; for ``cancel``, rows may have left it.
            StorageUnavailable: the database failed; nothing was begun.
        """
        check_options(kind, reset_attempts=reset_attempts, rate=rate, canary=canary, undo_seconds=undo_seconds)
        selection = read_token(scope, kind, token)
        aged = await self._check_set(selection)
        filter_text = msgspec.json.encode(selection.filter).decode()
        of_one = scope.organization_id or selection.filter.organization_id
        entry = Entry(
            who=actor,
            action=kind,
            organization_id=of_one,
            filter=filter_text,
            reason=reason,
            number=selection.count,
        )
        values = {
            "kind": kind,
            "organization_id": of_one or EVERY_ORGANIZATION,
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
        undo_ms = 0 if kind == "cancel" else int(undo_seconds * 1000)
        row = await self._store.begin(values, undo_ms, entry, aged, only_id, once)
        if row is None or row.filter != filter_text:
            raise ActionInvalid("This idempotency key was used for another request.")
        begun = _action(row, scope)
        if kind == "cancel":
            await self._carry_on(begun.id)
        return begun

    async def undo(self, scope: Scope, action_id: str, actor: Actor) -> Action | None:
        """Undo an action that has not started; no row is changed.

        Returns:
            The action, ``undone``; in another state when it was too late; ``None``: there is none in this scope.

        Raises:
            ActionForbidden: it is an operator's, and the actor a principal of a dashboard.
            StorageUnavailable: the database failed.
        """
        return await self._end(scope, action_id, actor, "undo")

    async def stop(self, scope: Scope, action_id: str, actor: Actor) -> Action | None:
        """Stop an action; what was done stays, and one that has not started is undone.

        Returns:
            The action; ``None``: there is none in this scope.

        Raises:
            ActionForbidden: it is an operator's, and the actor a principal of a dashboard.
            StorageUnavailable: the database failed.
        """
        return await self._end(scope, action_id, actor, "stop")

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

    async def send_one_again(
        self, scope: Scope, delivery_id: str, actor: Actor, reason: str = ""
    ) -> str | None:
        """Send one delivered row again now, and write it to the audit in the same transaction.

        Returns:
            The id of the new row; ``None``: there is no delivered row with this id in this scope, or its origin cannot be
            read.

        Raises:
            StorageUnavailable: the database failed; nothing was written.
        """
        return await send_one_again(self._database, delivery_id, scope.organization_id, actor, reason)

    async def one(
        self,
        scope: Scope,
        kind: Literal["retry", "replay", "cancel", "delete"],
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
            "retry" if kind == "replay" else kind,
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
        count, mark = await self._store.count(selection)
        # What was delivered since does not wait any more; nothing else may have come in its place.
        is_fewer = selection.kind == "cancel" and count <= selection.count
        same = is_fewer or (count, mark) == (selection.count, selection.mark)
        if not same:
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
        until = time.monotonic() + HOLD_SECONDS
        while await engine.run_step(action_id) is not None and time.monotonic() < until:
            pass

    @repeated
    async def _end(self, scope: Scope, action_id: str, actor: Actor, how: How) -> Action | None:
        """Undo or stop an action, as far as it is not finished."""
        if not is_id(action_id):
            return None
        async with self._database.write() as connection:
            row = await connection.run_sync(self._ended, scope, action_id, actor, how)
        return None if row is None else _action(row, scope)

    def _ended(
        self, connection: Connection, scope: Scope, action_id: str, actor: Actor, how: How
    ) -> ActionRow | None:
        """Do the same within a transaction; return the action as it is then."""
        row = self._store.lock_for_person(connection, scope, action_id)
        if row is None:
            return None
        if actor.role == "dashboard" and row.actor_role != "dashboard":
            raise ActionForbidden("An operator has begun this action: only operators can undo or stop it.")
        done: How
        changed: dict[str, str | None]
        if row.state == "waiting":
            done, changed = "undo", {"state": "undone"}
        elif how == "stop" and row.state == "running":
            reason = storable(f"stopped by {actor.public_name}")
            done, changed = "stop", {"state": "stopped", "state_reason": reason}
        else:
            return row
        ended = {**changed, "finished_at": row.now, "held_by": None, "held_until": None}
        self._store.save(connection, row.id, ended)
        entry = Entry(
            who=actor, action=done, organization_id=row.organization_id, action_id=row.id, number=row.done
        )
        self._store.record(connection, entry)
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
