"""What operators see of one database. Each query reads a bounded number of rows, however many there are."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, Self, TypeAlias, TypeVar

from msgspec.structs import replace
from sqlalchemy import select
from sqlalchemy.engine import Connection

from flowactions_plugin.clock import is_id
from flowactions_plugin.deliveries.detail import DeliveryQueries
from flowactions_plugin.deliveries.filters import Filter
from flowactions_plugin.deliveries.operator_views import entry_of, struct_of
from flowactions_plugin.deliveries.results import AuditEntry, ChatConnection, Found, InboundEvent, Page
from flowactions_plugin.deliveries.search_queries import DeliverySearch
from flowactions_plugin.errors import FilterInvalid
from flowactions_plugin.health.results import Counted, Overview
from flowactions_plugin.health.status import COUNT_LIMIT, QueueStatus
from flowactions_plugin.operators.scope import Scope
from flowactions_plugin.settings.model import Settings
from flowactions_plugin.storage.database import Database
from flowactions_plugin.storage.dialect import inline
from flowactions_plugin.storage.schema import audit, chat_connections, inbound_events
from flowactions_plugin.storage.text import raw_bytes, read_all

T = TypeVar("T")

Unreadable: TypeAlias = Callable[[str, bytes], str | None]
"""An organization and its sealed chat token → the code of why a process cannot use it."""

SEARCH_COUNT_LIMIT: Final = 2500
"""Up to how many rows a search counts: each may be on another page of the table."""


class OperatorQueries:
    """The queue of one database, for operators.

    Args:
        database: which.
        status: how its deliveries stand.
        destination_limit: attempts to one destination at once, in each worker; ``None``: no limit.

    Attributes:
        status: the same.
    """

    def __init__(
        self, database: Database, status: QueueStatus | None = None, *, destination_limit: int | None = None
    ) -> None:
        self._database = database
        self.status = status or QueueStatus(database)
        self._search = DeliverySearch(database)
        self._delivery = DeliveryQueries(database, destination_limit)

    @classmethod
    def of(cls, database: Database, settings: Settings, status: QueueStatus | None = None) -> Self:
        """Return the queries of a host with these settings."""
        return cls(
            database,
            status or QueueStatus.of(database, settings),
            destination_limit=settings.per_destination,
        )

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
        refusal = await self.status.writes.refused()

        def read(connection: Connection) -> Overview:
            dead = self._search.counted(connection, scope, Filter(status="dead"), COUNT_LIMIT)
            return self.status.overview(connection, scope, refusal, dead)

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
