"""How deliveries stand, as pages, commands and metrics show it: what is due, the fleet, destinations, the verdict."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, NamedTuple, Self, TypeVar

from msgspec.structs import replace
from sqlalchemy.engine import Connection

from flowactions_plugin.egress.destination import parse_destination
from flowactions_plugin.errors import EgressRefused
from flowactions_plugin.http.masking import reason_for_tenants
from flowactions_plugin.insights.failures import blocked, failures, with_depth
from flowactions_plugin.insights.findings import NAMED, Facts, findings_of, worst_of
from flowactions_plugin.insights.results import (
    Bucket,
    Counted,
    DestinationState,
    InboundFailing,
    Overview,
    Verdict,
    Worker,
)
from flowactions_plugin.insights.standing import HOUR_BUCKETS, Due, HealthQueries
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
from flowactions_plugin.storage.schema import EVERY_ORGANIZATION
from flowactions_plugin.watch.statistics import BUCKET_MS, COUNTS

T = TypeVar("T")

COUNT_LIMIT: Final = 2500
"""Up to how many rows that are due, wait, or are dead, an overview counts."""

FAILING_COUNTED: Final = 200
"""Up to how many destinations that fail an overview counts."""

SHOWN: Final = 5
"""How many destinations, flows, nodes and deliveries in quarantine an overview names of each kind."""

FAILING_INTERVALS: Final = FAILING_MINUTES * 60_000 // BUCKET_MS
"""How many intervals the verdict counts failures in."""


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
        self._health = HealthQueries(database)

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

    def overview(
        self,
        connection: Connection,
        scope: Scope,
        dead: Counted,
        chat: Counted,
        inbound: Sequence[InboundFailing],
        shown: int = SHOWN,
    ) -> Overview:
        """Return how deliveries stand.

        Args:
            connection: reads it.
            scope: whose.
            dead: how many are dead.
            chat: how many chat connections cannot send.
            inbound: providers whose events are not processed.
            shown: how many destinations, flows and nodes are named of each kind.
        """
        now = self._database.time_on(connection)
        status = self._status_of(connection, scope, now)
        worst, slowest = self._health.busiest(connection, scope, now, shown)
        due = status.due
        waiting = self._health.waiting(connection, scope, COUNT_LIMIT)
        keys = self._health.failing(connection, scope, now, FAILING_COUNTED + 1)
        blocks = blocked(connection, scope, NAMED + 1)
        if scope.organization_id is not None:
            blocks = [replace(each, reason=reason_for_tenants(each.reason, "")) for each in blocks]
        facts = Facts(
            now=now,
            sees_all=scope.organization_id is None,
            verdict=status.verdict,
            due=Counted(number=due.number, exact=due.exact),
            oldest_due_ms=due.oldest_ms or 0,
            waiting=waiting,
            dead=dead,
            workers=status.workers,
            failing=self._health.states(connection, keys[:NAMED], now, scope),
            failing_number=Counted(number=min(len(keys), FAILING_COUNTED), exact=len(keys) <= FAILING_COUNTED),
            blocked=blocks,
            quarantined=self._health.quarantined(connection, scope, NAMED + 1),
            paused=self._health.paused(connection, scope),
            limited=self._health.limited_now(connection, scope, now),
            chat=chat,
            inbound=inbound,
            alerts=self._failing_alerts(connection, now) if scope.organization_id is None else None,
        )
        found = findings_of(facts)
        return Overview(
            due=due.number,
            due_exact=due.exact,
            oldest_due_ms=facts.oldest_due_ms,
            waiting=waiting,
            dead=dead,
            hour=status.buckets[-HOUR_BUCKETS:],
            day=_hours(status.buckets),
            workers=status.workers,
            worst=worst,
            slowest=slowest,
            failures=failures(connection, scope, now, shown),
            verdict=status.verdict,
            findings=found,
            level=worst_of(found),
        )

    def _failing_alerts(self, connection: Connection, now: int) -> DestinationState | None:
        if self._alerts_at is None:
            return None
        (state,) = self._health.states(connection, [(EVERY_ORGANIZATION, self._alerts_at)], now, Scope())
        return None if state.failing_since is None else state

    async def verdict(self, scope: Scope = Scope()) -> Verdict:  # noqa: B008  immutable
        """Return whether deliveries go on.

        Args:
            scope: whose.

        Raises:
            StorageUnavailable: the database failed.
        """
        return await self._read(
            lambda connection: self._status_of(connection, scope, self._database.time_on(connection)).verdict
        )

    async def due(self, scope: Scope = Scope()) -> tuple[Counted, int]:  # noqa: B008  immutable
        """Return how many rows may be claimed now, rows of paused destinations apart, and for how long the oldest has been due.

        Returns:
            The number, counted among the ten thousand oldest, and milliseconds; 0: nothing is due.

        Raises:
            StorageUnavailable: the database failed.
        """
        due = await self._read(lambda connection: self._health.due(connection, scope))
        return Counted(number=due.number, exact=due.exact), due.oldest_ms or 0

    async def blocked_ms(self) -> int:
        """Return the milliseconds for which the oldest blocked delivery has waited without an attempt; 0: none is blocked.

        Raises:
            StorageUnavailable: the database failed.
        """

        def read(connection: Connection) -> int:
            since = [each.since for each in blocked(connection, Scope(), SHOWN) if each.since is not None]
            return max(0, self._database.time_on(connection) - min(since)) if since else 0

        return await self._read(read)

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

        def read(connection: Connection) -> list[DestinationState]:
            keys = self._health.page(connection, scope, after, limit)
            found = self._health.states(connection, keys, self._database.time_on(connection), scope)
            return with_depth(connection, scope, found)

        return await self._read(read)

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
            keys = self._health.failing(connection, scope, now, limit)
            return with_depth(connection, scope, self._health.states(connection, keys, now, scope))

        return await self._read(read)

    async def workers(self) -> list[Worker]:
        """Return the processes that deliver, those seen last first.

        Raises:
            StorageUnavailable: the database failed.
        """
        return await self._read(
            lambda connection: self._health.workers(connection, self._database.time_on(connection))
        )

    async def destinations_named(self, scope: Scope, host: str, limit: int) -> list[str]:
        """Return destinations whose host holds a text, among ten thousand: of all organizations, those that were used last.

        Args:
            scope: what may be seen.
            host: a part of a host name in lower case, with a colon and the port, or without.
            limit: how many at the most.

        Raises:
            StorageUnavailable: the database failed.
        """
        return await self._read(lambda connection: self._health.named(connection, scope, host, limit))

    async def _read(self, work: Callable[[Connection], T]) -> T:
        async with self._database.read() as connection:
            return await connection.run_sync(work)

    def _status_of(self, connection: Connection, scope: Scope, now: int) -> _Status:
        due = self._health.due(connection, scope, COUNT_LIMIT)
        if not due.number and not due.exact:
            # All of them are claimed, or wait to be parked: what may be claimed stands behind them.
            due = self._health.due(connection, scope)
        workers = self._health.workers(connection, now)
        buckets = self._health.buckets(connection, scope, now)
        alive = [each for each in workers if each.state == "alive"]
        claims = [now - each.last_claim_at for each in workers if each.last_claim_at is not None]
        if due.claimed_ms_ago is not None:
            claims.append(due.claimed_ms_ago)
        # A worker that claims may not have reported itself yet.
        seen = [now - each.last_seen_at for each in workers] + claims
        attempts, failed = _attempts(buckets)
        worst: Share | None = None
        if mostly_fail(attempts, failed):
            failed, worst = self._still_failing(connection, scope, now, buckets)
        modes = {each.mode for each in alive}
        mode = "continuous" if "continuous" in modes else self._mode if not modes else "scheduled"
        refused = self._database.refused
        sample = HealthSample(
            oldest_due_ms=due.oldest_ms,
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
        return _Status(due, workers, buckets, judge(sample, patience_ms(mode, self._tick_seconds)))

    def _still_failing(
        self, connection: Connection, scope: Scope, now: int, buckets: Sequence[Bucket]
    ) -> tuple[int, Share | None]:
        """Return how many of the last minutes' attempts have failed to destinations that still fail, and whose most are."""
        found = self._health.still_failing(connection, scope, buckets[-FAILING_INTERVALS].at)
        failed = sum(each.failed for each in found)
        if not found or scope.organization_id is not None:
            return failed, None
        worst = found[0]
        own, _ = _attempts(self._health.buckets(connection, Scope(worst.organization_id), now))
        return failed, worst._replace(attempts=own)


def _alerts_at(settings: Settings) -> str | None:
    try:
        return None if settings.alerts_url is None else parse_destination(settings.alerts_url).key
    except EgressRefused:
        return None  # no host starts with it


class _Status(NamedTuple):
    """How deliveries stand, and the verdict."""

    due: Due
    workers: list[Worker]
    buckets: list[Bucket]
    verdict: Verdict


def _attempts(buckets: Sequence[Bucket]) -> tuple[int, int]:
    """Return how many attempts of the last minutes were made, and how many of them have failed."""
    late = buckets[-FAILING_INTERVALS:]
    failed = sum(each.failed for each in late)
    return sum(each.delivered for each in late) + failed, failed


def _hours(buckets: Sequence[Bucket]) -> list[Bucket]:
    """Return the sums of a day's intervals, hour by hour, counted back from now."""
    hours = [buckets[start : start + HOUR_BUCKETS] for start in range(0, len(buckets), HOUR_BUCKETS)]
    return [
        Bucket(at=hour[0].at, **{name: sum(getattr(each, name) for each in hour) for name in COUNTS})
        for hour in hours
    ]
