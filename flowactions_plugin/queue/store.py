"""The queue of one database: enqueue, claim, complete.

This module enqueues. Claims are in `queue.claim_store`, those of rows that claims pass over in `queue.recovery_store`, and
what ends claims in `queue.outcome_store`. Operators list, retry and cancel through `deliveries`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from typing import Any, Final, Generic, TypeVar

import msgspec
from sqlalchemy import Executable
from sqlalchemy.engine import Connection
from sqlalchemy.ext.asyncio import AsyncConnection

from flowactions_plugin.queue.claim_store import ClaimStore
from flowactions_plugin.queue.group_commit import Group, GroupCommit
from flowactions_plugin.queue.outcome_store import OutcomeStore
from flowactions_plugin.queue.recovery_store import RecoveryStore
from flowactions_plugin.queue.rules import CLAIM_SECONDS, NewDelivery
from flowactions_plugin.storage.conflicts import repeated
from flowactions_plugin.storage.database import Database
from flowactions_plugin.storage.dialect import Dialect
from flowactions_plugin.storage.rounds import OutageLog
from flowactions_plugin.storage.schema import NO_AGENT, outbox

T = TypeVar("T")

GROUP_WORKS: Final = 32
"""Callers with keys that share a transaction at the most. Each has statements of its own, during which it holds locks."""

GROUP_LOCK_MS: Final = 100
"""How long a transaction of several callers waits for a lock on PostgreSQL. It is less than the server takes to find a
deadlock, so that it is this transaction that gives way."""


class _Work(Generic[T]):
    """What a caller writes with its row.

    Attributes:
        order: what is locked first.
        size: the bytes of the row.
        run: executes the statements.
        result: what ``run`` returned last.
    """

    __slots__ = ("order", "result", "run", "size")

    result: T

    def __init__(
        self, order: tuple[str, ...], size: int, run: Callable[[AsyncConnection], Awaitable[T]]
    ) -> None:
        self.order = order
        self.size = size
        self.run = run


class OutboxStore(ClaimStore, RecoveryStore, OutcomeStore):
    """The queue of one database.

    Args:
        database: where it is.
        lease_seconds: how long a claim holds.
    """

    def __init__(self, database: Database, lease_seconds: float = CLAIM_SECONDS) -> None:
        super().__init__(database, lease_seconds)
        self._groups = GroupCommit(
            self._enqueue_group, _row_bytes, is_interruptible=lambda: database.sql.is_interruptible
        )
        self._works = GroupCommit(
            self._run_group,
            lambda work: work.size,
            is_interruptible=lambda: database.sql.is_interruptible,
            rows=GROUP_WORKS,
        )

    async def enqueue(self, delivery: NewDelivery, connection: AsyncConnection | None) -> None:
        """Write a row that is due now (§3.1), within the caller's transaction.

        Args:
            delivery: the row.
            connection: the transaction's; ``None``: one of the plugin's own, which rows of other callers may share.
                This returns when it has committed.
        """
        row = msgspec.structs.asdict(delivery)
        row["agent_id"] = delivery.agent_id or NO_AGENT
        row["flow_id"], row["node_id"] = delivery.flow_and_node
        row["origin"] = msgspec.json.encode(delivery.origin).decode()
        row["headers"] = msgspec.json.encode(delivery.headers).decode()
        if connection is None:
            await self._groups.write(row)
        else:
            async with self._database.write(connection) as joined:
                await joined.execute(self._database.built(_enqueuing), row)

    async def together(
        self, order: tuple[str, ...], size: int, run: Callable[[AsyncConnection], Awaitable[T]]
    ) -> T:
        """Run what a caller writes with its row in a transaction of the plugin's own, which other callers may share.

        Args:
            order: what is locked first; callers that share a transaction lock in this order.
            size: the bytes of the row.
            run: executes the statements. It may be run again, after a rollback.

        Returns:
            What ``run`` returned, when the transaction has committed.

        Raises:
            StorageUnavailable: the database failed; nothing was written.
            Exception: what ``run`` raised; nothing was written.
        """
        work = _Work(order, size, run)
        await self._works.write(work)
        return work.result

    @repeated
    async def _run_group(self, group: Group[_Work[Any]]) -> None:
        async with self._database.write(deadline=group.deadline) as connection:
            works = sorted(group.begin(), key=lambda work: work.order)
            if len(works) > 1:
                # Another transaction may hold one of the keys for long. Then each caller waits for its own key only.
                await self._database.limit_lock_waits(connection, GROUP_LOCK_MS)
            for work in works:
                work.result = await work.run(connection)

    async def _enqueue_group(self, group: Group[dict[str, Any]]) -> None:
        """Write the rows of several callers in one transaction: PostgreSQL gets them as one."""
        statement = self._database.built(_enqueuing)

        def write(connection: Connection) -> None:
            rows = group.begin()
            if rows:
                connection.execute(statement, rows if len(rows) > 1 else rows[0])

        await self._database.in_transaction(write, group.deadline)

    @property
    def outage_log(self) -> OutageLog:
        """Logs the outages of the database."""
        return self._database.outage_log

    def transaction(self, connection: AsyncConnection | None) -> AbstractAsyncContextManager[AsyncConnection]:
        """Open a transaction, or join the caller's."""
        return self._database.write(connection)

    def answering(self, more: float) -> AbstractAsyncContextManager[None]:
        """Limit what a caller waits for within the block."""
        return self._database.answering(more)

    def reading(self, connection: AsyncConnection | None) -> AbstractAsyncContextManager[AsyncConnection]:
        """Open a connection for reading, or read in the caller's transaction."""
        return self._database.read(connection)

    def using(self, transaction: AsyncConnection | None) -> AbstractContextManager[None]:
        """Keep a host's transaction for one call."""
        return self._database.using(transaction)

    def after_commit(self, connection: AsyncConnection, call: Callable[[], None]) -> None:
        """Call a function once what was enqueued on a connection is visible to others."""
        self._database.after_commit(connection, call)


def _row_bytes(row: Mapping[str, Any]) -> int:
    return len(row["body"] or b"") + len(row["headers"]) + len(row["url"])


def _enqueuing(database: Dialect) -> Executable:
    now = database.now()
    # A row that is written again is the same row.
    return database.insert_unless_there(outbox).values(
        status="pending",
        attempts=0,
        earlier_attempts=0,
        takeovers=0,
        next_attempt_at=now,
        created_at=now,
        updated_at=now,
    )
