"""What operators see of one database. Each query reads a bounded number of rows, however many there are."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any, Final, TypeAlias

from msgspec.structs import replace
from sqlalchemy import Row, select, tuple_
from sqlalchemy.engine import Connection

from flowactions_plugin.clock import is_id
from flowactions_plugin.errors import FilterInvalid
from flowactions_plugin.insights import inbound as events
from flowactions_plugin.insights import search
from flowactions_plugin.insights.explain import why_not_sent
from flowactions_plugin.insights.filters import Filter
from flowactions_plugin.insights.inbound import InboundPage
from flowactions_plugin.insights.results import (
    Action,
    AuditEntry,
    ChatConnection,
    Counted,
    DeliveryDetail,
    Found,
    Page,
    Pause,
    Resent,
)
from flowactions_plugin.insights.search import SEARCH_COUNT_LIMIT
from flowactions_plugin.insights.standing import of_scope, workers_of
from flowactions_plugin.insights.status import QueueStatus
from flowactions_plugin.insights.views import RESENT_FROM, action_of, detail_of, entry_of, pause_of, struct_of
from flowactions_plugin.operators.scope import Scope
from flowactions_plugin.queue.claims import PREFIX_DIGITS, is_token_of, token_prefix
from flowactions_plugin.storage.dialect import inline
from flowactions_plugin.storage.schema import (
    AUDITED_ACTION,
    AUDITED_DELIVERY,
    EVERY_ORGANIZATION,
    actions,
    attempts,
    audit,
    chat_connections,
    outbox,
    pauses,
)

Unreadable: TypeAlias = Callable[[str, bytes], str | None]
"""An organization and its sealed chat token → the code of why a process cannot use it."""

MOST_ATTEMPTS: Final = 200
"""Of a delivery, so many attempts are shown at the most, the last ones; replays make any number."""

MOST_RESENT: Final = 1000
"""How many of the rows that were sent again from one are read."""

AUDIT_SHOWN: Final = 50
"""How many entries of the audit are shown with a delivery."""


class Insights(QueueStatus):
    """What the JSON routes, the pages and the commands show of one database."""

    async def deliveries(self, scope: Scope, wanted: Filter, before: str | None, limit: int) -> Page:
        """Return a page of deliveries, newest first.

        A search that no index serves (decision 33) reads back some thousand rows, and says how far: the next page goes on
        there. So a page may have few rows, or none, although there are older ones.

        Args:
            scope: what may be seen.
            wanted: which.
            before: `Page.next_cursor` of the page before; ``None``: the first page.
            limit: rows at the most.

        Raises:
            FilterInvalid: ``before`` is no cursor of this search.
            StorageUnavailable: the database failed.
        """
        return await self._read(lambda connection: search.page(connection, scope, wanted, before, limit))

    async def count(self, scope: Scope, wanted: Filter, limit: int = SEARCH_COUNT_LIMIT) -> Counted:
        """Count deliveries, up to a limit, among some thousand rows where no index serves the filter.

        Raises:
            StorageUnavailable: the database failed.
        """
        return await self._read(lambda connection: search.counted(connection, scope, wanted, limit))

    async def delivery(self, scope: Scope, delivery_id: str) -> Found | None:
        """Return one delivery with everything that is known of it; ``None``: there is none within the scope.

        Raises:
            StorageUnavailable: the database failed.
        """

        def read(connection: Connection) -> Found | None:
            stored = _stored(connection, scope, delivery_id)
            if stored is None:
                return None
            row, log = stored
            now = self._database.time_on(connection)
            workers, limited = workers_of(connection, now)
            names = {token_prefix(each.id): each.name for each in workers}
            facts = detail_of(row, log, now, for_operators=scope.organization_id is None, workers=names)
            pause = _pause(connection, scope, row)
            holder = next((each for each in workers if is_token_of(row.claimed_by, each.id)), None)
            if holder is not None and scope.organization_id is not None:
                # Names of machines are the operators'.
                holder = replace(holder, name="")
            action = _action(connection, scope, facts.action_id)
            why = why_not_sent(
                facts,
                pause,
                now,
                workers=workers,
                holder=holder,
                limited_since=limited.get(facts.destination),
            )
            audited = _audited(connection, scope, delivery_id, facts.action_id)
            return Found(
                row=facts,
                audit=audited,
                pause=pause,
                action=action,
                why=why,
                resent_as=_resent_as(connection, row),
            )

        return await self._read(read)

    async def detail(self, scope: Scope, delivery_id: str) -> DeliveryDetail | None:
        """Return one delivery with its attempts; ``None``: there is none within the scope.

        Raises:
            StorageUnavailable: the database failed.
        """

        def read(connection: Connection) -> DeliveryDetail | None:
            stored = _stored(connection, scope, delivery_id)
            if stored is None:
                return None
            now = self._database.time_on(connection)
            return detail_of(*stored, now, for_operators=scope.organization_id is None)

        return await self._read(read)

    @property
    def refusal(self) -> str | None:
        """Why the database takes no writes, as far as is known; ``None``: it does."""
        refused = self._database.refused
        return None if refused is None else refused.words

    async def connections(
        self, scope: Scope, unreadable: Unreadable, after: str = "", limit: int = 100
    ) -> list[ChatConnection]:
        """Return chat connections, by organization, without their tokens.

        Args:
            scope: what may be seen.
            unreadable: says why a token cannot be used in this process.
            after: the last organization of the page before.
            limit: how many at the most.

        Raises:
            StorageUnavailable: the database failed.
        """
        table = chat_connections
        query = select(*(table.c[name] for name in ChatConnection.__struct_fields__), table.c.sealed_token)
        query = query.where(table.c.organization_id > after).order_by(table.c.organization_id)
        if scope.organization_id is not None:
            query = query.where(table.c.organization_id == scope.organization_id)
        rows = await self._read(lambda connection: connection.execute(query.limit(inline(limit))).all())
        found = []
        for row in rows:
            shown = struct_of(row, ChatConnection, leaves_out=("sealed_token",))
            reason = unreadable(shown.organization_id, row.sealed_token) if shown.status == "active" else None
            found.append(shown if reason is None else replace(shown, status="unusable", status_reason=reason))
        return found

    async def inbound(self, scope: Scope, event_id: str | None, cursor: str | None, limit: int) -> InboundPage:
        """Return inbound events, the latest first. They belong to no organization: a principal sees none.

        Args:
            scope: what may be seen.
            event_id: only this event; ``None``: any.
            cursor: `InboundPage.next_cursor` of the page before; ``None``: the first page.
            limit: events at the most.

        Raises:
            FilterInvalid: the id is too long, or ``cursor`` is no cursor of this list.
            StorageUnavailable: the database failed.
        """
        if scope.organization_id is not None:
            return InboundPage()
        return await self._read(lambda connection: events.page(connection, event_id, cursor, limit))

    async def action(self, scope: Scope, action_id: str) -> Action | None:
        """Return a bulk action; ``None``: there is none in this scope.

        Raises:
            StorageUnavailable: the database failed.
        """
        query = select(actions).where(actions.c.id == action_id, *of_scope(actions, scope))
        row = (
            await self._read(lambda connection: connection.execute(query).one_or_none())
            if is_id(action_id)
            else None
        )
        return None if row is None else action_of(row, scope)

    async def actions(self, scope: Scope, before: str | None = None, limit: int = 50) -> list[Action]:
        """Return bulk actions, the latest first.

        Args:
            scope: whose.
            before: only those older than the one with this id.
            limit: how many at the most.

        Raises:
            StorageUnavailable: the database failed.
        """
        query = (
            select(actions).where(*of_scope(actions, scope)).order_by(actions.c.id.desc()).limit(inline(limit))
        )
        if before is not None:
            query = query.where(actions.c.id < before)
        rows = await self._read(lambda connection: connection.execute(query).all())
        return [action_of(row, scope) for row in rows]

    async def pauses(self, scope: Scope, after: tuple[str, str] | None = None, limit: int = 50) -> list[Pause]:
        """Return what is paused: of an organization with what is paused for all, or everything.

        Args:
            scope: whose.
            after: organization and destination of the last of the page before.
            limit: how many at the most.

        Raises:
            StorageUnavailable: the database failed.
        """
        target = (pauses.c.organization_id, pauses.c.destination)
        query = (
            select(*(pauses.c[name] for name in Pause.__struct_fields__)).order_by(*target).limit(inline(limit))
        )
        if after is not None:
            query = query.where(tuple_(*target) > after)
        if scope.organization_id is not None:
            query = query.where(pauses.c.organization_id.in_([EVERY_ORGANIZATION, scope.organization_id]))
        rows = await self._read(lambda connection: connection.execute(query).all())
        return [pause_of(row, scope) for row in rows]

    async def audit(self, scope: Scope, before: str | None, limit: int) -> list[AuditEntry]:
        """Return who did what, the latest first.

        Args:
            scope: what may be seen: of an organization, what was done to its own.
            before: id of the last entry of the page before; ``None``: the first page.
            limit: how many at the most.

        Raises:
            FilterInvalid: ``before`` is no id.
            StorageUnavailable: the database failed.
        """
        if before is not None and not is_id(before):
            raise FilterInvalid("cursor: must be the id of an entry", "cursor")
        query = select(audit).order_by(audit.c.id.desc()).limit(inline(limit))
        if scope.organization_id is not None:
            query = query.where(audit.c.organization_id == scope.organization_id)
        if before is not None:
            query = query.where(audit.c.id < before)
        rows = await self._read(lambda connection: connection.execute(query).all())
        return [entry_of(row, scope) for row in rows]


def _stored(connection: Connection, scope: Scope, row_id: str) -> tuple[Row[Any], Sequence[Any]] | None:
    """Return a row with its last `MOST_ATTEMPTS`; ``None`` when there is none."""
    if not is_id(row_id):
        return None
    one = select(*outbox.c).where(outbox.c.id == row_id, *of_scope(outbox, scope))
    row = connection.execute(one).one_or_none()
    if row is None:
        return None
    made = select(*attempts.c).where(attempts.c.delivery_id == row_id)
    made = made.order_by(attempts.c.number.desc()).limit(inline(MOST_ATTEMPTS))
    log: list[Any] = [*connection.execute(made).all()][::-1]
    last = _delivering(row)  # the attempt that has delivered it is kept in the row
    if last is not None and all(each.number != last.number for each in log):
        log.append(last)
    return row, log


def _delivering(row: Row[Any]) -> SimpleNamespace | None:
    """Return the attempt that has delivered a row, as a row of the attempts log; ``None`` when there is none."""
    if row.delivered_started_at is None:
        return None
    return SimpleNamespace(
        number=row.attempts + row.earlier_attempts,
        started_at=row.delivered_started_at,
        duration_ms=row.delivered_duration_ms,
        status_code=row.last_status_code,
        error=row.last_error,
        response=row.delivered_response,
        phases=row.delivered_phases,
        worker=row.settled_token and row.settled_token[:PREFIX_DIGITS],
    )


def _pause(connection: Connection, scope: Scope, row: Row[Any]) -> Pause | None:
    """Return the pause of a delivery's destination; that of all organizations first."""
    query = (
        select(*(pauses.c[name] for name in Pause.__struct_fields__))
        .where(
            pauses.c.destination == row.destination,
            pauses.c.organization_id.in_([EVERY_ORGANIZATION, row.organization_id]),
        )
        .order_by(pauses.c.organization_id)
        .limit(inline(1))
    )
    found = connection.execute(query).all()
    return pause_of(found[0], scope) if found else None


def _action(connection: Connection, scope: Scope, action_id: str | None) -> Action | None:
    found = (
        connection.execute(select(actions).where(actions.c.id == action_id)).one_or_none()
        if action_id
        else None
    )
    if found is None:
        return None
    action = action_of(found, scope)
    # Of an operator's action on rows of all organizations, an organization sees who and why, not which rows nor how many.
    return (
        action if scope.allows(action.organization_id) else replace(action, filter=Filter(), counted=0, done=0)
    )


def _audited(connection: Connection, scope: Scope, delivery_id: str, action_id: str | None) -> list[AuditEntry]:
    """Return what was done to a delivery, by itself or with others, the latest first."""
    queries = [select(audit).where(AUDITED_DELIVERY, audit.c.delivery_id == delivery_id)]
    if action_id is not None:
        queries.append(select(audit).where(AUDITED_ACTION, audit.c.action_id == action_id))
    rows = [
        row
        for query in queries
        for row in connection.execute(query.order_by(audit.c.id.desc()).limit(inline(AUDIT_SHOWN))).all()
    ]
    entries = {row.id: entry_of(row, scope) for row in rows}
    newest = [entries[each] for each in sorted(entries, reverse=True)[:AUDIT_SHOWN]]
    return [
        each
        if scope.allows(each.organization_id)
        else replace(each, actor_id="", filter=None, number=None, before=None)
        for each in newest
    ]


def _resent_as(connection: Connection, row: Any) -> list[Resent]:
    """Return the rows that were sent again from a row, the newest first."""
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
