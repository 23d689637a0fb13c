"""How deliveries stand, read on an open connection: each function is one statement, which reads a bounded number of rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from operator import attrgetter
from typing import Any, Final

import msgspec
from msgspec.structs import replace
from sqlalchemy import (
    ColumnElement,
    Row,
    Select,
    and_,
    case,
    column,
    exists,
    func,
    literal,
    or_,
    select,
    true,
)
from sqlalchemy.engine import Connection

from flowactions_plugin.chat.store import troubled
from flowactions_plugin.http.masking import reason_for_tenants
from flowactions_plugin.insights.results import (
    Bucket,
    Counted,
    DestinationState,
    Worker,
)
from flowactions_plugin.insights.verdict import Share
from flowactions_plugin.operators.scope import AUTOMATIC, Scope
from flowactions_plugin.storage.database import Database
from flowactions_plugin.storage.dialect import inline
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
from flowactions_plugin.watch.fleet import STALE_MS
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


def numbers(connection: Connection, database: Database, scope: Scope, alerts_at: str | None) -> list[Row[Any]]:
    """Return the time, and how much is due, waits, is dead, is paused, cannot chat, and how alerts to operators arrive.

    Returns:
        These numbers in each row, beside one ``reason`` why deliveries wait for something here, without an attempt, with the
        ``number`` of deliveries and of ``organizations``, and ``since`` when; the reason ``None`` is of all others that wait.
    """
    now, mine = database.now(), of_scope(outbox, scope)
    free = or_(outbox.c.claimed_until.is_(None), outbox.c.claimed_until <= now)
    head = (
        select(outbox.c.next_attempt_at, outbox.c.updated_at, free.label("free"))
        .where(
            LIVE,
            outbox.c.next_attempt_at <= now,
            ~is_paused(outbox.c.organization_id, outbox.c.destination),
            *mine,
        )
        .order_by(*_DUE_FIRST)
        .limit(inline(COUNT_LIMIT + 1))
        .subquery("due")
    )
    # Each has an index of the state.
    dead = UNDELIVERED if scope.organization_id is not None else FINISHED
    counts = select(
        now.label("now"),
        func.count().label("due_read"),
        func.count(case((head.c.free, 1))).label("due"),
        (now - func.min(case((head.c.free, head.c.next_attempt_at)))).label("oldest_due_ms"),
        (now - func.max(case((~head.c.free, head.c.updated_at)))).label("claimed_ms_ago"),
        _up_to(outbox, outbox.c.status == inline("dead"), dead, *mine).label("dead"),
        _up_to(chat_connections, troubled(now - DAY_MS), *of_scope(chat_connections, scope)).label("chat"),
    ).select_from(head)
    whose = () if scope.organization_id is None else (scope.organization_id, EVERY_ORGANIZATION)
    paused = select(
        func.count().label("paused"),
        func.count(case((pauses.c.paused_role == inline(AUTOMATIC.role), 1))).label("paused_automatically"),
        func.min(pauses.c.paused_at).label("paused_since"),
    )
    if whose:
        paused = paused.where(pauses.c.organization_id.in_(whose))
    alerts = select(*(destinations.c[name].label(f"alerts_{name}") for name in _HEALTH)).where(
        destinations.c.organization_id == EVERY_ORGANIZATION,
        destinations.c.destination == (alerts_at if scope.organization_id is None else None),
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
    """Select rows that wait: of all organizations, those that are due first; of one, any."""
    rows = select(*columns).where(LIVE, *of_scope(outbox, scope)).limit(inline(COUNT_LIMIT + 1))
    return rows.order_by(*_DUE_FIRST) if scope.organization_id is None else rows


def _up_to(table: Any, *conditions: Any) -> ColumnElement[int]:
    """Return how many rows meet conditions, counted to one more than `COUNT_LIMIT`."""
    rows = select(literal(1)).select_from(table).where(*conditions).limit(inline(COUNT_LIMIT + 1))
    return select(func.count()).select_from(rows.subquery()).scalar_subquery()


def counted(number: int) -> Counted:
    """Return a number that was counted to one more than `COUNT_LIMIT`."""
    return Counted(number=min(number, COUNT_LIMIT), exact=number <= COUNT_LIMIT)


def workers_of(connection: Connection, now: int) -> tuple[list[Worker], dict[str, int]]:
    """Return the processes that deliver, those seen last first, and the destinations that those alive limit, since when."""
    query = select(workers).order_by(workers.c.last_seen_at.desc(), workers.c.id).limit(inline(MOST_WORKERS))
    found: list[Worker] = []
    limited: dict[str, int] = {}
    for row in connection.execute(query):
        values = {name: getattr(row, name) for name in Worker.__struct_fields__ if name != "state"}
        is_stale = row.last_seen_at < now - STALE_MS
        found.append(
            Worker(
                **values,
                state="stopped" if row.stopped_at is not None else "stale" if is_stale else "alive",
            )
        )
        if found[-1].state == "alive":
            for each, since in _limited_of(row.limited).items():
                limited[each] = min(since, limited.get(each, since))
    return found, limited


def _limited_of(text: Any) -> Mapping[str, int]:
    """Return what a worker has written; nothing, where no worker of this release can have written it."""
    try:
        return msgspec.json.decode(text, type=dict[str, int])
    except (msgspec.DecodeError, UnicodeError, TypeError):
        return {}


def known_of(connection: Connection, scope: Scope, limited: Mapping[str, int]) -> dict[str, int]:
    """Return those of the limited destinations to which something of a scope was sent."""
    query = select(destinations.c.destination).where(
        destinations.c.destination.in_(list(limited)), *of_scope(destinations, scope)
    )
    return {row.destination: limited[row.destination] for row in connection.execute(query)}


def buckets_of(connection: Connection, scope: Scope, now: int) -> list[Bucket]:
    """Return the last day in intervals of five minutes, the oldest first; intervals without an attempt too."""
    starts = _starts(now, 24 * HOUR_BUCKETS)
    query = select(statistics).where(
        statistics.c.bucket.in_(starts),  # each by the primary key
        statistics.c.organization_id == (scope.organization_id or EVERY_ORGANIZATION),
        statistics.c.destination == EVERY_DESTINATION,
    )
    found = {row.bucket: {name: getattr(row, name) for name in COUNTS} for row in connection.execute(query)}
    return [Bucket(at=at, **found.get(at, {})) for at in starts]


def _starts(now: int, number: int) -> list[int]:
    """Return the starts of the last intervals, the oldest first."""
    last = now - now % BUCKET_MS
    return [last - each * BUCKET_MS for each in reversed(range(number))]


def still_failing(connection: Connection, scope: Scope, since: int) -> list[Share]:
    """Return the failed attempts to destinations that still fail, by organization, the most failures first.

    Args:
        connection: an open one.
        scope: whose.
        since: the start of the first interval that counts.
    """
    failed = func.sum(statistics.c.failed).label("failed")
    places = func.count(statistics.c.destination.distinct()).label("places")
    own = statistics.alias("own")
    attempts = select(func.sum(own.c.delivered + own.c.failed)).where(
        own.c.bucket >= since,
        own.c.organization_id == statistics.c.organization_id,
        own.c.destination == EVERY_DESTINATION,
    )
    query = (
        select(
            statistics.c.organization_id,
            attempts.correlate(statistics).scalar_subquery().label("attempts"),
            failed,
            places,
        )
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
    return [
        Share(row.organization_id, int(row.attempts or 0), int(row.failed), row.places)
        for row in connection.execute(query)
    ]


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


def failing_now(now: int) -> list[Any]:
    """Return the conditions on destinations that fail as for an alert, lately or with deliveries that wait for them."""
    health = destinations.c
    waits = exists().where(
        LIVE, outbox.c.destination == health.destination, outbox.c.organization_id == health.organization_id
    )
    return [
        FAILING,
        health.organization_id != inline(EVERY_ORGANIZATION),  # that of alerts is told apart
        or_(
            health.failures_in_row >= ALERT_FAILURES, health.last_failure_at - health.failing_since >= ALERT_MS
        ),
        or_(health.last_failure_at >= now - HOUR_MS, waits),
    ]


def states(
    connection: Connection,
    scope: Scope,
    now: int,
    conditions: Sequence[Any],
    order: Sequence[str],
    limit: int,
    limited: Mapping[str, int],
) -> list[DestinationState]:
    """Return destinations, each with its last hour.

    Args:
        connection: an open one.
        scope: what may be seen.
        now: Unix milliseconds.
        conditions: which destinations.
        order: columns of their table.
        limit: how many at the most.
        limited: those that workers limit, since when.
    """
    chosen = (
        select(destinations, _paused(destinations))
        .where(*conditions, *of_scope(destinations, scope))
        .order_by(*(destinations.c[name] for name in order))
        .limit(inline(limit))
        .subquery("chosen")
    )
    hour = and_(_same(chosen, statistics), statistics.c.bucket.in_(_starts(now, HOUR_BUCKETS)))
    query = (
        select(chosen, *_sums())
        .join_from(chosen, statistics, hour, isouter=True)
        .group_by(*chosen.c)
        .order_by(*(chosen.c[name] for name in order))
    )
    return [_state(row, scope, limited) for row in connection.execute(query)]


def busiest(
    connection: Connection, scope: Scope, now: int, limit: int, limited: Mapping[str, int]
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
    ranks = {
        name: func.row_number()
        .over(order_by=(totals.c[name].desc(), totals.c.organization_id, totals.c.destination))
        .label(f"by_{name}")
        for name in ("failed", "duration_ms")
    }
    ranked = select(totals, *ranks.values()).subquery("ranked")
    health = [destinations.c[name] for name in _HEALTH if name != "destination"]
    query = (
        select(ranked, *health, _paused(ranked))
        .join_from(ranked, destinations, _same(ranked, destinations), isouter=True)
        .where(or_(*(and_(ranked.c[f"by_{name}"] <= limit, ranked.c[name] > 0) for name in ranks)))
    )
    rows = connection.execute(query).all()

    def first(name: str) -> list[DestinationState]:
        by = attrgetter(f"by_{name}")
        return [
            _state(row, scope, limited)
            for row in sorted(rows, key=by)
            if getattr(row, name) and by(row) <= limit
        ]

    return first("failed"), first("duration_ms")


def _sums() -> list[ColumnElement[int]]:
    return [func.coalesce(func.sum(statistics.c[name]), 0).label(name) for name in COUNTS]


def _paused(table: Any) -> ColumnElement[int]:
    return case((is_paused(table.c.organization_id, table.c.destination), 1), else_=0).label("paused")


def _same(table: Any, other: Any) -> ColumnElement[bool]:
    return and_(table.c.organization_id == other.c.organization_id, table.c.destination == other.c.destination)


def _state(row: Row[Any], scope: Scope, limited: Mapping[str, int]) -> DestinationState:
    reason = row.last_reason or row.last_error
    if scope.organization_id is not None:
        reason = reason_for_tenants(reason or "", row.destination) or None
    return DestinationState(
        destination=row.destination,
        organization_id=row.organization_id,
        delivered=int(row.delivered),
        failed=int(row.failed),
        dead=int(row.dead),
        worker_ms=int(row.duration_ms),
        last_success_at=row.last_success_at,
        failing_since=row.failing_since,
        failures_in_row=row.failures_in_row or 0,
        last_error=row.last_error,
        last_reason=reason,
        paused=bool(row.paused),
        limited_since=limited.get(row.destination),
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


def is_paused(organization_id: Any, destination: Any) -> ColumnElement[bool]:
    """Return the condition that a destination is paused, by its organization or for all."""
    return exists().where(
        pauses.c.destination == destination,
        or_(pauses.c.organization_id == organization_id, pauses.c.organization_id == EVERY_ORGANIZATION),
    )


def of_scope(table: Any, scope: Scope) -> list[ColumnElement[bool]]:
    """Return the condition on the rows of a table that belong to a scope; none for all organizations."""
    if scope.organization_id is None:
        return []
    return [table.c.organization_id == scope.organization_id]
