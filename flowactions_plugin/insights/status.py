"""How deliveries stand, as pages, commands and metrics show it: what is due, the fleet, destinations, the verdict."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, Self, TypeVar

from sqlalchemy import Row, tuple_
from sqlalchemy.engine import Connection

from flowactions_plugin.egress.destination import parse_destination
from flowactions_plugin.errors import EgressRefused
from flowactions_plugin.http.masking import reason_for_tenants
from flowactions_plugin.insights import standing
from flowactions_plugin.insights.failures import failures
from flowactions_plugin.insights.findings import (
    FAILING_COUNTED,
    NAMED,
    Blocked,
    Facts,
    findings_of,
    worst_of,
)
from flowactions_plugin.insights.results import Bucket, Counted, DestinationState, Overview, Verdict, Worker
from flowactions_plugin.insights.standing import COUNT_LIMIT, HOUR_BUCKETS, counted
from flowactions_plugin.insights.verdict import (
    ABSENT_MS,
    FAILING_MINUTES,
    HealthSample,
    Share,
    judge,
    mostly_fail,
    patience_ms,
)
from flowactions_plugin.operators.scope import Scope
from flowactions_plugin.settings.model import Settings
from flowactions_plugin.storage.database import Database
from flowactions_plugin.storage.schema import EVERY_ORGANIZATION, destinations
from flowactions_plugin.watch.statistics import BUCKET_MS, COUNTS

T = TypeVar("T")

SHOWN: Final = 5
"""How many destinations, flows and nodes an overview names of each kind."""

_BY_KEY: Final = ("organization_id", "destination")


class QueueStatus:
    """How the deliveries of one database stand. Each query reads a bounded number of rows.

    Args:
        database: which.
        mode: how workers deliver: ``scheduled`` or ``continuous``. It decides, where no worker is alive, after how long
            deliveries have stalled.
        tick_seconds: from one tick to the next, in scheduled mode.
        uptime_ms: returns for how long this process could have seen a worker, where none has ever been.
        alerts_at: the destination of alerts; ``None``: none are sent.
    """

    def __init__(
        self,
        database: Database,
        *,
        mode: str = "scheduled",
        tick_seconds: float = 60.0,
        uptime_ms: Callable[[], int] = lambda: ABSENT_MS,
        alerts_at: str | None = None,
    ) -> None:
        self._database = database
        self._uptime_ms = uptime_ms
        self._alerts_at = alerts_at
        self._mode = mode
        self._tick_seconds = tick_seconds

    @classmethod
    def of(
        cls,
        database: Database,
        settings: Settings,
        uptime_ms: Callable[[], int] = lambda: ABSENT_MS,
    ) -> Self:
        """Return that of a host with these settings."""
        return cls(
            database,
            mode=settings.delivery,
            tick_seconds=settings.tick_seconds,
            uptime_ms=uptime_ms,
            alerts_at=_alerts_at(settings),
        )

    async def overview(self, scope: Scope, shown: int = SHOWN) -> Overview:
        """Return how deliveries stand, in ten statements at the most.

        Args:
            scope: whose.
            shown: how many destinations, flows and nodes are named of each kind.

        Raises:
            StorageUnavailable: the database failed.
        """

        def read(connection: Connection) -> Overview:
            facts = self._facts(connection, scope)
            now, limited = facts.now, facts.limited
            if limited and not facts.sees_all:
                limited = standing.known_of(connection, scope, limited)
            worst, slowest = standing.busiest(connection, scope, now, shown, limited)
            order = ("failing_since", *_BY_KEY)
            failing = standing.failing_now(now)
            facts = facts._replace(
                limited=limited,
                failing=standing.states(connection, scope, now, failing, order, FAILING_COUNTED + 1, limited),
                worst=worst[:SHOWN],
                quarantined=standing.quarantined(connection, scope, NAMED + 1),
                inbound=standing.inbound_failing(connection, now) if facts.sees_all else (),
            )
            found = findings_of(facts)
            return Overview(
                due=facts.due,
                oldest_due_ms=facts.oldest_due_ms,
                waiting=facts.waiting,
                dead=facts.dead,
                hour=facts.buckets[-HOUR_BUCKETS:],
                day=_hours(facts.buckets),
                workers=facts.workers,
                worst=worst,
                slowest=slowest,
                failures=failures(connection, scope, now, shown),
                verdict=facts.verdict,
                findings=found,
                level=worst_of(found),
            )

        return await self._read(read)

    async def facts(self, scope: Scope = Scope()) -> Facts:  # noqa: B008  immutable
        """Return what the verdict and the gauges are made of.

        Args:
            scope: whose.

        Raises:
            StorageUnavailable: the database failed.
        """
        return await self._read(lambda connection: self._facts(connection, scope))

    async def destinations(
        self, scope: Scope, limit: int, after: tuple[str, str] | None = None
    ) -> list[DestinationState]:
        """Return destinations to which something was sent, by organization and name.

        Args:
            scope: what may be seen.
            limit: how many at the most.
            after: organization and destination of the last of the page before.

        Raises:
            StorageUnavailable: the database failed.
        """
        key = tuple_(*(destinations.c[name] for name in _BY_KEY))
        behind = [] if after is None else [key > after]
        return await self._read(
            lambda connection: self._states(
                connection, scope, self._database.time_on(connection), behind, _BY_KEY, limit
            )
        )

    async def failing(self, limit: int, scope: Scope = Scope()) -> list[DestinationState]:  # noqa: B008  immutable
        """Return destinations that fail now, those that have failed for longest first.

        A destination fails as it does for an alert, and has failed within the last hour, or deliveries wait for it. One whose
        last attempt has succeeded does not fail.

        Args:
            limit: how many at the most.
            scope: what may be seen.

        Raises:
            StorageUnavailable: the database failed.
        """

        def read(connection: Connection) -> list[DestinationState]:
            now = self._database.time_on(connection)
            order = ("failing_since", *_BY_KEY)
            return self._states(connection, scope, now, standing.failing_now(now), order, limit)

        return await self._read(read)

    async def workers(self) -> list[Worker]:
        """Return the processes that deliver, those seen last first.

        Raises:
            StorageUnavailable: the database failed.
        """
        return await self._read(
            lambda connection: standing.workers_of(connection, self._database.time_on(connection))[0]
        )

    async def _read(self, work: Callable[[Connection], T]) -> T:
        async with self._database.read() as connection:
            return await connection.run_sync(work)

    def _states(
        self,
        connection: Connection,
        scope: Scope,
        now: int,
        conditions: Sequence[Any],
        order: Sequence[str],
        limit: int,
    ) -> list[DestinationState]:
        """Return destinations with what waits for them."""
        _, limited = standing.workers_of(connection, now)
        found = standing.states(connection, scope, now, conditions, order, limit, limited)
        return standing.with_depth(connection, scope, found)

    def _facts(self, connection: Connection, scope: Scope) -> Facts:
        rows = standing.numbers(connection, self._database, scope, self._alerts_at)
        first, sees_all = rows[0], scope.organization_id is None
        now = first.now
        workers, limited = standing.workers_of(connection, now)
        buckets = standing.buckets_of(connection, scope, now)
        waiting = sum(row.number or 0 for row in rows)
        return Facts(
            now=now,
            sees_all=sees_all,
            verdict=self._verdict(connection, scope, first, workers, buckets),
            due=Counted(number=min(first.due, COUNT_LIMIT), exact=first.due_read <= COUNT_LIMIT),
            oldest_due_ms=max(0, first.oldest_due_ms or 0),
            waiting=counted(waiting),
            dead=counted(first.dead),
            chat=counted(first.chat),
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
            alerts=None
            if first.alerts_destination is None
            else DestinationState(
                destination=first.alerts_destination,
                organization_id=EVERY_ORGANIZATION,
                failing_since=first.alerts_failing_since,
                failures_in_row=first.alerts_failures_in_row,
                last_reason=first.alerts_last_reason or first.alerts_last_error,
            ),
            workers=workers,
            limited=limited,
            buckets=buckets,
        )

    def _verdict(
        self,
        connection: Connection,
        scope: Scope,
        numbers: Row[Any],
        workers: Sequence[Worker],
        buckets: Sequence[Bucket],
    ) -> Verdict:
        now = numbers.now
        alive = [each for each in workers if each.state == "alive"]
        claims = [now - each.last_claim_at for each in workers if each.last_claim_at is not None]
        if numbers.claimed_ms_ago is not None:
            claims.append(numbers.claimed_ms_ago)
        # A worker that claims may not have reported itself yet.
        seen = [now - each.last_seen_at for each in workers] + claims
        late = buckets[-FAILING_MINUTES * 60_000 // BUCKET_MS :]
        failed = sum(each.failed for each in late)
        attempts = sum(each.delivered for each in late) + failed
        worst: Share | None = None
        if mostly_fail(attempts, failed):
            shares = standing.still_failing(connection, scope, late[0].at)
            failed = sum(each.failed for each in shares)
            worst = shares[0] if shares and scope.organization_id is None else None
        modes = {each.mode for each in alive}
        mode = "continuous" if "continuous" in modes else self._mode if not modes else "scheduled"
        refused = self._database.refused
        sample = HealthSample(
            oldest_due_ms=None if numbers.oldest_due_ms is None else max(0, numbers.oldest_due_ms),
            claimed_ms_ago=max(0, min(claims)) if claims else None,
            alive=len(alive),
            attempts=attempts,
            failed=failed,
            absent_ms=None if alive else min(seen, default=self._uptime_ms()),
            refusal=None if refused is None else refused.words,
            worst=worst,
            clock_ahead_ms=max((each.clock_ahead_ms or 0 for each in alive), key=abs, default=0),
            # Whose it is, an organization's people may not know.
            snapshot=None if scope.organization_id is not None else self._database.oldest_snapshot(connection),
            in_ticks=mode != "continuous",
        )
        return judge(sample, patience_ms(mode, self._tick_seconds))


def _alerts_at(settings: Settings) -> str | None:
    try:
        return None if settings.alerts_url is None else parse_destination(settings.alerts_url).key
    except EgressRefused:
        return None  # no host starts with it


def _hours(buckets: Sequence[Bucket]) -> list[Bucket]:
    """Return the sums of a day's intervals, hour by hour, counted back from now."""
    hours = [buckets[start : start + HOUR_BUCKETS] for start in range(0, len(buckets), HOUR_BUCKETS)]
    return [
        Bucket(at=hour[0].at, **{name: sum(getattr(each, name) for each in hour) for name in COUNTS})
        for hour in hours
    ]
