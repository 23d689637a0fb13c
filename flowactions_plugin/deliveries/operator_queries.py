"""What operators see of one database. Each query reads a bounded number of rows, however many there are."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple, Self, TypeAlias, TypeVar

from msgspec.structs import replace
from sqlalchemy import Row, literal, select
from sqlalchemy.engine import Connection

from flowactions_plugin.chat.store import troubled
from flowactions_plugin.clock import is_id
from flowactions_plugin.deliveries import inbound_queries, search
from flowactions_plugin.deliveries.explain import why_not_sent
from flowactions_plugin.deliveries.filters import Filter
from flowactions_plugin.deliveries.resend import resent_as
from flowactions_plugin.deliveries.results import (
    ActionState,
    AuditEntry,
    ChatConnection,
    Found,
    InboundPage,
    Page,
    Pause,
)
from flowactions_plugin.deliveries.search_queries import DeliverySearch, merged
from flowactions_plugin.deliveries.views import entry_of, facts_of, pause_of, struct_of
from flowactions_plugin.errors import FilterInvalid
from flowactions_plugin.health.results import Counted, Overview
from flowactions_plugin.health.status import COUNT_LIMIT, SHOWN, QueueStatus
from flowactions_plugin.health.status_queries import HealthQueries, count_up_to, of_scope
from flowactions_plugin.http.masking import reason_for_tenants
from flowactions_plugin.operators.scope import Actor, Scope
from flowactions_plugin.queue.claims import PREFIX_DIGITS, is_token_of, token_prefix
from flowactions_plugin.settings.model import Settings
from flowactions_plugin.storage.database import Database
from flowactions_plugin.storage.dialect import inline
from flowactions_plugin.storage.retention import DAY_MS
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

T = TypeVar("T")

Unreadable: TypeAlias = Callable[[str, bytes], str | None]
"""An organization and its sealed chat token → the code of why a process cannot use it."""

SEARCH_COUNT_LIMIT: Final = 2500
"""Up to how many rows a search counts: each may be on another page of the table."""

MOST_ATTEMPTS: Final = 200
"""Of a delivery, so many attempts are shown at the most, the last ones; replays make any number."""

AUDIT_SHOWN: Final = 50
"""How many entries of the audit are shown with a delivery."""


class OperatorQueries:
    """What the JSON routes, the pages and the commands show of one database.

    Args:
        database: which.
        status: how its deliveries stand.

    Attributes:
        status: the same.
    """

    def __init__(self, database: Database, status: QueueStatus | None = None) -> None:
        self._database = database
        self.status = status or QueueStatus(database)
        self._search = DeliverySearch(database.sql)
        self._health = HealthQueries(database)

    @classmethod
    def of(cls, database: Database, settings: Settings, status: QueueStatus | None = None) -> Self:
        """Return the queries of a host with these settings."""
        return cls(database, status or QueueStatus.of(database, settings))

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
        inside = search.within(scope, wanted)
        if inside is None:
            return Page(rows=())
        position = search.read_cursor(before)
        reads = await self._read(lambda connection: self._search.read(connection, inside, position, limit))
        return merged(reads, limit, for_operators=scope.organization_id is None)

    async def count(self, scope: Scope, wanted: Filter, limit: int = SEARCH_COUNT_LIMIT) -> Counted:
        """Count deliveries, up to a limit, among some thousand rows where no index serves the filter.

        Raises:
            StorageUnavailable: the database failed.
        """
        return await self._read(lambda connection: self._search.counted(connection, scope, wanted, limit))

    async def delivery(self, scope: Scope, delivery_id: str) -> Found | None:
        """Return one delivery with everything that is known of it; ``None``: there is none within the scope.

        Raises:
            StorageUnavailable: the database failed.
        """
        detail = await self.detail(delivery_id, scope.organization_id) if is_id(delivery_id) else None
        if detail is None:
            return None
        row, log = detail

        def read(connection: Connection) -> Found:
            now = int(connection.execute(select(self._database.now())).scalar_one())
            workers = self._health.workers(connection, now)
            facts, attempts = facts_of(
                row,
                log,
                now,
                for_operators=scope.organization_id is None,
                workers={token_prefix(each.id): each.name for each in workers},
            )
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
                limited_since=self._health.limited(connection, now).get(facts.destination),
            )
            audited = _audited(connection, scope, delivery_id, facts.action_id)
            return Found(
                row=facts,
                attempts=attempts,
                audit=audited,
                pause=pause,
                action=action,
                why=why,
                resent_as=resent_as(connection, row),
            )

        return await self._read(read)

    async def detail(self, row_id: str, organization_id: str | None) -> tuple[Row[Any], Sequence[Any]] | None:
        """Return a row of this organization, or of any, with its last `MOST_ATTEMPTS`; ``None`` when there is none.

        The attempt that has delivered it is kept in the row, and is the last of those that are returned.
        """
        one = select(*outbox.c).where(outbox.c.id == row_id)
        if organization_id is not None:
            one = one.where(outbox.c.organization_id == organization_id)
        made = select(*attempts.c).where(attempts.c.delivery_id == row_id)
        made = made.order_by(attempts.c.number.desc()).limit(inline(MOST_ATTEMPTS))
        async with self._database.read() as connection:
            rows = (await connection.execute(one)).all()
            if not rows:
                return None
            tried: list[Any] = [*(await connection.execute(made)).all()][::-1]
        last = _delivering(rows[0])
        if last is not None and all(each.number != last.number for each in tried):
            tried.append(last)
        return rows[0], tried

    async def overview(self, scope: Scope, shown: int = SHOWN) -> Overview:
        """Return how deliveries stand.

        Args:
            scope: whose.
            shown: how many destinations, flows, nodes and deliveries in quarantine are named of each kind.

        Raises:
            StorageUnavailable: the database failed.
        """
        refusal = await self.status.writes.refused()

        def read(connection: Connection) -> Overview:
            dead = self._search.counted(connection, scope, Filter(status="dead"), COUNT_LIMIT)
            found = self.status.overview(connection, scope, refusal, dead, shown)
            chat = self._troubled_connections(connection, scope)
            if scope.organization_id is None:
                inbound = inbound_queries.failing(connection, self._database.time_on(connection))
                return replace(found, chat=chat, inbound=inbound)
            blocked = [replace(each, reason=reason_for_tenants(each.reason, "")) for each in found.blocked]
            return replace(found, chat=chat, blocked=blocked)

        return await self._read(read)

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
        return await self._read(lambda connection: inbound_queries.page(connection, event_id, cursor, limit))

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

    def _troubled_connections(self, connection: Connection, scope: Scope) -> Counted:
        """Count chat connections that are revoked, or whose last message could not be sent within the last day."""
        since = self._database.time_on(connection) - DAY_MS
        conditions = (troubled(since), *of_scope(chat_connections, scope))
        rows = select(literal(1)).select_from(chat_connections).where(*conditions)
        return count_up_to(connection, rows, COUNT_LIMIT)

    async def _read(self, work: Callable[[Connection], T]) -> T:
        async with self._database.read() as connection:
            return await connection.run_sync(work)


class _Delivering(NamedTuple):
    """The attempt that has delivered a row, as a row of the attempts log."""

    number: Any
    started_at: Any
    duration_ms: Any
    status_code: Any
    error: Any
    response: Any
    phases: Any
    worker: str | None


def _delivering(row: Row[Any]) -> _Delivering | None:
    """Return the attempt that is kept in a row; ``None`` when there is none."""
    if row.delivered_started_at is None:
        return None
    counts = (row.attempts, row.earlier_attempts)
    return _Delivering(
        sum(counts),
        row.delivered_started_at,
        row.delivered_duration_ms,
        row.last_status_code,
        row.last_error,
        row.delivered_response,
        row.delivered_phases,
        row.settled_token and row.settled_token[:PREFIX_DIGITS],
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


def _action(connection: Connection, scope: Scope, action_id: str | None) -> ActionState | None:
    if action_id is None:
        return None
    query = select(*(actions.c[name] for name in ActionState.__struct_fields__)).where(
        actions.c.id == action_id
    )
    found = connection.execute(query).all()
    if not found:
        return None
    state = struct_of(found[0], ActionState)
    who = scope.shown(Actor(state.actor_id, state.actor_name, state.actor_role))
    return replace(state, actor_id=who.id, actor_name=who.name, actor_role=who.role)


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
    # Of an operator's action on rows of all organizations, an organization sees who and why, not which rows nor how many.
    newest = [entries[each] for each in sorted(entries, reverse=True)[:AUDIT_SHOWN]]
    return [
        each
        if scope.allows(each.organization_id)
        else replace(each, actor_id="", filter=None, number=None, before=None)
        for each in newest
    ]
