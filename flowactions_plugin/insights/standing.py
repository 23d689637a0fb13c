"""How deliveries stand: what is due, the fleet, statistics, and the health of destinations."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

import msgspec
from msgspec.structs import replace
from sqlalchemy import (
    BigInteger,
    ColumnElement,
    Row,
    Select,
    Text,
    and_,
    bindparam,
    case,
    exists,
    func,
    literal,
    or_,
    select,
    tuple_,
)
from sqlalchemy.engine import Connection

from flowactions_plugin.http.masking import reason_for_tenants
from flowactions_plugin.insights.results import (
    Bucket,
    Counted,
    DestinationState,
    LimitedNow,
    PausedNow,
    Quarantined,
    Worker,
)
from flowactions_plugin.insights.verdict import Share
from flowactions_plugin.operators.scope import AUTOMATIC, Scope
from flowactions_plugin.queue.limits import Limited
from flowactions_plugin.storage.database import Database
from flowactions_plugin.storage.dialect import Dialect, inline
from flowactions_plugin.storage.retention import HOUR_MS
from flowactions_plugin.storage.schema import (
    EVERY_ORGANIZATION,
    FAILING,
    LIVE,
    QUARANTINED,
    destinations,
    outbox,
    pauses,
    statistics,
    workers,
)
from flowactions_plugin.watch.fleet import STALE_MS
from flowactions_plugin.watch.statistics import (
    ALERT_FAILURES,
    ALERT_MS,
    BUCKET_MS,
    COUNTS,
    EVERY_DESTINATION,
)

NAMED_READ: Final = 10_000
"""Among how many destinations a host is looked for."""

_PORT: Final = re.compile(r":[0-9]{1,5}$", re.ASCII)

DUE_READ: Final = 10_000
"""How many of the oldest rows that are due are read at the most."""

QUARANTINED_READ: Final = 1000
"""How many of the deliveries in quarantine are read at the most."""

HOUR_BUCKETS: Final = HOUR_MS // BUCKET_MS
DAY_BUCKETS: Final = 24 * HOUR_BUCKETS

MOST_WORKERS: Final = 1000


class Due(NamedTuple):
    """Rows that may be claimed now.

    Attributes:
        number: how many, of those that were read.
        exact: whether these are all.
        oldest_ms: for how long the oldest has been due; ``None``: there is none.
        claimed_ms_ago: when the newest claimed row was claimed; ``None``: no row is claimed.
    """

    number: int
    exact: bool
    oldest_ms: int | None
    claimed_ms_ago: int | None


class HealthQueries:
    """The state of deliveries in one database.

    Args:
        database: which.
    """

    def __init__(self, database: Database) -> None:
        self._database = database

    def due(self, connection: Connection, scope: Scope, limit: int = DUE_READ) -> Due:
        """Return what may be claimed now, rows of paused destinations apart: among the oldest that are due."""
        now = self._database.now()
        head = (
            select(
                outbox.c.next_attempt_at,
                outbox.c.updated_at,
                or_(outbox.c.claimed_until.is_(None), outbox.c.claimed_until <= now).label("free"),
            )
            .where(
                LIVE,
                outbox.c.next_attempt_at <= now,
                ~is_paused(outbox.c.organization_id, outbox.c.destination),
                *of_scope(outbox, scope),
            )
            .order_by(outbox.c.next_attempt_at, outbox.c.id)
            .limit(inline(limit + 1))
            .subquery("head")
        )
        query = select(
            func.count().label("read"),
            func.count(case((head.c.free, 1))).label("number"),
            (now - func.min(case((head.c.free, head.c.next_attempt_at)))).label("oldest"),
            (now - func.max(case((~head.c.free, head.c.updated_at)))).label("claimed"),
        )
        row = connection.execute(query).one()
        oldest = None if row.oldest is None else max(0, row.oldest)
        return Due(min(row.number, limit), row.read <= limit, oldest, row.claimed)

    def waiting(self, connection: Connection, scope: Scope, limit: int) -> Counted:
        """Count rows that are neither delivered nor dead, up to a limit."""
        rows = select(literal(1)).select_from(outbox).where(LIVE, *of_scope(outbox, scope))
        return count_up_to(connection, rows, limit)

    def buckets(self, connection: Connection, scope: Scope, now: int) -> list[Bucket]:
        """Return the last day in intervals of five minutes, the oldest first; intervals without an attempt too."""
        last = now - now % BUCKET_MS
        starts = [last - number * BUCKET_MS for number in reversed(range(DAY_BUCKETS))]
        given = {
            "starts": self._database.sql.json_rows([{"at": at} for at in starts]),
            "organization": scope.organization_id or EVERY_ORGANIZATION,
        }
        query = self._database.built(_of_intervals)
        rows = connection.execute(query, given)
        found = {row.bucket: {name: getattr(row, name) for name in COUNTS} for row in rows}
        return [Bucket(at=at, **found.get(at, {})) for at in starts]

    def quarantined(self, connection: Connection, scope: Scope, limit: int) -> list[Quarantined]:
        """Return deliveries in quarantine, the oldest first."""
        # An index holds only the few rows in quarantine. If the query also named the organization, SQLite would read all of its rows.
        every = (
            select(
                *(
                    outbox.c[name]
                    for name in ("id", "organization_id", "destination", "takeovers", "next_attempt_at")
                )
            )
            .where(QUARANTINED)
            .order_by(outbox.c.next_attempt_at, outbox.c.id)
            .limit(inline(QUARANTINED_READ))
            .subquery("every")
        )
        mine = select(every).where(*of_scope(every, scope))
        query = mine.order_by(every.c.next_attempt_at, every.c.id).limit(inline(limit))
        return [
            Quarantined(
                id=row.id,
                organization_id=row.organization_id,
                destination=row.destination,
                reclaims=row.takeovers,
            )
            for row in connection.execute(query).all()
        ]

    def paused(self, connection: Connection, scope: Scope) -> PausedNow:
        """Return what is paused; of an organization with what is paused for all."""
        whose = () if scope.organization_id is None else (scope.organization_id, EVERY_ORGANIZATION)
        query = select(
            func.count().label("number"),
            func.count(case((pauses.c.paused_role == inline(AUTOMATIC.role), 1))).label("automatic"),
            func.min(pauses.c.paused_at).label("since"),
        )
        row = connection.execute(query.where(pauses.c.organization_id.in_(whose)) if whose else query).one()
        return PausedNow(destinations=row.number, automatic=row.automatic, since=row.since)

    def workers(self, connection: Connection, now: int) -> list[Worker]:
        """Return the processes that deliver, those seen last first."""
        query = (
            select(workers).order_by(workers.c.last_seen_at.desc(), workers.c.id).limit(inline(MOST_WORKERS))
        )
        return [_worker(row, now) for row in connection.execute(query)]

    def limited(self, connection: Connection, now: int) -> Mapping[str, int]:
        """Return the destinations that workers which are alive limit, each since the first of them began to."""
        query = select(workers.c.limited).where(
            workers.c.limited.is_not(None),
            workers.c.stopped_at.is_(None),
            workers.c.last_seen_at >= now - STALE_MS,
        )
        found: dict[str, int] = {}
        for row in connection.execute(query.limit(inline(MOST_WORKERS))).all():
            for each, since in _limited_of(row.limited).items():
                found[each] = min(since, found.get(each, since))
        return found

    def limited_now(self, connection: Connection, scope: Scope, now: int) -> LimitedNow:
        """Return how much of a scope workers limit."""
        mine = self.limited(connection, now)
        if scope.organization_id is not None and mine:
            named = self._database.sql.values_table("named", destination=Text)
            known = select(destinations.c.destination).join_from(
                named,
                destinations,
                and_(
                    destinations.c.destination == named.c.destination,
                    destinations.c.organization_id == scope.organization_id,
                ),
            )
            given = self._database.sql.json_rows([{"destination": each} for each in mine])
            mine = {
                row.destination: mine[row.destination] for row in connection.execute(known, {"named": given})
            }
        return LimitedNow(destinations=len(mine), since=min(mine.values(), default=None))

    def busiest(
        self, connection: Connection, scope: Scope, now: int, limit: int
    ) -> tuple[list[DestinationState], list[DestinationState]]:
        """Return the destinations of the last hour with the most failures, and those that took workers' time most."""
        since = now - now % BUCKET_MS - HOUR_MS
        totals = (
            select(
                statistics.c.organization_id,
                statistics.c.destination,
                *(func.sum(statistics.c[name]).label(name) for name in ("failed", "duration_ms")),
            )
            .where(
                statistics.c.bucket > since,
                statistics.c.destination != EVERY_DESTINATION,
                *of_scope(statistics, scope),
            )
            .group_by(statistics.c.organization_id, statistics.c.destination)
            .subquery("totals")
        )
        found: list[list[DestinationState]] = []
        for name in ("failed", "duration_ms"):
            query = (
                select(totals.c.organization_id, totals.c.destination)
                .where(totals.c[name] > 0)
                .order_by(totals.c[name].desc(), totals.c.organization_id, totals.c.destination)
                .limit(inline(limit))
            )
            keys = [(row.organization_id, row.destination) for row in connection.execute(query)]
            if name == "failed" and len(keys) < limit:
                keys = list(dict.fromkeys([*keys, *self._failing(connection, scope, limit)]))[:limit]
            found.append(self.states(connection, keys, now, scope))
        return found[0], found[1]

    def still_failing(self, connection: Connection, scope: Scope, since: int) -> list[Share]:
        """Return attempts that have failed to destinations that still fail, by organization, the most failures first.

        Args:
            connection: reads it.
            scope: whose.
            since: the start of the first interval that counts.

        Returns:
            The attempts that have not failed are not counted.
        """
        failed = func.sum(statistics.c.failed).label("failed")
        places = func.count(statistics.c.destination.distinct()).label("places")
        query = (
            select(statistics.c.organization_id, failed, places)
            .join_from(
                statistics,
                destinations,
                and_(
                    destinations.c.organization_id == statistics.c.organization_id,
                    destinations.c.destination == statistics.c.destination,
                ),
            )
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
            Share(row.organization_id, int(row.failed), int(row.failed), row.places)
            for row in connection.execute(query)
        ]

    def failing(self, connection: Connection, scope: Scope, now: int, limit: int) -> list[tuple[str, str]]:
        """Return destinations that fail now, those that have failed for longest first; see `QueueStatus.failing`."""
        health = destinations.c
        waits = exists().where(
            LIVE, outbox.c.destination == health.destination, outbox.c.organization_id == health.organization_id
        )
        query = (
            select(health.organization_id, health.destination)
            .where(
                FAILING,
                health.organization_id != inline(EVERY_ORGANIZATION),  # that of alerts is told apart
                or_(
                    health.failures_in_row >= ALERT_FAILURES,
                    health.last_failure_at - health.failing_since >= ALERT_MS,
                ),
                or_(health.last_failure_at >= now - HOUR_MS, waits),
                *of_scope(destinations, scope),
            )
            .order_by(health.failing_since, health.organization_id, health.destination)
            .limit(inline(limit))
        )
        return [(row.organization_id, row.destination) for row in connection.execute(query)]

    def _failing(self, connection: Connection, scope: Scope, limit: int) -> list[tuple[str, str]]:
        query = (
            select(destinations.c.organization_id, destinations.c.destination)
            .where(FAILING, *of_scope(destinations, scope))
            .order_by(destinations.c.failing_since)
            .limit(inline(limit))
        )
        return [(row.organization_id, row.destination) for row in connection.execute(query)]

    def page(
        self, connection: Connection, scope: Scope, after: tuple[str, str] | None, limit: int
    ) -> list[tuple[str, str]]:
        """Return the keys of destinations in order, behind one of them."""
        key = (destinations.c.organization_id, destinations.c.destination)
        query = select(*key).where(*of_scope(destinations, scope)).order_by(*key).limit(inline(limit))
        if after is not None:
            query = query.where(tuple_(*key) > after)
        return [(row.organization_id, row.destination) for row in connection.execute(query)]

    def named(self, connection: Connection, scope: Scope, host: str, limit: int) -> list[str]:
        """Return destinations whose host holds a text, the shortest first, among `NAMED_READ` of the scope.

        Of all organizations, those to which something was sent last are read.

        Args:
            connection: an open one.
            scope: what may be seen.
            host: a part of a host name in lower case, with a colon and the port, or without.
            limit: how many at the most.
        """
        # Each is the order of an index.
        order = (
            destinations.c.updated_at.desc() if scope.organization_id is None else destinations.c.destination
        )
        known = select(destinations.c.destination).where(*of_scope(destinations, scope)).order_by(order)
        recent = known.limit(inline(NAMED_READ)).subquery("recent")
        # The shortest first, so that a whole host stands before those of which it is a part.
        length = func.length(recent.c.destination)
        found = select(recent.c.destination).group_by(recent.c.destination)
        found = found.order_by(length, recent.c.destination).limit(inline(limit))
        # The port stands behind the last colon.
        part = host.replace("_", "\\_")  # the only character of hosts that is one of patterns
        pattern = f"%://%{part}" if _PORT.search(host) else f"%://%{part}%:%"
        query = found.where(recent.c.destination.like(pattern, escape="\\"))
        return [row.destination for row in connection.execute(query).all()]

    def states(
        self, connection: Connection, keys: Sequence[tuple[str, str]], now: int, scope: Scope
    ) -> list[DestinationState]:
        """Return the state of destinations, in the order of their keys, as a scope may see it; each with its last hour."""
        if not keys:
            return []
        last = now - now % BUCKET_MS
        hour = [last - number * BUCKET_MS for number in range(HOUR_BUCKETS)]
        wanted = self._database.sql.values_table("wanted", organization=Text, target=Text)
        given = {
            "wanted": self._database.sql.json_rows([{"organization": one, "target": two} for one, two in keys])
        }
        sums = (
            select(
                statistics.c.organization_id,
                statistics.c.destination,
                *(func.sum(statistics.c[name]).label(name) for name in COUNTS),
            )
            .join_from(wanted, statistics, _is(statistics, wanted))
            .where(statistics.c.bucket.in_(hour))
            .group_by(statistics.c.organization_id, statistics.c.destination)
        )
        paused = case((is_paused(wanted.c.organization, wanted.c.target), 1), else_=0)
        health = select(wanted.c.organization, wanted.c.target, paused.label("paused"), destinations).join_from(
            wanted, destinations, _is(destinations, wanted), isouter=True
        )
        counts = {(row.organization_id, row.destination): row for row in connection.execute(sums, given)}
        known = {(row.organization, row.target): row for row in connection.execute(health, given)}
        limited = self.limited(connection, now)
        found = [_state(key, known[key], counts.get(key), limited.get(key[1])) for key in keys]
        return found if scope.organization_id is None else [*map(_for_tenants, found)]


def _of_intervals(sql: Dialect) -> Select[Any]:
    """Select the sums of the organization and the intervals in the parameters, each by the primary key."""
    starts = sql.values_table("starts", at=BigInteger)
    return select(statistics).join_from(
        starts,
        statistics,
        and_(
            statistics.c.bucket == starts.c.at,
            statistics.c.organization_id == bindparam("organization", type_=Text),
            statistics.c.destination == EVERY_DESTINATION,
        ),
    )


def is_paused(organization_id: Any, destination: Any) -> ColumnElement[bool]:
    """Return the condition that a destination is paused, by its organization or for all."""
    return exists().where(
        pauses.c.destination == destination,
        or_(pauses.c.organization_id == organization_id, pauses.c.organization_id == EVERY_ORGANIZATION),
    )


def count_up_to(connection: Connection, rows: Select[Any], limit: int) -> Counted:
    """Count rows, up to a limit."""
    query = select(func.count()).select_from(rows.limit(inline(limit + 1)).subquery())
    number = connection.execute(query).scalar_one()
    return Counted(number=min(number, limit), exact=number <= limit)


def of_scope(table: Any, scope: Scope) -> list[ColumnElement[bool]]:
    """Return the condition on the rows of a table that belong to a scope; none for all organizations."""
    if scope.organization_id is None:
        return []
    return [table.c.organization_id == scope.organization_id]


def _is(table: Any, wanted: Any) -> ColumnElement[bool]:
    return and_(table.c.organization_id == wanted.c.organization, table.c.destination == wanted.c.target)


def _worker(row: Row[Any], now: int) -> Worker:
    values = {name: getattr(row, name) for name in Worker.__struct_fields__ if name != "state"}
    if row.stopped_at is not None:
        return Worker(**values, state="stopped")
    return Worker(**values, state="alive" if row.last_seen_at >= now - STALE_MS else "stale")


def _limited_of(text: Any) -> Mapping[str, int]:
    """Return what a worker has written; nothing, where no worker of this release can have written it."""
    try:
        return msgspec.json.decode(text, type=Limited).destinations
    except (msgspec.DecodeError, UnicodeError, TypeError):
        return {}


def _for_tenants(state: DestinationState) -> DestinationState:
    """Return a state without what only operators may read."""
    return replace(state, last_reason=reason_for_tenants(state.last_reason or "", state.destination) or None)


def _state(
    key: tuple[str, str], health: Row[Any], counts: Row[Any] | None, limited_since: int | None
) -> DestinationState:
    organization_id, destination = key
    sums = [0 if counts is None else int(getattr(counts, name)) for name in COUNTS]
    return DestinationState(
        destination=destination,
        organization_id=organization_id,
        delivered=sums[0],
        failed=sums[1],
        dead=sums[2],
        worker_ms=sums[3],
        last_success_at=health.last_success_at,
        failing_since=health.failing_since,
        failures_in_row=health.failures_in_row or 0,
        last_error=health.last_error,
        last_reason=health.last_reason or health.last_error,
        paused=bool(health.paused),
        limited_since=limited_since,
    )
