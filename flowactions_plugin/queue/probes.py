"""Probes: of a destination that was paused automatically, one delivery is sent now and then.

A probe is a claim of one row although its destination is paused. A probe that fails uses up no attempt: where its outcome is
written, the row gets one attempt more, once, and never more than ten.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, Final

from msgspec.structs import replace
from sqlalchemy import and_, update
from sqlalchemy.engine import Row

from flowactions_hookspecs import DeliveryAlert
from flowactions_plugin.operators.scope import AUTOMATIC
from flowactions_plugin.queue.claimed import ClaimedDelivery
from flowactions_plugin.queue.claims import ClaimStore
from flowactions_plugin.queue.executor import Executor
from flowactions_plugin.queue.lanes import Due
from flowactions_plugin.queue.rules import MAX_ATTEMPTS_CAP, probe_delay_ms
from flowactions_plugin.queue.statements import statement
from flowactions_plugin.storage.dialect import inline
from flowactions_plugin.storage.schema import pauses
from flowactions_plugin.storage.waiting import shielded

AT_ONCE: Final = 10
"""How many probes a worker has in flight at the most, beside its slots."""

CLOSE_SECONDS: Final = 1.0
"""How long a process that stops waits for the probes that begin. What is claimed later waits for the end of its lease."""

BY_ITSELF: Final = and_(pauses.c.paused_role == inline(AUTOMATIC.role), pauses.c.probe_at.is_not(None))
"""The condition that a pause is automatic, and has not ended."""


class Probes:
    """Probes destinations. One worker sends each probe, with any number of workers. A database that failed is a `StorageUnavailable`.

    Args:
        store: the queue.
        executor: makes the attempts.
        tell: learns of each probe, as it begins.
    """

    def __init__(
        self,
        store: ClaimStore,
        executor: Executor,
        tell: Callable[[DeliveryAlert], None] = lambda _alert: None,
    ) -> None:
        self._store = store
        self._database = store.database
        self._executor = executor
        self._tell = tell
        self._in_flight: set[asyncio.Task[None]] = set()
        self._beginning = asyncio.Lock()

    async def look(self) -> None:
        """Begin the probes that are due, also when cancelled: what is claimed is sent, or given back."""
        async with self._beginning:
            await shielded(self._look(), CLOSE_SECONDS)

    async def _look(self) -> None:
        room = AT_ONCE - len(self._in_flight)
        with self._executor.hand.claiming():
            claimed = [] if self._executor.stopping else await self.claim(room)
            taken = self._executor.take(claimed)
        for each in taken:
            task = asyncio.create_task(self._send(each))
            self._in_flight.add(task)
            task.add_done_callback(self._in_flight.discard)

    async def _send(self, delivery: ClaimedDelivery) -> None:
        organization_id, destination = delivery.organization_id, delivery.destination
        self._tell(DeliveryAlert(organization_id=organization_id, destination=destination, kind="probed"))
        await self._executor.execute(delivery)

    @asynccontextmanager
    async def none(self) -> AsyncIterator[None]:
        """Wait for the probes in flight; within the block, none begins."""
        async with self._beginning:
            while self._in_flight:
                await asyncio.wait(self._in_flight)
            yield

    async def claim(self, limit: int) -> list[ClaimedDelivery]:
        """Claim the row that has waited for longest for each destination that is to be probed, so many at the most."""
        rows = await self._database.rows(self._database.built(statement, "probes"), self._store.free())
        due = self._store.found(rows)
        asks = [
            Due(row.lane, row.organization_id, row.destination) for row in due[:limit] if await self._begin(row)
        ]
        claimed = await self._store.claim(asks, probe=True) if asks else []
        try:
            return [await self._with_attempt(each) for each in claimed]
        except BaseException:
            self._executor.abandon(self._executor.take(claimed))
            raise

    async def _begin(self, due: Row[Any]) -> bool:
        """Take the turn of a probe; return whether no other worker has, and nobody has resumed the destination."""
        number = due.probes + 1
        begun = (
            update(pauses)
            .where(
                pauses.c.organization_id == due.organization_id,
                pauses.c.destination == due.destination,
                pauses.c.probe_at == due.probe_at,
                BY_ITSELF,
            )
            .values(probe_at=self._database.now() + probe_delay_ms(number), probes=number)
        )
        return bool(await self._database.in_transaction(lambda connection: connection.execute(begun).rowcount))

    async def _with_attempt(self, delivery: ClaimedDelivery) -> ClaimedDelivery:
        """Return a delivery that has one attempt more than its row, if no probe of it has failed before."""
        if delivery.max_attempts >= MAX_ATTEMPTS_CAP:
            return delivery
        if await self._database.rows(self._database.built(statement, "probed"), {"id": delivery.id}):
            return delivery
        return replace(delivery, max_attempts=delivery.max_attempts + 1, is_probe=True)
