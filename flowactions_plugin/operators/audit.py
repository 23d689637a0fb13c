"""The audit: who did what to which rows, and why, written in the transaction that does it."""

from __future__ import annotations

from typing import Any, Final

import msgspec
from sqlalchemy import Insert, Select, insert, select

from flowactions_plugin.clock import id_at, new_id
from flowactions_plugin.log_text import storable
from flowactions_plugin.operators.scope import Actor
from flowactions_plugin.storage.database import Database
from flowactions_plugin.storage.schema import EVERY_ORGANIZATION, audit

MOST_REASON: Final = 500
"""Characters of a reason that a person gives."""

PURGE: Final = "purge"
"""The action of the line that a purge begins with, and that it leaves."""

SKEW_MS: Final = 60_000
"""By how much the clocks of the processes that make ids may differ."""


class Entry(msgspec.Struct, frozen=True, kw_only=True):
    """A line of the audit.

    Attributes:
        who: who acts.
        action: what they do.
        organization_id: whose rows; ``None``: those of all organizations.
        delivery_id: the only row that it is done to.
        action_id: the bulk action.
        destination: of a pause.
        filter: JSON of the filter of the rows.
        reason: why, as they said.
        number: how many rows it changes.
        before: what it changes, as it was before; encodable as JSON.
    """

    who: Actor
    action: str
    organization_id: str | None
    delivery_id: str | None = None
    action_id: str | None = None
    destination: str | None = None
    filter: str | None = None
    reason: str = ""
    number: int | None = None
    before: Any = None


def recording(database: Database, entry: Entry, line_id: str | None = None) -> Insert:
    """Write the statement that adds a line to the audit, with a new id or this one."""
    actor_id, actor_name, actor_role = entry.who
    return insert(audit).values(
        id=line_id or new_id(database.clock()),
        at=database.now(),
        organization_id=EVERY_ORGANIZATION if entry.organization_id is None else entry.organization_id,
        actor_id=storable(actor_id) or "",
        actor_name=storable(actor_name) or "",
        actor_role=actor_role,
        action=entry.action,
        delivery_id=entry.delivery_id,
        action_id=entry.action_id,
        destination=entry.destination,
        filter=entry.filter,
        reason=storable(entry.reason) or "",
        number=entry.number,
        before=None if entry.before is None else msgspec.json.encode(entry.before).decode(),
    )


def purged_since(milliseconds: int) -> Select[Any]:
    """Select the organizations of which a purge has begun since a time (Unix milliseconds) of any process's clock."""
    return select(audit.c.organization_id).where(
        audit.c.id >= id_at(milliseconds - SKEW_MS), audit.c.action == PURGE
    )
