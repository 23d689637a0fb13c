"""People undo and stop bulk actions."""

from __future__ import annotations

from typing import Literal, TypeAlias

from flowactions_plugin.bulk.store import ActionRow, ActionStore, Connection
from flowactions_plugin.errors import ActionForbidden
from flowactions_plugin.log_text import storable
from flowactions_plugin.operators.audit import Entry
from flowactions_plugin.operators.scope import Actor, Scope

How: TypeAlias = Literal["undo", "stop"]


def end(
    connection: Connection, store: ActionStore, scope: Scope, action_id: str, actor: Actor, how: How
) -> ActionRow | None:
    """Undo or stop an action, as far as it is not finished, within a transaction.

    Returns:
        The action as it is then; ``None``: there is none in this scope.

    Raises:
        ActionForbidden: it is an operator's, and the actor a principal of a dashboard.
    """
    row = store.lock_for_person(connection, scope, action_id)
    if row is None:
        return None
    if actor.role == "dashboard" and row.actor_role != "dashboard":
        raise ActionForbidden("An operator has begun this action: only operators can undo or stop it.")
    # Rows that a cancellation holds are released next.
    ended = {"finished_at": None if row.kind == "cancel" else row.now, "held_by": None, "held_until": None}
    if row.state == "waiting":
        store.save(connection, row.id, {**ended, "state": "undone"})
        _record(connection, store, row, actor, "undo")
    elif how == "stop" and row.state == "running":
        reason = storable(f"stopped by {actor.public_name}")
        store.save(connection, row.id, {**ended, "state": "stopped", "state_reason": reason})
        _record(connection, store, row, actor, "stop")
    return store.lock_for_person(connection, scope, action_id)


def _record(connection: Connection, store: ActionStore, row: ActionRow, actor: Actor, how: How) -> None:
    entry = Entry(who=actor, action=how, organization_id=row.organization_id, action_id=row.id, number=row.done)
    store.record(connection, entry)
