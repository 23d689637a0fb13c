"""How deliveries stand, read on an open connection: each function is one statement, which reads a bounded number of rows."""

from __future__ import annotations

from collections.abc import Sequence
from operator import attrgetter
from typing import Any, Final

from msgspec.structs import replace
from sqlalchemy import (
    BigInteger,
    ColumnElement,
    Row,
    Select,
    and_,
    case,
    cast,
    column,
    exists,
    func,
    literal,
    or_,
    select,
    true,
    tuple_,
)
from sqlalchemy.engine import Connection

from flowactions_plugin.chat.store import troubled
from flowactions_plugin.egress.destination import parse_destination
from flowactions_plugin.errors import EgressRefused
from flowactions_plugin.http.masking import reason_for_tenants
from flowactions_plugin.insights.results import Bucket, Counted, DestinationState, Worker, counted_to
from flowactions_plugin.insights.search import is_paused
from flowactions_plugin.insights.verdict import (
    FAILING_MINUTES,
    Blocked,
    Facts,
    Share,
    attempts_of,
    mostly_fail,
)
from flowactions_plugin.insights.views import struct_of
from flowactions_plugin.operators.scope import AUTOMATIC, Scope
from flowactions_plugin.settings.model import Settings
from flowactions_plugin.storage.database import Database
from flowactions_plugin.storage.dialect import inline
from flowactions_plugin.storage.postgresql import Blocker
from flowactions_plugin.storage.retention import DAY_MS, HOUR_MS
from flowactions_plugin.storage.schema import (
    EVERY_ORGANIZATION,
    FAILING,
    FINISHED,
    LIVE,
    QUARANTINED,
    UNDELIVERED,
    chat_connections,
    destinations,
    inbound_events,
    inbound_requests,
    outbox,
    pauses,
    statistics,
    workers,
)
from flowactions_plugin.watch.fleet import STALE_MS, Limited, limited_of
from flowactions_plugin.watch.statistics import ALERT_FAILURES, ALERT_MS, BUCKET_MS, COUNTS, EVERY_DESTINATION

COUNT_LIMIT: Final = 10_000
"""Up to how many rows are counted that are due, wait or are dead; of those that wait, the ones that are due first."""

QUARANTINED_READ: Final = 1000
"""How many of the deliveries in quarantine are read at the most."""

MOST_WORKERS: Final = 1000

HOUR_BUCKETS: Final = HOUR_MS // BUCKET_MS

_DUE_FIRST: Final = (outbox.c.next_attempt_at, outbox.c.id)
"""The order of an index of the rows that wait."""


def top(rows: Select[Any], by: Sequence[str], **more: ColumnElement[Any]) -> Select[Any]:
    """Write the query that counts rows by some of their columns; it gives these, the ``number``, and further aggregates.

    Args:
        rows: a bounded number of rows, as an index gives them.
        by: the columns.
        more: aggregates over the rows' columns.
    """
    head = rows.subquery("head")
    grouped = [head.c[name] for name in by]
    aggregates = [each.label(name) for name, each in {"number": func.count(), **more}.items()]
    return select(*grouped, *aggregates).select_from(head).group_by(*grouped)


def read_facts(
    connection: Connection, database: Database, scope: Scope, settings: Settings, uptime_ms: int
) -> Facts:
    """Read how deliveries stand, as far as the verdict and the gauges need it."""
    sees_all = scope.organization_id is None
    rows = _numbers(connection, database, scope, _alerts_at(settings) if sees_all else None)
    first = rows[0]
    now, waiting = first.now, sum(row.number or 0 for row in rows)
    workers, limited = workers_of(connection, scope, now)
    buckets = _buckets(connection, scope, now)
    alerts, refusal = None, None if database.refused is None else database.refused.words
    # Names of processes and roles are the operators'.
    blockers, lacking = (database.blockers(connection), database.lacking(connection)) if sees_all else ((), ())
    refusal = obstacle_of(lacking, blockers) or refusal
    if first.alerts_destination is not None:
        alerts = DestinationState(
            destination=first.alerts_destination,
            organization_id=EVERY_ORGANIZATION,
            failing_since=first.alerts_failing_since,
            failures_in_row=first.alerts_failures_in_row,
            last_reason=first.alerts_last_reason or first.alerts_last_error,
        )
    return Facts(
        now=now,
        sees_all=sees_all,
        mode=settings.delivery,
        tick_seconds=settings.tick_seconds,
        uptime_ms=uptime_ms,
        refusal=refusal,
        blockers=blockers,
        lacking=lacking,
        due=Counted(number=min(first.due, COUNT_LIMIT), exact=first.due_read <= COUNT_LIMIT),
        oldest_due_ms=None if first.oldest_due_ms is None else max(0, first.oldest_due_ms),
        held_ms_ago=first.held_ms_ago,
        waiting=counted_to(COUNT_LIMIT, waiting),
        dead=counted_to(COUNT_LIMIT, first.dead),
        chat=counted_to(COUNT_LIMIT, first.chat),
        blocked=[
            Blocked(
                row.reason if sees_all else reason_for_tenants(row.reason, ""),
                Counted(number=row.number, exact=waiting <= COUNT_LIMIT),
                row.organizations,
                row.since,
            )
            for row in sorted(rows, key=lambda row: (-(row.number or 0), row.reason or ""))
            if row.reason is not None
        ],
        paused=(first.paused, first.paused_automatically),
        paused_since=first.paused_since,
        alerts=alerts,
        workers=workers,
        limited=limited,
        buckets=buckets,
        shares=_still_failing(connection, scope, now) if mostly_fail(*attempts_of(buckets)) else (),
        # Whose it is, an organization's people may not know.
        snapshot=database.oldest_snapshot(connection) if sees_all else None,
    )


def obstacle_of(lacking: Sequence[str], blockers: Sequence[Blocker]) -> str | None:
    """Return why nothing can be queued, claimed or completed now; ``None``: the rights and the locks do not keep it."""
    missing = [each for each in lacking if each.endswith(f" {outbox.name}")]
    if missing:
        return f"this process's role lacks {', '.join(missing)}"
    held = [each.words for each in blockers if outbox.name in each.places]
    return "; ".join(held) or None


def _alerts_at(settings: Settings) -> str | None:
    try:
        return None if settings.alerts_url is None else parse_destination(settings.alerts_url).key
    except EgressRefused:
        return None  # no host starts with it


def _numbers(connection: Connection, database: Database, scope: Scope, alerts_at: str | None) -> list[Row[Any]]:
    """Return the time, and how much is due, waits, is dead, is paused, cannot chat, and how alerts to operators arrive.

    Returns:
        These numbers in each row, beside one ``reason`` why deliveries wait for something here, without an attempt, with the
        ``number`` of deliveries and of ``organizations``, and ``since`` when; the reason ``None`` is of all others that wait.
    """
    now, mine = database.now(), of_scope(outbox, scope)
    free = or_(outbox.c.claimed_until.is_(None), outbox.c.claimed_until <= now)
    # SQLite would look for one organization's rows among all by their times, but not by those of an expression.
    at = outbox.c.next_attempt_at if scope.organization_id is None else outbox.c.next_attempt_at + 0
    due = (at <= now, ~is_paused(outbox.c.organization_id, outbox.c.destination))
    rows = _waiting(scope, outbox.c.next_attempt_at, outbox.c.updated_at, free.label("free"))
    head = rows.where(*due).subquery("due")
    # Each has an index of the state.
    dead = UNDELIVERED if scope.organization_id is not None else FINISHED
    counts = select(
        now.label("now"),
        func.count().label("due_read"),
        func.count(case((head.c.free, 1))).label("due"),
        (now - func.min(case((head.c.free, head.c.next_attempt_at)))).label("oldest_due_ms"),
        (now - func.max(case((~head.c.free, head.c.updated_at)))).label("held_ms_ago"),
        _up_to(outbox, outbox.c.status == inline("dead"), dead, *mine).label("dead"),
        _up_to(chat_connections, troubled(now - DAY_MS), *of_scope(chat_connections, scope)).label("chat"),
    ).select_from(head)
    paused = select(
        func.count().label("paused"),
        func.count(case((pauses.c.paused_role == inline(AUTOMATIC.role), 1))).label("paused_automatically"),
        func.min(pauses.c.paused_at).label("paused_since"),
    ).where(*pauses_of(scope))
    alerts = select(*(destinations.c[name].label(f"alerts_{name}") for name in _HEALTH)).where(
        destinations.c.organization_id == EVERY_ORGANIZATION,
        destinations.c.destination == alerts_at,
        FAILING,
    )
    waits = outbox.c.waiting_since.is_not(None)
    reason = case((waits, func.coalesce(outbox.c.last_error, ""))).label("reason")
    reasons = top(
        _waiting(scope, outbox.c.organization_id, reason, outbox.c.waiting_since),
        ("reason",),
        organizations=func.count(column("organization_id").distinct()),
        since=func.min(column("waiting_since")),
    )
    one, two, three, four = (each.subquery() for each in (counts, paused, alerts, reasons))
    joined = one.join(two, true()).join(three, true(), isouter=True).join(four, true(), isouter=True)
    return [*connection.execute(select(one, two, three, four).select_from(joined)).all()]


def _waiting(scope: Scope, *columns: Any) -> Select[Any]:
    """Select rows that wait: of all organizations, those that are due first; of one, any, so that it reads no other's."""
    rows = select(*columns).where(LIVE).limit(inline(COUNT_LIMIT + 1))
    if scope.organization_id is None:
        return rows.order_by(*_DUE_FIRST)
    return rows.where(
        UNDELIVERED, *of_scope(outbox, scope)
    )  # by an index that SQLite takes by this condition only


def _up_to(table: Any, *conditions: Any) -> ColumnElement[int]:
    """Return how many rows meet conditions, counted to one more than `COUNT_LIMIT`."""
    rows = select(literal(1)).select_from(table).where(*conditions).limit(inline(COUNT_LIMIT + 1))
    return select(func.count()).select_from(rows.subquery()).scalar_subquery()


def workers_of(connection: Connection, scope: Scope, now: int) -> tuple[list[Worker], Limited]:
    """Return the processes that deliver, those seen last first, and what those alive limit of a scope."""
    query = select(workers).order_by(workers.c.last_seen_at.desc(), workers.c.id).limit(inline(MOST_WORKERS))
    found: list[Worker] = []
    limited: dict[str, dict[str, int]] = {}
    for row in connection.execute(query):
        is_stale = row.last_seen_at < now - STALE_MS
        state = "stopped" if row.stopped_at is not None else "stale" if is_stale else "alive"
        found.append(struct_of(row, Worker, state=state))
        if state == "alive":
            for organization, destinations in limited_of(row.limited).items():
                for destination, since in destinations.items() if scope.allows(organization) else ():
                    own = limited.setdefault(organization, {})
                    own[destination] = min(since, own.get(destination, since))
    return found, limited


def _buckets(connection: Connection, scope: Scope, now: int) -> list[Bucket]:
    """Return the last day in intervals of five minutes, the oldest first; intervals without an attempt too."""
    starts = _starts(now, 24 * HOUR_BUCKETS)
    query = select(statistics).where(
        statistics.c.bucket.in_(starts),  # each by the primary key
        statistics.c.organization_id == (scope.organization_id or EVERY_ORGANIZATION),
        statistics.c.destination == EVERY_DESTINATION,
    )
    found = {row.bucket: struct_of(row, Bucket, at=row.bucket) for row in connection.execute(query)}
    return [found.get(at) or Bucket(at=at) for at in starts]


def _starts(now: int, number: int) -> list[int]:
    """Return the starts of the last intervals, the oldest first."""
    last = now - now % BUCKET_MS
    return [last - each * BUCKET_MS for each in reversed(range(number))]


def _still_failing(connection: Connection, scope: Scope, now: int) -> list[Share]:
    """Return the failed attempts of the last minutes to destinations that still fail, by organization, the most failures first."""
    since = _starts(now, FAILING_MINUTES * 60_000 // BUCKET_MS)[0]
    failed = func.sum(statistics.c.failed).label("failed")
    places = func.count(statistics.c.destination.distinct()).label("places")
    own = statistics.alias("own")
    attempts = select(func.coalesce(func.sum(own.c.delivered + own.c.failed), 0)).where(
        own.c.bucket >= since,
        own.c.organization_id == statistics.c.organization_id,
        own.c.destination == EVERY_DESTINATION,
    )
    query = (
        select(statistics.c.organization_id, attempts.correlate(statistics).scalar_subquery(), failed, places)
        .join_from(statistics, destinations, _same(statistics, destinations))
        .where(
            statistics.c.bucket >= since,
            statistics.c.failed > 0,
            statistics.c.organization_id != inline(EVERY_ORGANIZATION),  # that of alerts is told apart
            FAILING,
            *of_scope(statistics, scope),
        )
        .group_by(statistics.c.organization_id)
        .order_by(failed.desc(), statistics.c.organization_id)
    )
    return [Share(*row) for row in connection.execute(query)]


def quarantined(connection: Connection, scope: Scope, limit: int) -> list[Row[Any]]:
    """Return deliveries in quarantine with the number of leases that have expired, the oldest first."""
    # An index holds only the few rows in quarantine. If the query also named the organization, SQLite would read all of its rows.
    columns = (
        outbox.c[name] for name in ("id", "organization_id", "destination", "takeovers", "next_attempt_at")
    )
    rows = select(*columns).where(QUARANTINED).order_by(*_DUE_FIRST).limit(inline(QUARANTINED_READ))
    every = rows.subquery("every")
    mine = select(every).where(*of_scope(every, scope)).order_by(every.c.next_attempt_at, every.c.id)
    return [*connection.execute(mine.limit(inline(limit))).all()]


def inbound_failing(connection: Connection, now: int) -> list[Row[Any]]:
    """Return of each provider the latest reason why requests failed within the last hour, if none was processed."""
    table, since = inbound_requests.c, now - HOUR_MS
    processed = exists().where(
        inbound_events.c.provider == table.provider, inbound_events.c.received_at >= since
    )
    query = select(inbound_requests).where(
        table.last_at >= since, table.result.in_(("refused", "invalid", "failed")), ~processed
    )
    found: dict[str, Row[Any]] = {}
    for row in connection.execute(query.order_by(table.last_at.desc())):
        found.setdefault(row.provider, row)
    return [found[provider] for provider in sorted(found)]


_HEALTH: Final = (
    "destination",
    "last_success_at",
    "failing_since",
    "failures_in_row",
    "last_error",
    "last_reason",
)


LEAST_IN_A_ROW: Final = 3
"""So many failures in a row make a destination one that fails, where most attempts fail."""


def _fails(now: int) -> list[Any]:
    """Return the conditions on destinations that fail, lately or with deliveries that wait for them.

    They fail as for an alert, or a few times in a row and in most attempts of the last hour.
    """
    health = destinations.c
    waits = exists().where(
        LIVE, outbox.c.destination == health.destination, outbox.c.organization_id == health.organization_id
    )
    long = health.last_failure_at - health.failing_since >= ALERT_MS
    more = func.sum(statistics.c.failed) > func.sum(statistics.c.delivered)
    hour = and_(_same(statistics, destinations), statistics.c.bucket.in_(_starts(now, HOUR_BUCKETS)))
    mostly = and_(health.failures_in_row >= LEAST_IN_A_ROW, select(more).where(hour).scalar_subquery())
    return [
        FAILING,
        health.organization_id != inline(EVERY_ORGANIZATION),  # that of alerts is told apart
        or_(health.failures_in_row >= ALERT_FAILURES, long, mostly),
        or_(health.last_failure_at >= now - HOUR_MS, waits),
    ]


def states(
    connection: Connection,
    scope: Scope,
    now: int,
    limited: Limited,
    limit: int,
    *,
    failing: bool = False,
    after: tuple[str, str] | None = None,
) -> list[DestinationState]:
    """Return destinations, each with its last hour: by organization and name, or those that fail now, for longest first."""
    key = (destinations.c.organization_id, destinations.c.destination)
    order = (destinations.c.failing_since, *key) if failing else key
    wanted = [*(_fails(now) if failing else ()), *(() if after is None else [tuple_(*key) > after])]
    chosen = (
        select(destinations, _paused(destinations))
        .where(*wanted, *of_scope(destinations, scope))
        .order_by(*order)
        .limit(inline(limit))
        .subquery("chosen")
    )
    hour = and_(_same(chosen, statistics), statistics.c.bucket.in_(_starts(now, HOUR_BUCKETS)))
    query = (
        select(chosen, *_sums())
        .join_from(chosen, statistics, hour, isouter=True)
        .group_by(*chosen.c)
        .order_by(*(chosen.c[each.name] for each in order))
    )
    return [_state(row, scope, limited) for row in connection.execute(query)]


def busiest(
    connection: Connection, scope: Scope, now: int, limit: int, limited: Limited
) -> tuple[list[DestinationState], list[DestinationState]]:
    """Return the destinations of the last hour with the most failures, and those that took workers' time most."""
    key = (statistics.c.organization_id, statistics.c.destination)
    totals = (
        select(*key, *_sums())
        .where(
            statistics.c.bucket >= _starts(now, HOUR_BUCKETS)[0],
            statistics.c.destination != EVERY_DESTINATION,
            *of_scope(statistics, scope),
        )
        .group_by(*key)
        .subquery("totals")
    )
    order = (totals.c.organization_id, totals.c.destination)
    by_failed, by_time = (
        func.row_number().over(order_by=(totals.c[name].desc(), *order)).label(f"by_{name}")
        for name in ("failed", "worker_ms")
    )
    ranked = select(totals, by_failed, by_time).subquery("ranked")
    health = [destinations.c[name] for name in _HEALTH if name != "destination"]
    wanted = [and_(ranked.c[f"by_{name}"] <= limit, ranked.c[name] > 0) for name in ("failed", "worker_ms")]
    query = (
        select(ranked, *health, _paused(ranked))
        .join_from(ranked, destinations, _same(ranked, destinations), isouter=True)
        .where(or_(*wanted))
    )
    rows = connection.execute(query).all()

    def first(name: str) -> list[DestinationState]:
        by = attrgetter(f"by_{name}")
        mine = [row for row in rows if getattr(row, name) and by(row) <= limit]
        return [_state(row, scope, limited) for row in sorted(mine, key=by)]

    return first("failed"), first("worker_ms")


def _sums() -> list[ColumnElement[int]]:
    """Return the sums over the rows of statistics, under the names that a `DestinationState` has for them."""
    names = {"duration_ms": "worker_ms"}
    return [
        cast(func.coalesce(func.sum(statistics.c[name]), 0), BigInteger).label(names.get(name, name))
        for name in COUNTS
    ]


def _paused(table: Any) -> ColumnElement[int]:
    return case((is_paused(table.c.organization_id, table.c.destination), 1), else_=0).label("paused")


def _same(table: Any, other: Any) -> ColumnElement[bool]:
    return and_(table.c.organization_id == other.c.organization_id, table.c.destination == other.c.destination)


def _state(row: Row[Any], scope: Scope, limited: Limited) -> DestinationState:
    reason = row.last_reason or row.last_error
    if scope.organization_id is not None:
        reason = reason_for_tenants(reason or "", row.destination) or None
    return struct_of(
        row,
        DestinationState,
        failures_in_row=row.failures_in_row or 0,
        last_reason=reason,
        paused=bool(row.paused),
        limited_since=limited.get(row.organization_id, {}).get(row.destination),
        waiting=Counted(number=0, exact=True),
        waiting_since=None,
    )


def with_depth(
    connection: Connection, scope: Scope, found: Sequence[DestinationState]
) -> list[DestinationState]:
    """Return destinations with how many deliveries wait for each, and since when, among those that are due first."""
    waits = _waiting(scope, outbox.c.organization_id, outbox.c.destination, outbox.c.created_at)
    query = top(waits, ("organization_id", "destination"), since=func.min(column("created_at")))
    rows = {(row.organization_id, row.destination): row for row in connection.execute(query)}
    exact = sum(row.number for row in rows.values()) <= COUNT_LIMIT
    shown = []
    for each in found:
        row = rows.get((each.organization_id, each.destination))
        waiting = Counted(number=0 if row is None else row.number, exact=exact)
        shown.append(replace(each, waiting=waiting, waiting_since=None if row is None else row.since))
    return shown


def pauses_of(scope: Scope) -> list[ColumnElement[bool]]:
    """Return the condition on pauses within a scope: an organization's own, and those for all of destinations that it uses."""
    if scope.organization_id is None:
        return []
    # Where others send, an organization is not told.
    place = pauses.c.destination
    has_sent = exists().where(destinations.c.destination == place, *of_scope(destinations, scope))
    uses = or_(has_sent, place.in_(_waiting(scope, outbox.c.destination)))
    return [or_(*of_scope(pauses, scope), and_(pauses.c.organization_id == EVERY_ORGANIZATION, uses))]


def of_scope(table: Any, scope: Scope) -> list[ColumnElement[bool]]:
    """Return the condition on the rows of a table that belong to a scope; none for all organizations."""
    if scope.organization_id is None:
        return []
    return [table.c.organization_id == scope.organization_id]
