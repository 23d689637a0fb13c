"""Sends delivered webhooks again: each as a new row with the same event, request and origin.

The delivered row stays as it is. The new row names it inside the JSON of its origin, which says where a row comes from.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import msgspec
from sqlalchemy import String, and_, select
from sqlalchemy.engine import Connection

from flowactions_plugin.clock import new_id
from flowactions_plugin.errors import ActionInvalid
from flowactions_plugin.insights.standing import of_scope
from flowactions_plugin.insights.views import RESENT_FROM
from flowactions_plugin.operators.audit import Entry, recording
from flowactions_plugin.operators.scope import Actor, Scope
from flowactions_plugin.origins import CHAT, kind_of
from flowactions_plugin.queue.items import Item, write_items
from flowactions_plugin.queue.keys import KeyUse
from flowactions_plugin.storage.database import Database
from flowactions_plugin.storage.dialect import inline
from flowactions_plugin.storage.schema import outbox
from flowactions_plugin.storage.waiting import repeated

_COPIED: Final = (
    "organization_id",
    "agent_id",
    "event_id",
    "event_type",
    "url",
    "destination",
    "lane",
    "method",
    "headers",
    "body",
    "idempotency_key",
    "max_attempts",
    "flow_id",
    "node_id",
    "trace",
)
"""What a new row has of the delivered one. Its origin is the same, too, and names that row."""

DELIVERED: Final = outbox.c.status == inline("delivered")
RESENDABLE: Final = and_(DELIVERED, outbox.c.expires_at.is_(None))
"""Rows that can be sent again: a chat message cannot, since nothing at the provider tells the second from the first."""


def origin_naming(source_id: str, origin: Any) -> str | None:
    """Return a stored origin that names a delivered row; ``None``: the origin cannot be read."""
    try:
        fields = msgspec.json.decode(origin, type=dict[str, Any])
        return msgspec.json.encode({**fields, RESENT_FROM: source_id}).decode()
    except (msgspec.MsgspecError, UnicodeError, TypeError, ValueError, RecursionError):
        return None


def send_again(
    database: Database,
    connection: Connection,
    ids: Sequence[str],
    action_id: str | None = None,
    once: KeyUse | None = None,
) -> dict[str, bool]:
    """Write a new row for each of these delivered rows, due now. A row whose origin cannot be read is left out.

    Args:
        database: where.
        connection: of a transaction that has locked the rows.
        ids: of the delivered rows.
        action_id: the bulk action that does it.
        once: the idempotency key of one row: if it was used before, the row of its first use is returned.

    Returns:
        The ids of the new rows, and whether each was written now, and not when its key was used first.
    """
    given = database.sql.values_table("given", id=String)
    columns = (outbox.c[name] for name in ("id", "origin", *_COPIED))
    found = select(*columns).where(outbox.c.id.in_(select(given.c.id)), RESENDABLE)
    asked = database.sql.json_rows([{"id": each} for each in ids])
    items: list[Item] = []
    for row in connection.execute(found, {"given": asked}).mappings():
        origin = origin_naming(row["id"], row["origin"])
        if origin is not None:
            made = {
                "id": new_id(database.clock()),
                "origin": origin,
                "action_id": action_id,
                "sequence": None,
                "expires_at": None,
            }
            items.append(Item({**row, **made}, once))
    write_items(database, connection, items)
    return {
        each.row["id"] if each.first is None else each.first.delivery_id: each.first is None for each in items
    }


@repeated
async def send_one_again(
    database: Database,
    row_id: str,
    scope: Scope,
    who: Actor,
    reason: str = "",
    once: KeyUse | None = None,
) -> str | None:
    """Send one delivered row again, and write it to the audit in the same transaction; see `Operations.one`."""
    found = select(outbox.c.organization_id, outbox.c.destination).where(
        outbox.c.id == row_id, DELIVERED, *of_scope(outbox, scope)
    )

    def copy(connection: Connection, organization: Any) -> str | None:
        copies = send_again(database, connection, [row_id], once=once)
        if any(copies.values()):
            entry = Entry(
                who=who,
                action="resend",
                organization_id=organization,
                delivery_id=row_id,
                reason=reason,
                number=1,
            )
            connection.execute(recording(database, entry))
        return next(iter(copies), None)

    async with database.write() as connection:
        # Calls with the same key wait here for each other: the key belongs to this row.
        row = (await connection.execute(found.with_for_update())).one_or_none()
        if row is not None and kind_of(row.destination) == CHAT:
            raise ActionInvalid("A chat message is not sent again: the person would get it twice.")
        return None if row is None else await connection.run_sync(copy, row.organization_id)
