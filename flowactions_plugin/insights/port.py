"""What operators see of one database. Each query reads a bounded number of rows, however many there are."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from types import SimpleNamespace
from typing import Any, Final, TypeAlias, TypeVar

from msgspec.structs import replace
from sqlalchemy import Row, Select, select, tuple_
from sqlalchemy.engine import Connection

from flowactions_plugin.clock import is_id
from flowactions_plugin.errors import FilterInvalid, StorageUnavailable
from flowactions_plugin.insights import inbound as events
from flowactions_plugin.insights import search, standing
from flowactions_plugin.insights.facts import ABSENT_MS, Facts, summed
from flowactions_plugin.insights.failures import failing_nodes, failures
from flowactions_plugin.insights.filters import Filter
from flowactions_plugin.insights.findings import fails, findings_of, verdict_of, why_not_sent, worst_of
from flowactions_plugin.insights.inbound import InboundPage
from flowactions_plugin.insights.results import (
    Action,
    AuditEntry,
    Counted,
    DestinationState,
    Found,
    Overview,
    Page,
    Pause,
    Resent,
    Worker,
)
from flowactions_plugin.insights.search import SEARCH_COUNT_LIMIT
from flowactions_plugin.insights.standing import HOUR_BUCKETS, of_scope
from flowactions_plugin.insights.views import (
    RESENT_FROM,
    action_of,
    detail_of,
    entry_of,
    is_behind,
    pause_of,
    struct_of,
)
from flowactions_plugin.operators.scope import Scope
from flowactions_plugin.queue.claims import PREFIX_DIGITS, is_token_of, token_prefix
from flowactions_plugin.settings.model import Settings
from flowactions_plugin.storage.database import Database
from flowactions_plugin.storage.dialect import inline
from flowactions_plugin.storage.schema import (
    AUDITED_ACTION,
    AUDITED_DELIVERY,
    BEHIND_MS,
    EVERY_ORGANIZATION,
    LIVE,
    UNDELIVERED,
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

MOST_ATTEMPTS: Final = 200
"""Of a delivery, so many attempts are shown at the most, the last ones; replays make any number."""

MOST_RESENT: Final = 1000
"""How many of the rows that were sent again from one are read."""

READ_MORE_SECONDS: Final = 2.5
"""Beside those of `answering`: a page says within a few seconds that the database is locked."""

AUDIT_SHOWN: Final = 50
"""How many entries of the audit are shown with a delivery."""

SHOWN: Final = 10
"""How many destinations and nodes an overview names of each kind."""

_EVERYTHING: Final = Scope()


class Insights:
    """What the JSON routes, the pages, the commands and the metrics show of one database.

    In all methods, ``scope`` is what may be seen, ``limit`` how many are returned at the most, and ``after`` or ``before``
    where the page before has ended; ``None``: the first page. Each raises `StorageUnavailable` if the database fails.

    Args:
        database: which.
        settings: of its workers, and where alerts are sent.
        uptime_ms: returns for how long this process could have seen a worker, where none has ever been.
    """

    def __init__(
        self,
        database: Database,
        settings: Settings = Settings(),  # noqa: B008  immutable
        uptime_ms: Callable[[], int] = lambda: ABSENT_MS,
    ) -> None:
        self._database = database
        self._settings = settings
        self._uptime_ms = uptime_ms

    async def _read(self, work: Callable[[Connection], T]) -> T:
        """Read; when the database does not answer in time, ask it who keeps it from that."""
        try:
            async with self._database.answering(READ_MORE_SECONDS), self._database.read() as connection:
                return await connection.run_sync(work)
        except StorageUnavailable as exc:
            with suppress(StorageUnavailable):
                async with self._database.answering(), self._database.read() as connection:
                    exc.obstacle = await connection.run_sync(self._database.obstacle)
            if exc.obstacle is not None:
                exc.args = (f"{exc}: {exc.obstacle}",)
            raise

    async def _rows(self, query: Select[Any], limit: int) -> Sequence[Row[Any]]:
        return await self._read(lambda connection: connection.execute(query.limit(inline(limit))).all())

    @property
    def refusal(self) -> str | None:
        """Why the database takes no writes, as far as is known; ``None``: it does."""
        refused = self._database.refused
        return None if refused is None else refused.words

    async def overview(self, scope: Scope, shown: int = SHOWN) -> Overview:
        """Return how deliveries stand; ``shown`` is how many destinations and nodes are named of each kind."""

        def read(connection: Connection) -> Overview:
            facts = self._facts(connection, scope)
            failed = failures(connection, scope, facts.now, shown)
            failing = [each for each in facts.failing if fails(each, facts.now)]
            places = {each.destination for each in failing}
            facts = facts._replace(nodes=failing_nodes(connection, scope, failed.nodes, places))
            found = findings_of(facts)
            return struct_of(
                facts,
                Overview,
                oldest_due_ms=facts.oldest_due_ms or 0,
                hour=facts.buckets[-HOUR_BUCKETS:],
                day=[
                    summed(facts.buckets[start : start + HOUR_BUCKETS])
                    for start in range(0, len(facts.buckets), HOUR_BUCKETS)
                ],
                failing=standing.with_hour(connection, scope, facts.now, facts.limited, failing[:shown]),
                failures=failed,
                verdict=verdict_of(facts, found),
                findings=found,
                level=worst_of(found),
            )

        return await self._read(read)

    async def facts(self, scope: Scope = _EVERYTHING) -> Facts:
        """Return what the verdict and the gauges are made of."""
        return await self._read(lambda connection: self._facts(connection, scope))

    def _facts(self, connection: Connection, scope: Scope) -> Facts:
        return standing.read_facts(connection, self._database, scope, self._settings, self._uptime_ms())

    async def destinations(
        self, scope: Scope, limit: int, cursor: str | None = None
    ) -> tuple[list[DestinationState], str | None]:
        """Return a page of destinations to which something was sent, and the cursor of the next one; ``None``: it is the last.

        Those whose last attempt has failed come first, the latest failure first, and then all others by organization and
        name. A page may be short, because it passes over what was on an earlier one.

        Raises:
            FilterInvalid: ``cursor`` is none of this list.
        """

        def read(connection: Connection) -> tuple[list[DestinationState], str | None]:
            now = self._database.time_on(connection)
            _, limited = standing.workers_of(connection, scope, now)
            found, following = standing.listed(connection, scope, now, limited, limit, cursor)
            return standing.with_depth(connection, self._database, scope, found), following

        return await self._read(read)

    async def workers(self) -> list[Worker]:
        """Return the processes that deliver, those seen last first."""
        return await self._read(
            lambda connection: standing.workers_of(connection, _EVERYTHING, self._database.time_on(connection))[
                0
            ]
        )

    async def deliveries(self, scope: Scope, wanted: Filter, before: str | None, limit: int) -> Page:
        """Return a page of deliveries, newest first.

        A search that no index serves (decision 33) reads back some thousand rows, and says how far: the next page goes on
        there. So a page may have few rows, or none, although there are older ones.

        Raises:
            FilterInvalid: ``before`` is no `Page.next_cursor` of this search.
        """
        return await self._read(
            lambda connection: search.page(connection, self._database, scope, wanted, before, limit)
        )

    async def bodies(self, scope: Scope, ids: Sequence[str]) -> dict[str, str]:
        """Return the stored bodies of deliveries by their ids."""
        query = select(outbox.c.id, outbox.c.body).where(outbox.c.id.in_(ids), *of_scope(outbox, scope))
        rows = await self._rows(query, len(ids)) if ids else ()
        return {row.id: bytes(row.body or b"").decode("utf-8", "replace") for row in rows}

    async def count(self, scope: Scope, wanted: Filter, limit: int = SEARCH_COUNT_LIMIT) -> Counted:
        """Count deliveries, up to a limit, among some thousand rows where no index serves the filter."""
        return await self._read(
            lambda connection: search.counted(connection, self._database, scope, wanted, limit)
        )

    async def delivery(self, scope: Scope, delivery_id: str) -> Found | None:
        """Return one delivery with everything that is known of it; ``None``: there is none within the scope."""

        def read(connection: Connection) -> Found | None:
            stored = _stored(connection, scope, delivery_id)
            if stored is None:
                return None
            row, log = stored
            now = self._database.time_on(connection)
            workers, limited = standing.workers_of(connection, scope, now)
            names = {token_prefix(each.id): each.name for each in workers}
            facts = detail_of(row, log, now, names, for_operators=scope.reads_inner)
            pause = _pause(connection, scope, row)
            before = _before(connection, row)
            holder = next((each for each in workers if is_token_of(row.claimed_by, each.id)), None)
            if holder is not None and not scope.reads_inner:
                # Names of machines are the operators'.
                holder = replace(holder, name="")
            since = limited.get(facts.organization_id, {}).get(facts.destination)
            refused = self._database.refused
            return Found(
                row=facts,
                audit=_audited(connection, scope, delivery_id, facts.action_id),
                pause=pause,
                action=_action(connection, scope, facts.action_id),
                why=why_not_sent(
                    facts,
                    pause,
                    now,
                    workers=workers,
                    holder=holder,
                    limited_since=since,
                    refusal=None if refused is None else refused.words,
                    before=before,
                ),
                before=before,
                resent_as=_resent_as(connection, row),
            )

        return await self._read(read)

    async def connections(
        self, scope: Scope, unreadable: Unreadable, after: str = "", limit: int = 100
    ) -> list[SimpleNamespace]:
        """Return chat connections, by organization, as their rows are, but without tokens.

        Args:
            scope: whose.
            unreadable: says why a token cannot be used in this process: the connection's status is ``unusable`` then.
            after: the last organization of the page before.
            limit: how many at the most.
        """
        table = chat_connections
        query = select(table).where(table.c.organization_id > after, *of_scope(table, scope))
        found = []
        for row in await self._rows(query.order_by(table.c.organization_id), limit):
            reason = unreadable(row.organization_id, row.sealed_token) if row.status == "active" else None
            others = {} if reason is None else {"status": "unusable", "status_reason": reason}
            found.append(SimpleNamespace(**{**row._mapping, "sealed_token": None, **others}))  # noqa: SLF001  public
        return found

    async def inbound(self, scope: Scope, event_id: str | None, cursor: str | None, limit: int) -> InboundPage:
        """Return inbound events, the latest first. They belong to no organization: a principal sees none.

        Args:
            scope: whose.
            event_id: only this event; ``None``: any.
            cursor: `InboundPage.next_cursor` of the page before; ``None``: the first page.
            limit: events at the most.

        Raises:
            FilterInvalid: the id is too long, or ``cursor`` is no cursor of this list.
        """
        if scope.organization_id is not None:
            return InboundPage()
        return await self._read(lambda connection: events.page(connection, event_id, cursor, limit))

    async def action(self, scope: Scope, action_id: str) -> Action | None:
        """Return a bulk action; ``None``: there is none in this scope."""
        query = select(actions).where(actions.c.id == action_id, *of_scope(actions, scope))
        found = await self._rows(query, 1) if is_id(action_id) else ()
        return action_of(found[0], scope) if found else None

    async def actions(self, scope: Scope, before: str | None = None, limit: int = 50) -> list[Action]:
        """Return bulk actions, the latest first; ``before`` is the id of one."""
        query = select(actions).where(*of_scope(actions, scope)).order_by(actions.c.id.desc())
        if before is not None:
            query = query.where(actions.c.id < before)
        return [action_of(row, scope) for row in await self._rows(query, limit)]

    async def pauses(self, scope: Scope, after: tuple[str, str] | None = None, limit: int = 50) -> list[Pause]:
        """Return what is paused, by organization and destination; for one organization, as `standing.pauses_of` says."""
        target = (pauses.c.organization_id, pauses.c.destination)
        query = select(pauses).where(*standing.pauses_of(scope)).order_by(*target)
        if after is not None:
            query = query.where(tuple_(*target) > after)
        return [pause_of(row, scope) for row in await self._rows(query, limit)]

    async def audit(self, scope: Scope, before: str | None, limit: int) -> list[AuditEntry]:
        """Return who did what, the latest first: of an organization, what was done to its own.

        Raises:
            FilterInvalid: ``before`` is no id of an entry.
        """
        if before is not None and not is_id(before):
            raise FilterInvalid("cursor: must be the id of an entry", "cursor")
        query = select(audit).where(*of_scope(audit, scope)).order_by(audit.c.id.desc())
        if before is not None:
            query = query.where(audit.c.id < before)
        return [entry_of(row, scope) for row in await self._rows(query, limit)]


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


def _before(connection: Connection, row: Row[Any]) -> str | None:
    """Return the delivery that has to end before a row is due; ``None``: it does not wait for another."""
    if not is_behind(row):
        return None
    mine = (outbox.c.sequence == row.sequence, LIVE, UNDELIVERED)
    due = select(outbox.c.id).where(*mine, outbox.c.next_attempt_at < inline(BEHIND_MS)).limit(1)
    first = (
        select(outbox.c.id).where(*mine, outbox.c.position < row.position).order_by(outbox.c.position).limit(1)
    )
    found = connection.execute(due).scalar() or connection.execute(first).scalar()
    return None if found is None else str(found)


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
        select(pauses)
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
        action
        if scope.allows(action.organization_id)
        else replace(action, filter="", counted=0, done=0, sent=0)
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
