"""What people do to deliveries: make dead ones due again, end those that wait, delete dead ones.

A cancellation ends also what a worker has claimed. If the worker has not begun it, it gives it back within `WITHDRAWN_SECONDS`. If
its request is on its way, it ends as delivered if it is answered so; until then its reason says that it may be.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, Final, Literal, TypeAlias

from sqlalchemy import (
    ColumnElement,
    Delete,
    Row,
    Select,
    TextClause,
    Update,
    case,
    delete,
    func,
    null,
    or_,
    select,
    update,
)
from sqlalchemy.engine import Connection
from sqlalchemy.sql.dml import ReturningUpdate

from flowactions_plugin.errors import StorageUnavailable
from flowactions_plugin.insights.standing import of_scope
from flowactions_plugin.log_text import storable
from flowactions_plugin.operators.audit import Entry, recording
from flowactions_plugin.operators.scope import Actor, Scope
from flowactions_plugin.queue.delivery_telemetry import log_dead
from flowactions_plugin.queue.outcomes import CLEARED, MAY_BE_SENT
from flowactions_plugin.queue.rules import CHAT_HOURS, HELD_SECONDS
from flowactions_plugin.queue.sequences import release
from flowactions_plugin.storage.database import Database, Transaction
from flowactions_plugin.storage.dialect import inline
from flowactions_plugin.storage.schema import BEHIND_MS, LIVE, UNDELIVERED, attempts, outbox
from flowactions_plugin.storage.waiting import repeated

Change: TypeAlias = Literal["retry", "cancel", "delete"]

WITHDRAWN_SECONDS: Final = 2 * HELD_SECONDS
"""How long after the end of a claimed row its worker may still begin it."""

_BEFORE: Final = (
    "organization_id",
    "destination",
    "event_id",
    "event_type",
    "status",
    "attempts",
    "earlier_attempts",
    "error_class",
    "created_at",
    "finished_at",
)
"""What the audit keeps of a row that was changed by itself."""


def changeable(kind: Change) -> tuple[ColumnElement[bool] | TextClause, ...]:
    """Return the conditions on rows that something can be done to, so that an index serves them."""
    return LIVE if kind == "cancel" else outbox.c.status == inline("dead"), UNDELIVERED


def requeueing(
    database: Database, rows: ColumnElement[bool], *, reset_attempts: bool, action_id: Any = None
) -> Update:
    """Write the statement that makes dead rows due now (§4.3).

    Args:
        database: where.
        rows: which rows.
        reset_attempts: whether each has all of its attempts again; if not, each gets one.
        action_id: the bulk action that does it.
    """
    now = database.now()
    requeued = (
        update(outbox)
        .where(rows, outbox.c.status == inline("dead"))
        .values(
            **CLEARED,
            status="pending",
            # While a claim of before its end holds, its request may be on the way: as a row that is due, it holds its sequence up.
            next_attempt_at=case(
                (or_(outbox.c.sequence.is_(None), outbox.c.claimed_until > now), now), else_=inline(BEHIND_MS)
            ),
            updated_at=now,
            finished_at=null(),
            action_id=action_id,
            expires_at=case((outbox.c.expires_at.is_not(None), now + CHAT_HOURS * 3_600_000), else_=null()),
        )
    )
    if reset_attempts:
        total = outbox.c.earlier_attempts + outbox.c.attempts
        requeued = requeued.values(attempts=0, earlier_attempts=total)
    return requeued


def ending(
    database: Database, rows: ColumnElement[bool], reason: str, action_id: Any = None
) -> ReturningUpdate[Any]:
    """Write the statement that ends rows, and returns each, and whether a worker has claimed it: its claim stays."""
    now = database.now()
    told = storable(reason) or ""
    return (
        update(outbox)
        .where(rows, *changeable("cancel"))
        .values(
            **CLEARED,
            status="dead",
            last_error=case((outbox.c.claimed_by.is_(None), told), else_=told + MAY_BE_SENT),
            error_class="cancelled",
            # What is behind it waits until its claim has ended: its request may be on the way.
            next_attempt_at=func.coalesce(outbox.c.claimed_until, now),
            updated_at=now,
            finished_at=now,
            action_id=action_id,
        )
        .returning(outbox.c.id, outbox.c.attempts, outbox.c.claimed_by.is_not(None).label("claimed"))
    )


async def end_messages(
    database: Database, transaction: Transaction, organization_id: str, reason: str
) -> Sequence[Row[Any]]:
    """End an organization's chat messages that wait; return their nodes and bodies.

    What is being written just now is passed over: its worker finds that there is no connection any more.
    """
    waiting = select(outbox.c.id).where(
        outbox.c.organization_id == organization_id,
        outbox.c.expires_at.is_not(None),
        outbox.c.claimed_by.is_(None),
        *changeable("cancel"),
    )
    waiting = waiting.order_by(outbox.c.id).with_for_update(skip_locked=True)
    ended = ending(database, outbox.c.id.in_(waiting), reason).returning(outbox.c.node_id, outbox.c.body)
    return (await transaction.execute(ended)).all()


def deleting(rows: ColumnElement[bool]) -> tuple[Delete, Delete]:
    """Write the statements that delete dead rows: first their attempts, then themselves."""
    dead = (rows, *changeable("delete"))
    logged = delete(attempts).where(attempts.c.delivery_id.in_(select(outbox.c.id).where(*dead)))
    return logged, delete(outbox).where(*dead)


@repeated
async def change_one(
    database: Database,
    kind: Change,
    row_id: str,
    scope: Scope,
    who: Actor,
    reason: str = "",
    *,
    reset_attempts: bool = False,
) -> bool:
    """Do something to one delivery, and write it to the audit in the same transaction; see `Operations.one`."""
    this = outbox.c.id == row_id
    found: Select[Any] = select(*(outbox.c[name] for name in (*_BEFORE, "claimed_by", "sequence")))
    found = found.where(this, *changeable(kind), *of_scope(outbox, scope))

    def change(connection: Connection) -> Row[Any] | None:
        rows: Sequence[Row[Any]] = connection.execute(found.with_for_update()).all()
        if not rows:
            return None
        if kind == "retry":
            connection.execute(requeueing(database, this, reset_attempts=reset_attempts))
        elif kind == "cancel":
            connection.execute(ending(database, this, reason)).all()
        else:
            for statement in deleting(this):
                connection.execute(statement)
        before = {name: getattr(rows[0], name) for name in _BEFORE}
        entry = Entry(
            who=who,
            action=kind,
            organization_id=str(before["organization_id"]),
            delivery_id=row_id,
            reason=reason,
            number=1,
            before=before,
        )
        connection.execute(recording(database, entry))
        return rows[0]

    async with database.write() as connection:
        row = await connection.run_sync(change)
    if row is not None and row.sequence is not None:
        with suppress(StorageUnavailable):  # a look of a worker does it
            await release(database, [row.sequence])
    if row is not None and kind == "cancel":
        log_dead(row_id, row.destination, reason)
        if row.claimed_by is not None:
            await asyncio.sleep(WITHDRAWN_SECONDS)
    return row is not None
