"""Everything that is known of one delivery."""

from __future__ import annotations

from typing import Any, Final

import msgspec
from sqlalchemy import Row, and_, case, func, or_, select
from sqlalchemy.engine import Connection

from flowactions_plugin.clock import is_id
from flowactions_plugin.deliveries.explain import why_not_sent
from flowactions_plugin.deliveries.operator_views import entry_of, facts_of, pause_of, struct_of
from flowactions_plugin.deliveries.queries import OutboxQueries
from flowactions_plugin.deliveries.results import ActionState, AuditEntry, Found, Pause
from flowactions_plugin.health.results import Counted
from flowactions_plugin.health.status_queries import HealthQueries
from flowactions_plugin.operators.scope import Actor, Scope
from flowactions_plugin.queue.due import free
from flowactions_plugin.queue.rules import UNDO_OFFSET_MS
from flowactions_plugin.queue.tokens import is_token_of
from flowactions_plugin.storage.database import Database
from flowactions_plugin.storage.dialect import inline
from flowactions_plugin.storage.schema import (
    AUDITED_ACTION,
    AUDITED_DELIVERY,
    EVERY_ORGANIZATION,
    LIVE,
    actions,
    audit,
    outbox,
    pauses,
)
from flowactions_plugin.storage.text import read_all, stored

AUDIT_SHOWN: Final = 50
"""How many entries of the audit are shown with a delivery."""

AHEAD_READ: Final = 1000
"""Among how many of the oldest rows those are counted that are claimed before a delivery, or are in flight."""


class DeliveryQueries:
    """The deliveries of one database, one by one.

    Args:
        database: which.
        destination_limit: attempts to one destination at once, in each worker; ``None``: no limit.
    """

    def __init__(self, database: Database, destination_limit: int | None) -> None:
        self._database = database
        self._destination_limit = destination_limit
        self._outbox = OutboxQueries(database)
        self._health = HealthQueries(database)

    async def found(self, scope: Scope, delivery_id: str) -> Found | None:
        """Return a delivery; see `OperatorQueries.delivery`."""
        detail = await self._outbox.detail(delivery_id, scope.organization_id) if is_id(delivery_id) else None
        if detail is None:
            return None
        row, log = detail

        def read(connection: Connection) -> Found:
            now = int(connection.execute(select(self._database.now())).scalar_one())
            facts, attempts = facts_of(row, log, now, for_operators=scope.organization_id is None)
            pause = _pause(connection, scope, row)
            workers = self._health.workers(connection, now)
            holder = next((each for each in workers if is_token_of(row.claimed_by, each.id)), None)
            ahead, in_flight = self._ahead(connection, row, facts.due_at)
            action = _action(connection, scope, facts.action_id)
            why = why_not_sent(
                facts,
                pause,
                now,
                workers=workers,
                holder=holder,
                ahead=ahead,
                in_flight=in_flight,
                limit=self._destination_limit,
                ended_by=action
                if type(row.next_attempt_at) is int and row.next_attempt_at >= UNDO_OFFSET_MS
                else None,
            )
            audited = _audited(connection, scope, delivery_id, facts.action_id)
            return Found(row=facts, attempts=attempts, audit=audited, pause=pause, action=action, why=why)

        async with self._database.read() as connection:
            return await connection.run_sync(read)

    def _ahead(self, connection: Connection, row: Row[Any], due_at: int | None) -> tuple[Counted, int]:
        """Return how many rows are claimed before this one, and how many attempts to its destination are in flight."""
        now = self._database.now()
        if due_at is None:
            return Counted(number=0, exact=True), 0
        due = (LIVE, outbox.c.next_attempt_at <= now)
        order = (outbox.c.next_attempt_at, outbox.c.id)
        columns = (*order, free(now).label("free"))
        head = select(*columns).where(*due).order_by(*order).limit(inline(AHEAD_READ)).subquery("head")
        older = or_(
            head.c.next_attempt_at < due_at, and_(head.c.next_attempt_at == due_at, head.c.id < stored(row.id))
        )
        read, number = connection.execute(
            select(func.count(), func.count(case((and_(head.c.free, older), 1)))).select_from(head)
        ).one()
        same = select(free(now).label("free")).where(*due, outbox.c.destination == stored(row.destination))
        mine = same.order_by(*order).limit(inline(AHEAD_READ)).subquery("mine")
        held = connection.execute(select(func.count(case((~mine.c.free, 1)))).select_from(mine)).scalar_one()
        return Counted(number=number, exact=read < AHEAD_READ or number < read), held


def _pause(connection: Connection, scope: Scope, row: Row[Any]) -> Pause | None:
    """Return the pause of a delivery's destination; that of all organizations first."""
    query = (
        select(*(pauses.c[name] for name in Pause.__struct_fields__))
        .where(
            pauses.c.destination == stored(row.destination),
            pauses.c.resumed_at.is_(None),
            pauses.c.organization_id.in_([EVERY_ORGANIZATION, stored(row.organization_id)]),
        )
        .order_by(pauses.c.organization_id)
        .limit(inline(1))
    )
    found = read_all(connection, query)
    return pause_of(found[0], scope) if found else None


def _action(connection: Connection, scope: Scope, action_id: str | None) -> ActionState | None:
    if action_id is None:
        return None
    query = select(*(actions.c[name] for name in ActionState.__struct_fields__)).where(
        actions.c.id == action_id
    )
    found = read_all(connection, query)
    if not found:
        return None
    state = struct_of(found[0], ActionState)
    who = scope.shown(Actor(state.actor_id, state.actor_name, state.actor_role))
    return msgspec.structs.replace(state, actor_id=who.id, actor_name=who.name, actor_role=who.role)


def _audited(connection: Connection, scope: Scope, delivery_id: str, action_id: str | None) -> list[AuditEntry]:
    """Return what was done to a delivery, by itself or with others, the latest first.

    Of what an operator did to rows of all organizations, an organization sees who did it and why, but neither to which rows
    nor to how many.
    """
    queries = [select(audit).where(AUDITED_DELIVERY, audit.c.delivery_id == delivery_id)]
    if action_id is not None:
        queries.append(select(audit).where(AUDITED_ACTION, audit.c.action_id == action_id))
    rows = [
        row
        for query in queries
        for row in read_all(connection, query.order_by(audit.c.id.desc()).limit(inline(AUDIT_SHOWN)))
    ]
    entries = {row.id: entry_of(row, scope) for row in rows}
    newest = [entries[each] for each in sorted(entries, reverse=True)[:AUDIT_SHOWN]]
    return [
        each
        if scope.allows(each.organization_id)
        else msgspec.structs.replace(each, actor_id="", filter=None, number=None, before=None)
        for each in newest
    ]
