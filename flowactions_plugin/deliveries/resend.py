"""Sends delivered webhooks again: each as a new row with the same event, request and origin.

The delivered row stays as it is. The new row names it inside the JSON of its origin, which says where a row comes from.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any, Final, Literal, NamedTuple

import msgspec
from sqlalchemy import String, Text, insert, literal, null, select
from sqlalchemy.engine import Connection

from flowactions_plugin.clock import is_id, new_id
from flowactions_plugin.deliveries.changes import Change, changeable
from flowactions_plugin.deliveries.results import Resent
from flowactions_plugin.operators.audit import Entry, Who, recording
from flowactions_plugin.queue.keys import KeyUse
from flowactions_plugin.storage.conflicts import repeated
from flowactions_plugin.storage.database import Database
from flowactions_plugin.storage.dialect import inline
from flowactions_plugin.storage.schema import outbox

RESENT_FROM: Final = "resentFrom"
"""The field of a stored origin that names the delivered row."""

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

MOST_RESENT: Final = 1000
"""How many of the rows that were sent again from one are read."""

DELIVERED: Final = outbox.c.status == inline("delivered")


async def could_change(database: Database, kind: Change | Literal["resend"], ids: Collection[str]) -> set[str]:
    """Return which of these deliveries something can be done to now.

    Raises:
        StorageUnavailable: the database failed.
    """
    conditions = (DELIVERED,) if kind == "resend" else changeable(kind)
    async with database.read() as connection:
        return set(
            (await connection.execute(select(outbox.c.id).where(outbox.c.id.in_(ids), *conditions))).scalars()
        )


class _Source(msgspec.Struct, rename="camel"):
    resent_from: str | None = None


class Copy(NamedTuple):
    """A row that was written.

    Attributes:
        id: the new row's.
        source_id: of the delivered row.
    """

    id: str
    source_id: str


def source_of(origin: Any) -> str | None:
    """Return the id of the delivered row that a stored origin names; ``None``: it names none, or cannot be read."""
    try:
        found = msgspec.json.decode(origin, type=_Source).resent_from
    except (msgspec.MsgspecError, UnicodeError, TypeError, ValueError, RecursionError):
        return None
    return found if found is not None and is_id(found) else None


def origin_naming(source_id: str, origin: Any) -> str | None:
    """Return a stored origin that names a delivered row; ``None``: the origin cannot be read."""
    try:
        fields = msgspec.json.decode(origin, type=dict[str, Any])
        return msgspec.json.encode({**fields, RESENT_FROM: source_id}).decode()
    except (msgspec.MsgspecError, UnicodeError, TypeError, ValueError, RecursionError):
        return None


def send_again(
    database: Database, connection: Connection, ids: Sequence[str], action_id: str | None = None
) -> list[Copy]:
    """Write a new row for each of these delivered rows, due now. A row whose origin cannot be read is left out.

    Args:
        database: where.
        connection: of a transaction that has locked the rows.
        ids: of the delivered rows.
        action_id: the bulk action that does it.
    """
    given = database.sql.values_table("given", id=String)
    origins = select(outbox.c.id, outbox.c.origin).where(outbox.c.id.in_(select(given.c.id)), DELIVERED)
    asked = database.sql.json_rows([{"id": each} for each in ids])
    rows = []
    for row in connection.execute(origins, {"given": asked}).all():
        origin = origin_naming(row.id, row.origin)
        if origin is not None:
            rows.append({"id": row.id, "new_id": new_id(database.clock()), "origin": origin})
    if rows:
        connection.execute(_copying(database, action_id), {"copies": database.sql.json_rows(rows)})
    return [Copy(row["new_id"], row["id"]) for row in rows]


def _copying(database: Database, action_id: str | None) -> Any:
    """Write the statement that copies the rows in the parameter ``copies``."""
    copies = database.sql.values_table("copies", id=String, new_id=String, origin=Text)
    now, none = database.now(), inline(0)
    values = {
        "id": copies.c.new_id,
        "origin": copies.c.origin,
        **{name: outbox.c[name] for name in _COPIED},
        "status": inline("pending"),
        "attempts": none,
        "earlier_attempts": none,
        "takeovers": none,
        "quarantine_rounds": none,
        "next_attempt_at": now,
        "created_at": now,
        "updated_at": now,
        "action_id": null() if action_id is None else literal(action_id),
    }
    copied = select(*(value.label(name) for name, value in values.items()))
    copied = copied.select_from(outbox.join(copies, copies.c.id == outbox.c.id)).where(DELIVERED)
    return insert(outbox).from_select(list(values), copied)


@repeated
async def send_one_again(
    database: Database,
    row_id: str,
    organization_id: str | None,
    who: Who,
    reason: str = "",
    once: KeyUse | None = None,
) -> str | None:
    """Send one delivered row again, and write it to the audit in the same transaction.

    Args:
        database: where it is.
        row_id: the delivered row; what is no id is none.
        organization_id: the tenant; ``None``: of any organization.
        who: who does it.
        reason: why.
        once: the caller's idempotency key; ``None``: each call sends it once more.

    Returns:
        The id of the new row. If the key was used before, it is the id of the first call's row. ``None``: no delivered row has
        this id, or its origin cannot be read.

    Raises:
        StorageUnavailable: the database failed; nothing was written.
    """
    if not is_id(row_id):
        return None
    found = select(outbox.c.organization_id, outbox.c.event_id).where(outbox.c.id == row_id, DELIVERED)
    if organization_id is not None:
        found = found.where(outbox.c.organization_id == organization_id)

    def copy(connection: Connection, organization: Any) -> str | None:
        copies = send_again(database, connection, [row_id])
        if not copies:
            return None
        entry = Entry(
            who=who,
            action="resend",
            organization_id=organization,
            delivery_id=row_id,
            reason=reason,
            number=1,
        )
        connection.execute(recording(database, entry))
        return copies[0].id

    async with database.write() as connection:
        # Calls with the same key wait here for each other: the key belongs to this row.
        rows = (await connection.execute(found.with_for_update())).all()
        if not rows:
            return None
        used = None if once is None else await once.keys.find(once.owner, once.key, connection)
        if used is not None:
            return used.delivery_id
        sent = await connection.run_sync(copy, rows[0].organization_id)
        if sent is not None and once is not None:
            await once.keys.use(once.owner, once.key, sent, rows[0].event_id, connection)
        return sent


def resent_as(connection: Connection, row: Any) -> list[Resent]:
    """Return the rows that were sent again from a row, the newest first.

    Args:
        connection: an open one.
        row: the row, with its id, organization and event.
    """
    # Without an order: PostgreSQL then reads the rows of the event, and not those of the organization in order.
    query = (
        select(outbox.c.id, outbox.c.status, outbox.c.created_at)
        .where(
            outbox.c.event_id == row.event_id,
            outbox.c.organization_id == row.organization_id,
            outbox.c.origin.contains(f'"{RESENT_FROM}":"{row.id}"'),
        )
        .limit(inline(MOST_RESENT))
    )
    found = [each for each in connection.execute(query).all() if is_id(each.id)]
    return [
        Resent(each.id, each.status, each.created_at)
        for each in sorted(found, key=lambda each: each.id, reverse=True)
    ]
