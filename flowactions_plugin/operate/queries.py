"""What operators see of one database. Each query reads a bounded number of rows, however many there are."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple, Self, TypeAlias, TypeVar

from msgspec.structs import replace
from sqlalchemy import select
from sqlalchemy.engine import Connection

from flowactions_plugin.clock import is_id
from flowactions_plugin.errors import FilterInvalid
from flowactions_plugin.health.writes import Writes
from flowactions_plugin.operate.delivery_queries import DeliveryQueries
from flowactions_plugin.operate.health_queries import HOUR_BUCKETS, Due, HealthQueries
from flowactions_plugin.operate.health_results import Bucket, DestinationState, Overview, Verdict, Worker
from flowactions_plugin.operate.results import AuditEntry, ChatConnection, Counted, Found, InboundEvent, Page
from flowactions_plugin.operate.scope import Scope
from flowactions_plugin.operate.search_queries import DeliverySearch
from flowactions_plugin.operate.verdict import ABSENT_MS, FAILING_MINUTES, Signs, judge, patience_ms
from flowactions_plugin.operate.views import entry_of, struct_of
from flowactions_plugin.outbox.queries import Filter
from flowactions_plugin.settings import Settings
from flowactions_plugin.storage.database import Database
from flowactions_plugin.storage.dialect import inline
from flowactions_plugin.storage.schema import audit, chat_connections, inbound_events
from flowactions_plugin.storage.text import raw_bytes, read_all

T = TypeVar("T")

Unreadable: TypeAlias = Callable[[str, bytes], str | None]
"""An organization and its sealed chat token → the code of why a process cannot use it."""

COUNT_LIMIT: Final = 2500
"""Up to how many rows that are due, wait, or are dead, an overview counts."""

SEARCH_COUNT_LIMIT: Final = 2500
"""Up to how many rows a search counts: each may be on another page of the table."""

SHOWN: Final = 5
"""How many destinations an overview shows of each kind."""


class OperatorQueries:
    """The queue of one database, for operators.

    Args:
        database: which.
        mode: how workers deliver: ``scheduled`` or ``continuous``. It decides, where no worker is alive, after how long
            deliveries have stalled.
        tick_seconds: from one tick to the next, in scheduled mode.
        destination_limit: attempts to one destination at once, in each worker; ``None``: no limit.
        writes: tries whether the database takes writes; ``None``: one of its own.
        uptime_ms: returns for how long this process could have seen a worker, where none has ever been.
    """

    def __init__(
        self,
        database: Database,
        *,
        mode: str = "scheduled",
        tick_seconds: float = 60.0,
        destination_limit: int | None = None,
        writes: Writes | None = None,
        uptime_ms: Callable[[], int] = lambda: ABSENT_MS,
    ) -> None:
        self._database = database
        self.writes = writes or Writes(database)
        self._uptime_ms = uptime_ms
        self._mode = mode
        self._tick_seconds = tick_seconds
        self._search = DeliverySearch(database)
        self._health = HealthQueries(database)
        self._delivery = DeliveryQueries(database, destination_limit)

    @classmethod
    def of(
        cls,
        database: Database,
        settings: Settings,
        writes: Writes | None = None,
        uptime_ms: Callable[[], int] = lambda: ABSENT_MS,
    ) -> Self:
        """Return the queries of a host with these settings."""
        return cls(
            database,
            mode=settings.delivery,
            tick_seconds=settings.tick_seconds,
            destination_limit=settings.per_destination,
            writes=writes,
            uptime_ms=uptime_ms,
        )

    async def deliveries(self, scope: Scope, wanted: Filter, before: str | None, limit: int) -> Page:
        """Return a page of deliveries, newest first.

        A search that no index serves (decision 33) reads back some thousand rows, and says how far: the next page goes on
        there. What has failed is found by event, destination and node at once, however old. Such rows come on the first
        pages, before newer ones that are found by reading back; each row comes once.

        Args:
            scope: what may be seen.
            wanted: which.
            before: `Page.next_cursor` of the page before; ``None``: the first page.
            limit: rows at the most.

        Raises:
            FilterInvalid: ``before`` is no cursor of this search.
            StorageUnavailable: the database failed.
        """
        return await self._search.page(scope, wanted, before, limit)

    async def count(self, scope: Scope, wanted: Filter, limit: int = SEARCH_COUNT_LIMIT) -> Counted:
        """Count deliveries, up to a limit, among some thousand rows where no index serves the filter.

        Raises:
            StorageUnavailable: the database failed.
        """
        return await self._search.count(scope, wanted, limit)

    async def delivery(self, scope: Scope, delivery_id: str) -> Found | None:
        """Return one delivery with everything that is known of it; ``None``: there is none within the scope.

        Raises:
            StorageUnavailable: the database failed.
        """
        return await self._delivery.found(scope, delivery_id)

    async def overview(self, scope: Scope) -> Overview:
        """Return how deliveries stand.

        Raises:
            StorageUnavailable: the database failed.
        """
        refusal = await self.writes.refused()

        def read(connection: Connection) -> Overview:
            now = self._now(connection)
            standing = self._standing(connection, scope, now, refusal)
            worst, slowest = self._health.busiest(connection, scope, now, SHOWN)
            due = standing.due
            return Overview(
                due=due.number,
                due_exact=due.exact,
                oldest_due_ms=due.oldest_ms or 0,
                waiting=self._health.waiting(connection, scope, COUNT_LIMIT),
                dead=self._search.counted(connection, scope, Filter(status="dead"), COUNT_LIMIT),
                hour=standing.buckets[-HOUR_BUCKETS:],
                day=_hours(standing.buckets),
                workers=standing.workers,
                worst=worst,
                slowest=slowest,
                verdict=standing.verdict,
            )

        return await self._read(read)

    async def verdict(self, scope: Scope = Scope(), *, tries: bool = True) -> Verdict:  # noqa: B008  immutable
        """Return whether deliveries go on.

        Args:
            scope: whose.
            tries: whether it is tried first whether the database takes writes, unless that is known.

        Raises:
            StorageUnavailable: the database failed.
        """
        refusal = await self.writes.refused() if tries else self.writes.refusal
        return await self._read(
            lambda connection: self._standing(connection, scope, self._now(connection), refusal).verdict
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
            return self._health.states(connection, keys, self._now(connection))

        return await self._read(read)

    async def workers(self) -> list[Worker]:
        """Return the processes that deliver, those seen last first.

        Raises:
            StorageUnavailable: the database failed.
        """
        return await self._read(lambda connection: self._health.workers(connection, self._now(connection)))

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
        rows = await self._read(lambda connection: read_all(connection, query.limit(inline(limit))))
        found = []
        for row in rows:
            shown = struct_of(row, ChatConnection, leaves_out=("sealed_token",))
            reason = (
                unreadable(shown.organization_id, raw_bytes(row.sealed_token))
                if shown.status == "active"
                else None
            )
            found.append(shown if reason is None else replace(shown, status="unusable", status_reason=reason))
        return found

    async def inbound(self, scope: Scope, limit: int) -> list[InboundEvent]:
        """Return the inbound events that were processed last. They belong to no organization: a principal sees none.

        Raises:
            StorageUnavailable: the database failed.
        """
        if scope.organization_id is not None:
            return []
        query = select(inbound_events).order_by(inbound_events.c.received_at.desc()).limit(inline(limit))
        return await self._structs(query, InboundEvent)

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
        rows = await self._read(lambda connection: read_all(connection, query))
        return [entry_of(row, scope) for row in rows]

    async def _read(self, work: Callable[[Connection], T]) -> T:
        async with self._database.read() as connection:
            return await connection.run_sync(work)

    async def _structs(self, query: Any, kind: Callable[..., T]) -> list[T]:
        rows = await self._read(lambda connection: read_all(connection, query))
        return [struct_of(row, kind) for row in rows]

    def _now(self, connection: Connection) -> int:
        return int(connection.execute(select(self._database.now())).scalar_one())

    def _standing(self, connection: Connection, scope: Scope, now: int, refusal: str | None) -> _Standing:
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
        # A worker of an earlier release is not in the fleet.
        seen = [now - each.last_seen_at for each in workers] + claims
        late = buckets[-FAILING_MINUTES // 5 :]
        signs = Signs(
            oldest_due_ms=due.oldest_ms,
            claimed_ms_ago=max(0, min(claims)) if claims else None,
            alive=len(alive),
            attempts=sum(each.delivered + each.failed for each in late),
            failed=sum(each.failed for each in late),
            absent_ms=None if alive else min(seen, default=self._uptime_ms()),
            refusal=refusal,
        )
        modes = {each.mode for each in alive}
        mode = "continuous" if "continuous" in modes else self._mode if not modes else "scheduled"
        return _Standing(due, workers, buckets, judge(signs, patience_ms(mode, self._tick_seconds)))


class _Standing(NamedTuple):
    """How deliveries stand, and the verdict."""

    due: Due
    workers: list[Worker]
    buckets: list[Bucket]
    verdict: Verdict


def _hours(buckets: Sequence[Bucket]) -> list[Bucket]:
    """Return the sums of a day's intervals, hour by hour, counted back from now."""
    hours = [buckets[start : start + HOUR_BUCKETS] for start in range(0, len(buckets), HOUR_BUCKETS)]
    names = ("delivered", "failed", "dead", "duration_ms")
    return [
        Bucket(at=hour[0].at, **{name: sum(getattr(each, name) for each in hour) for name in names})
        for hour in hours
    ]
