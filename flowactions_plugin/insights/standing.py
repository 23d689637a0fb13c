"""How deliveries stand, read on an open connection: each function is one statement, which reads a bounded number of rows."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Sequence
from typing import Any, Final

import msgspec
from msgspec.structs import replace
from sqlalchemy import (
    BigInteger,
    ColumnElement,
    Row,
    Select,
    Text,
    and_,
    case,
    cast,
    column,
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
from flowactions_plugin.errors import EgressRefused, FilterInvalid
from flowactions_plugin.http.masking import reason_for_tenants
from flowactions_plugin.insights.facts import LATELY_MINUTES, Behind, Blocked, Facts, Share, Unsent
from flowactions_plugin.insights.findings import (
    FAILING_COUNTED,
    LATE_MS,
    NAMED,
    NOT_KNOWN,
    UNSENT_READ,
    mostly_fail,
)
from flowactions_plugin.insights.results import Bucket, Counted, DestinationState, Worker, counted_to
from flowactions_plugin.insights.search import is_due, is_paused
from flowactions_plugin.insights.views import struct_of
from flowactions_plugin.operators.scope import AUTOMATIC, Scope
from flowactions_plugin.origins import CHAT, kind_of
from flowactions_plugin.queue.rules import UNKNOWN
from flowactions_plugin.settings.model import Settings
from flowactions_plugin.storage.database import Database
from flowactions_plugin.storage.dialect import inline
from flowactions_plugin.storage.outages import IS_READ_ONLY
from flowactions_plugin.storage.postgresql import Blocker
from flowactions_plugin.storage.retention import DAY_MS, HOUR_MS
from flowactions_plugin.storage.schema import (
    BEHIND_MS,
    EVERY_ORGANIZATION,
    FAILED,
    FAILING,
    FINISHED,
    LIVE,
    QUARANTINED,
    TROUBLED,
    UNDELIVERED,
    UNSENT,
    chat_connections,
    destinations,
    inbound_events,
    inbound_requests,
    metadata,
    outbox,
    pauses,
    statistics,
    workers,
)
from flowactions_plugin.watch.fleet import STALE_MS, Limited, limited_of
from flowactions_plugin.watch.statistics import BUCKET_MS, COUNTS, EVERY_DESTINATION, answered

COUNT_LIMIT: Final = 10_000
"""Up to how many rows are counted that are due, wait or are dead; of those that wait, the ones that are due first."""

QUARANTINED_READ: Final = 1000
"""How many of the deliveries in quarantine are read at the most."""

EVENTS_READ: Final = 1000
"""Among so many of the last inbound events it is looked for one of each provider."""

MOST_WORKERS: Final = 1000

HOUR_BUCKETS: Final = HOUR_MS // BUCKET_MS
LATE_BUCKETS: Final = LATELY_MINUTES * 60_000 // BUCKET_MS

_DUE_FIRST: Final = (outbox.c.next_attempt_at, outbox.c.id)
"""The order of an index of the rows that wait."""

_KEY: Final = (destinations.c.organization_id, destinations.c.destination)


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
    """Read how deliveries stand, as far as findings, verdict and gauges need it."""
    sees_all = scope.organization_id is None
    rows = _numbers(connection, database, scope, _alerts_at(settings) if sees_all else None)
    first = rows[0]
    now, waiting = first.now, sum(row.number or 0 for row in rows)
    workers, limited = workers_of(connection, scope, now)
    # Names of processes and roles are the operators'.
    blockers, lacking = (database.blockers(connection), database.lacking(connection)) if sees_all else ((), ())
    is_reader = may_only_read(lacking)
    # What was refused to a reader says nothing of others.
    refusal = None if database.refused is None or is_reader else database.refused.words
    refusal = refusal or (IS_READ_ONLY if database.reads_only(connection) else None)
    reads_only = refusal is None and is_reader
    lacking = () if is_reader else lacking
    is_late = (first.oldest_due_ms or 0) >= LATE_MS
    facts = Facts(
        now=now,
        sees_all=sees_all,
        mode=settings.delivery,
        tick_seconds=settings.tick_seconds,
        uptime_ms=uptime_ms,
        refusal=obstacle_of(lacking, blockers) or refusal,
        due=Counted(number=min(first.due, COUNT_LIMIT), exact=first.due_read <= COUNT_LIMIT),
        oldest_due_ms=None if first.oldest_due_ms is None else max(0, first.oldest_due_ms),
        held_ms_ago=first.held_ms_ago,
        waiting=counted_to(COUNT_LIMIT, waiting),
        dead=counted_to(COUNT_LIMIT, first.dead),
        chat=counted_to(COUNT_LIMIT, first.chat),
        blocked=[
            Blocked(
                readable(row.reason, scope),
                Counted(number=row.number, exact=waiting <= COUNT_LIMIT),
                row.organizations,
                row.since,
            )
            for row in sorted(rows, key=lambda row: (-(row.number or 0), row.reason or ""))
            if row.reason is not None
        ],
        paused=(first.paused, first.paused_automatically),
        paused_since=first.paused_since,
        alerts=None if first.alerts_destination is None else _alerts(first),
        workers=workers,
        limited=limited,
        buckets=_buckets(connection, scope, now),
        failing=failing(connection, database, scope, now, limited),
        busiest=_busiest(connection, database, scope) if is_late else None,
        unsent=_unsent(connection, scope, now),
        snapshot=database.oldest_snapshot(connection) if sees_all else None,
        blockers=blockers,
        lacking=lacking,
        reads_only=reads_only,
        behind=_behind(connection, scope, now),
        quarantined=_quarantined(connection, scope, NAMED + 1),
        inbound=_inbound_failing(connection, now) if sees_all else (),
    )
    shares = _shares(connection, database, facts) if mostly_fail(*facts.attempts) and facts.failing else ()
    return facts._replace(shares=shares)


def may_only_read(lacking: Sequence[str]) -> bool:
    """Return whether a role that lacks these rights was made to read: it may write to no table, and read all."""
    writes = {f"{kind} on {name}" for name in metadata.tables for kind in ("INSERT", "UPDATE", "DELETE")}
    return writes <= {*lacking} and not any(each.startswith("SELECT ") for each in lacking)


def obstacle_of(lacking: Sequence[str], blockers: Sequence[Blocker]) -> str | None:
    """Return why nothing can be queued, claimed or completed now; ``None``: the rights and the locks do not keep it."""
    missing = [each for each in lacking if each.endswith(f" {outbox.name}")]
    if missing:
        return f"this process's role lacks {', '.join(missing)}"
    return "; ".join(held.words for held in blockers if outbox.name in held.places) or None


def _alerts_at(settings: Settings) -> str | None:
    try:
        return None if settings.alerts_url is None else parse_destination(settings.alerts_url).key
    except EgressRefused:
        return None  # no host starts with it


def _alerts(row: Any) -> DestinationState:
    return DestinationState(
        destination=row.alerts_destination,
        organization_id=EVERY_ORGANIZATION,
        failing_since=row.alerts_failing_since,
        failures_in_row=row.alerts_failures_in_row,
        last_reason=row.alerts_last_reason or row.alerts_last_error,
    )


def _numbers(connection: Connection, database: Database, scope: Scope, alerts_at: str | None) -> list[Row[Any]]:
    """Return the time, and how much is due, waits, is dead, is paused, cannot chat, and how alerts to operators arrive.

    Returns:
        These numbers in each row, beside one ``reason`` why deliveries wait for something here, without an attempt, with the
        ``number`` of deliveries and of ``organizations``, and ``since`` when; the reason ``None`` is of all others that wait.
    """
    now, mine = database.now(), of_scope(outbox, scope)
    # SQLite would look for one organization's rows among all by their times, but not by those of an expression.
    at = outbox.c.next_attempt_at if scope.organization_id is None else outbox.c.next_attempt_at + 0
    (_, unpaused, free) = is_due(database)
    rows = _waiting(scope, outbox.c.next_attempt_at, outbox.c.updated_at, free.label("free"))
    head = rows.where(at <= now, unpaused).subquery("due")
    # Each has an index of the state.
    dead = UNDELIVERED if scope.organization_id is not None else FINISHED
    counts = select(
        now.label("now"),
        func.count().label("due_read"),
        func.count(case((head.c.free, 1))).label("due"),
        (now - func.min(case((head.c.free, head.c.next_attempt_at)))).label("oldest_due_ms"),
        (now - func.max(case((~head.c.free, head.c.updated_at)))).label("held_ms_ago"),
        _up_to(outbox, outbox.c.status == inline("dead"), dead, *mine).label("dead"),
        _up_to(chat_connections, TROUBLED, troubled(now - DAY_MS), *of_scope(chat_connections, scope)).label(
            "chat"
        ),
    ).select_from(head)
    held = select(pauses).where(*pauses_of(scope)).limit(inline(COUNT_LIMIT)).subquery("held")
    paused = select(
        func.count().label("paused"),
        func.count(case((held.c.paused_role == inline(AUTOMATIC.role), 1))).label("paused_automatically"),
        func.min(held.c.paused_at).label("paused_since"),
    ).select_from(held)
    told = ("destination", "failing_since", "failures_in_row", "last_error", "last_reason")
    alerts = select(*(destinations.c[name].label(f"alerts_{name}") for name in told)).where(
        destinations.c.organization_id == EVERY_ORGANIZATION,
        destinations.c.destination == alerts_at,
        FAILING,
    )
    waits = outbox.c.waiting_since.is_not(None)
    error = outbox.c.last_error
    reason = case((error.in_(UNKNOWN), NOT_KNOWN), (waits, func.coalesce(error, ""))).label("reason")
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


def _busiest(connection: Connection, database: Database, scope: Scope) -> tuple[str, str, int] | None:
    """Return the organization and the destination of the most rows that are due, and their number."""
    key = ("organization_id", "destination")
    rows = _waiting(scope, *(outbox.c[name] for name in key)).where(*is_due(database))
    found = connection.execute(top(rows, key).order_by(column("number").desc(), *key).limit(1)).one_or_none()
    return None if found is None else (found.organization_id, found.destination, found.number)


def _behind(connection: Connection, scope: Scope, now: int) -> list[Behind]:
    """Return what others wait for in their order, for long; not where it waits for a pause, or for something here."""
    names = ("sequence", "created_at", "next_attempt_at")
    is_behind = outbox.c.next_attempt_at == inline(BEHIND_MS)
    rows = select(*(outbox.c[name] for name in names)).limit(inline(COUNT_LIMIT))
    rows = rows.where(is_behind, outbox.c.status == inline("pending"))
    if scope.organization_id is not None:  # among those of its own that wait, by an index of these
        own = _waiting(scope, *(outbox.c[name] for name in names)).subquery("own")
        rows = select(own).where(own.c.next_attempt_at == inline(BEHIND_MS))
    since: ColumnElement[int] = func.min(column("created_at"))
    most = (
        top(rows, ("sequence",), since=since).having(since <= now - LATE_MS).order_by(column("number").desc())
    )
    held = most.limit(inline(FAILING_COUNTED)).subquery("held")
    head, first = outbox.alias("head"), outbox.c.next_attempt_at < inline(BEHIND_MS)
    # Looked up one by one: SQLite would read all rows that wait, and look for each among the groups.
    of = (
        select(outbox.c.id)
        .where(outbox.c.sequence == held.c.sequence, LIVE, UNDELIVERED, first)
        .limit(inline(1))
    )
    told = ("id", "organization_id", "destination", "url", "last_error", "last_status_code")
    query = (
        select(*(head.c[name] for name in told), held.c.number, held.c.since)
        .join_from(held, head, head.c.id == of.correlate(held).scalar_subquery())
        .where(head.c.waiting_since.is_(None), ~is_paused(head.c.organization_id, head.c.destination))
        .order_by(held.c.number.desc(), head.c.id)
    )
    return [_head(row, scope) for row in connection.execute(query.limit(inline(NAMED + 1)))]


def _head(row: Any, scope: Scope) -> Behind:
    reason = row.last_error or answered(row.last_status_code) or ""
    if not reason and kind_of(row.destination) == CHAT:
        reason = "one channel takes about one message a second"
    reason = readable(reason, scope, row.url)
    return Behind(row.id, row.organization_id, row.destination, reason, row.number, row.since)


def _unsent(connection: Connection, scope: Scope, now: int) -> list[Unsent]:
    """Return deliveries of the last day that ended without an attempt, the latest first."""
    columns = (
        outbox.c[name] for name in ("organization_id", "flow_id", "node_id", "last_error", "finished_at")
    )
    rows = select(*columns).where(UNSENT, outbox.c.finished_at >= now - DAY_MS).limit(inline(UNSENT_READ))
    if scope.organization_id is None:
        rows = rows.order_by(outbox.c.finished_at.desc())
    else:  # by an index of the organization's failures, so that it reads no other's
        rows = rows.where(FAILED, *of_scope(outbox, scope)).order_by(outbox.c.id.desc())
    found = sorted(connection.execute(rows).all(), key=lambda row: -row.finished_at)
    return [
        Unsent(
            row.organization_id,
            row.flow_id,
            row.node_id,
            readable(row.last_error or "", scope),
            row.finished_at,
        )
        for row in found
    ]


def readable(reason: str, scope: Scope, url: str = "") -> str:
    """Return a reason as somebody may read it."""
    return reason if scope.reads_inner else reason_for_tenants(reason, url)


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


def _shares(connection: Connection, database: Database, facts: Facts) -> list[Share]:
    """Return the failed attempts of the last minutes to destinations that still fail, by organization, the most failures first."""
    given = database.sql.values_table("given", organization=Text, destination=Text)
    starts, own = _starts(facts.now, LATE_BUCKETS), statistics.alias("own")
    attempts = select(func.coalesce(func.sum(own.c.delivered + own.c.failed), 0)).where(
        own.c.bucket.in_(starts),
        own.c.organization_id == given.c.organization,
        own.c.destination == EVERY_DESTINATION,
    )
    failed = func.sum(statistics.c.failed).label("failed")
    places = func.count(statistics.c.destination.distinct())
    whose = given.c.organization
    query = (
        select(whose, attempts.correlate(given).scalar_subquery(), failed, places)
        .join_from(given, statistics, _is_of(statistics, given))
        .where(statistics.c.bucket.in_(starts), statistics.c.failed > 0)
        .group_by(whose)
        .order_by(failed.desc(), whose)
    )
    return [Share(*row) for row in connection.execute(query, _given(database, facts.failing))]


def _is_of(table: Any, given: Any) -> ColumnElement[bool]:
    return and_(table.c.organization_id == given.c.organization, table.c.destination == given.c.destination)


def _given(database: Database, places: Sequence[DestinationState]) -> dict[str, str]:
    rows = [{"organization": each.organization_id, "destination": each.destination} for each in places]
    return {"given": database.sql.json_rows(rows)}


def _quarantined(connection: Connection, scope: Scope, limit: int) -> list[Row[Any]]:
    """Return deliveries in quarantine with the number of leases that have expired, the oldest first."""
    # An index holds only the few rows in quarantine. If the query also named the organization, SQLite would read all of its rows.
    columns = (
        outbox.c[name] for name in ("id", "organization_id", "destination", "takeovers", "next_attempt_at")
    )
    rows = select(*columns).where(QUARANTINED).order_by(*_DUE_FIRST).limit(inline(QUARANTINED_READ))
    every = rows.subquery("every")
    mine = select(every).where(*of_scope(every, scope)).order_by(every.c.next_attempt_at, every.c.id)
    return [*connection.execute(mine.limit(inline(limit))).all()]


def _inbound_failing(connection: Connection, now: int) -> list[Row[Any]]:
    """Return of each provider the latest reason why requests failed within the last hour, if none was processed."""
    table, since = inbound_requests.c, now - HOUR_MS
    last = select(inbound_events.c.provider).where(inbound_events.c.received_at >= since)
    last = last.order_by(inbound_events.c.received_at.desc()).limit(inline(EVENTS_READ))
    query = select(inbound_requests).where(
        table.last_at >= since,
        table.result.in_(("refused", "invalid", "failed")),
        table.provider.not_in(select(last.subquery().c.provider)),
    )
    found: dict[str, Row[Any]] = {}
    for row in connection.execute(query.order_by(table.last_at.desc()).limit(inline(EVENTS_READ))):
        found.setdefault(row.provider, row)
    return [found[provider] for provider in sorted(found)]


def failing(
    connection: Connection,
    database: Database,
    scope: Scope,
    now: int,
    limited: Limited,
    limit: int = FAILING_COUNTED + 1,
) -> list[DestinationState]:
    """Return destinations whose last attempt has failed, the latest failure first, with what waits where that is long ago.

    Without their last hour, which `with_hour` adds to the few that are shown: PostgreSQL would read that of all destinations.
    """
    # That of alerts is told apart.
    chosen = _failing(scope).where(_KEY[0] != inline(EVERY_ORGANIZATION)).limit(inline(limit))
    found = _states(connection, scope, now, limited, chosen, buckets=0)
    found.sort(key=lambda place: (-(place.last_failure_at or 0), place.organization_id, place.destination))
    is_old = any((place.last_failure_at or 0) < now - LATELY_MINUTES * 60_000 for place in found)
    return with_depth(connection, database, scope, found) if is_old else found


def with_hour(
    connection: Connection, scope: Scope, now: int, limited: Limited, found: Sequence[DestinationState]
) -> list[DestinationState]:
    """Return a few destinations with their last hour."""
    keys = [(place.organization_id, place.destination) for place in found]
    rows = select(destinations).where(tuple_(*_KEY).in_(keys)).limit(inline(len(keys)))
    read = _states(connection, scope, now, limited, rows) if keys else ()
    hours = {(place.organization_id, place.destination): place for place in read}
    return [
        replace(hours.get(key, place), waiting=place.waiting, waiting_since=place.waiting_since)
        for key, place in zip(keys, found, strict=True)
    ]


def _failing(scope: Scope) -> Select[Any]:
    at = destinations.c.last_failure_at
    return select(destinations).where(FAILING, *of_scope(destinations, scope)).order_by(at.desc(), *_KEY)


def listed(
    connection: Connection, scope: Scope, now: int, limited: Limited, limit: int, cursor: str | None
) -> tuple[list[DestinationState], str | None]:
    """Return a page of destinations: those whose last attempt has failed first, the latest failure first; then by name.

    It returns the cursor of the next page, too. A page may be shorter than the limit, because it passes over what was before.
    """
    at, after = destinations.c.last_failure_at, _after(cursor)
    found: list[DestinationState] = []
    if after is None or after[0] is not None:
        chosen = _failing(scope)
        if after is not None:
            chosen = chosen.where(at <= after[0], or_(at < after[0], tuple_(*_KEY) > after[1:]))
        found = _states(connection, scope, now, limited, chosen.limit(inline(limit + 1)))
        found.sort(key=lambda place: (-(place.last_failure_at or 0), place.organization_id, place.destination))
        if len(found) > limit:
            last = found[limit - 1]
            return found[:limit], _cursor(last.last_failure_at, last)
        after = (None, "", "")
    rest = limit - len(found)
    others = (
        select(destinations).where(tuple_(*_KEY) > after[1:], *of_scope(destinations, scope)).order_by(*_KEY)
    )
    read = _states(connection, scope, now, limited, others.limit(inline(rest + 1)))
    read.sort(key=lambda place: (place.organization_id, place.destination))
    found += [place for place in read[:rest] if place.failing_since is None]
    more = len(read) > rest
    if more and not rest:
        return found, _cursor(None, DestinationState(destination="", organization_id=""))
    return found, _cursor(None, read[rest - 1]) if more else None


def _cursor(at: int | None, place: DestinationState) -> str:
    text = msgspec.json.encode((at, place.organization_id, place.destination))
    return base64.urlsafe_b64encode(text).decode().rstrip("=")


def _after(cursor: str | None) -> tuple[int | None, str, str] | None:
    if not cursor:
        return None
    try:
        text = base64.b64decode(cursor + "=" * (-len(cursor) % 4), altchars=b"-_", validate=True)
        found = msgspec.json.decode(text, type=tuple[int | None, str, str])
    except (ValueError, binascii.Error, msgspec.MsgspecError):
        raise FilterInvalid("cursor: must be the next cursor of a page of the same list", "cursor") from None
    if any("\0" in part for part in found[1:]) or not -(1 << 53) < (found[0] or 0) < 1 << 53:
        raise FilterInvalid("cursor: must be the next cursor of a page of the same list", "cursor")
    return found


def _states(
    connection: Connection,
    scope: Scope,
    now: int,
    limited: Limited,
    rows: Select[Any],
    buckets: int = HOUR_BUCKETS,
) -> list[DestinationState]:
    """Return destinations, each with its last intervals."""
    paused = case((is_paused(*_KEY), 1), else_=0).label("paused")
    chosen = rows.add_columns(paused).subquery("chosen")
    hour = and_(
        chosen.c.organization_id == statistics.c.organization_id,
        chosen.c.destination == statistics.c.destination,
        statistics.c.bucket.in_(_starts(now, buckets)),
    )
    # Under the names that a `DestinationState` has for them.
    sums = (
        cast(func.coalesce(func.sum(statistics.c[name]), 0), BigInteger).label(
            name.replace("duration", "worker")
        )
        for name in COUNTS
    )
    query = select(chosen, *sums).join_from(chosen, statistics, hour, isouter=True).group_by(*chosen.c)
    return [_state(row, scope, limited) for row in connection.execute(query)]


def _state(row: Row[Any], scope: Scope, limited: Limited) -> DestinationState:
    return struct_of(
        row,
        DestinationState,
        last_reason=readable(row.last_reason or row.last_error or "", scope, row.destination) or None,
        paused=bool(row.paused),
        limited_since=limited.get(row.organization_id, {}).get(row.destination),
        waiting=Counted(number=0, exact=True),
        waiting_since=None,
    )


def with_depth(
    connection: Connection, database: Database, scope: Scope, found: Sequence[DestinationState]
) -> list[DestinationState]:
    """Return destinations with how many deliveries wait for each, and since when, among those that are due first."""
    given = database.sql.values_table("given", organization=Text, destination=Text)
    waits = _waiting(scope, outbox.c.organization_id, outbox.c.destination, outbox.c.created_at).subquery(
        "waits"
    )
    total = select(func.count()).select_from(waits).scalar_subquery()
    query = (
        select(given.c.organization, given.c.destination, func.count(), func.min(waits.c.created_at), total)
        .join_from(given, waits, _is_of(waits, given))
        .group_by(given.c.organization, given.c.destination)
    )
    rows = {row[:2]: row[2:] for row in connection.execute(query, _given(database, found))} if found else {}
    exact = all(row[2] <= COUNT_LIMIT for row in rows.values())
    shown = []
    for place in found:
        number, since, _ = rows.get((place.organization_id, place.destination), (0, None, 0))
        shown.append(replace(place, waiting=Counted(number=number, exact=exact), waiting_since=since))
    return shown


def pauses_of(scope: Scope) -> list[ColumnElement[bool]]:
    """Return the condition on pauses within a scope: an organization's own, and those for all of destinations that it uses."""
    if scope.organization_id is None:
        return []
    # Where others send, an organization is not told.
    place = pauses.c.destination
    has_sent = select(1).where(destinations.c.destination == place, *of_scope(destinations, scope)).exists()
    uses = or_(has_sent, place.in_(_waiting(scope, outbox.c.destination)))
    return [or_(*of_scope(pauses, scope), and_(pauses.c.organization_id == EVERY_ORGANIZATION, uses))]


def of_scope(table: Any, scope: Scope) -> list[ColumnElement[bool]]:
    """Return the condition on the rows of a table that belong to a scope; none for all organizations."""
    if scope.organization_id is None:
        return []
    return [table.c.organization_id == scope.organization_id]
