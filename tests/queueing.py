"""The queue by itself, for tests that need no host."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import httpx
from sqlalchemy import Executable, text, update

from flowactions_hookspecs import FlowNodeOrigin
from flowactions_plugin.clock import Clock, new_id, timer
from flowactions_plugin.egress.attempt import Outcome
from flowactions_plugin.egress.guard import EgressGuard
from flowactions_plugin.egress.lag import LagMeter
from flowactions_plugin.egress.sender import Sender, Validate
from flowactions_plugin.insights.filters import Filter
from flowactions_plugin.insights.port import Insights, _stored
from flowactions_plugin.operations.changes import change_one
from flowactions_plugin.operations.engine import Engine
from flowactions_plugin.operations.port import Operations
from flowactions_plugin.operations.retention import Retention
from flowactions_plugin.operators.scope import Actor, Scope
from flowactions_plugin.queue.claimed import Attempted, ClaimedDelivery, Ended
from flowactions_plugin.queue.claims import ClaimStore, Contact
from flowactions_plugin.queue.completer import Completer
from flowactions_plugin.queue.continuous import ContinuousClaims
from flowactions_plugin.queue.enqueue import Outbox
from flowactions_plugin.queue.executor import Executor
from flowactions_plugin.queue.host_calls import SecretSource
from flowactions_plugin.queue.lanes import Due, lane_of
from flowactions_plugin.queue.outcomes import OutcomeStore
from flowactions_plugin.queue.rules import NewDelivery, Timing, Transition
from flowactions_plugin.queue.scheduled import ScheduledClaims
from flowactions_plugin.queue.worker import Worker
from flowactions_plugin.storage.database import Database
from flowactions_plugin.storage.schema import outbox
from tests.sending import as_transport, validate

SOMEBODY = Actor("", "", "dashboard")
PATIENT = Timing(lease_seconds=900.0, deadline_seconds=300.0)
"""No attempt times out, and no tick is over, while a test runs."""
ORIGIN = FlowNodeOrigin(organization_id="acme", agent_id="a", flow_id="f", node_id="n")


def a_delivery(url: str = "http://127.0.0.1/", **changes: Any) -> NewDelivery:
    values: dict[str, Any] = {
        "id": new_id(1_700_000_000),
        "organization_id": "acme",
        "agent_id": "a",
        "origin": ORIGIN,
        "event_id": "evt_1",
        "event_type": "t",
        "url": url,
        "destination": url,
        "method": "POST",
        "headers": (),
        "body": b"{}",
        "max_attempts": 4,
    }
    values |= changes
    lane = lane_of(str(values["organization_id"]), values["destination"], values["url"])
    return NewDelivery(**{"lane": lane, **values})


class OutboxStore(ClaimStore, OutcomeStore):
    """All that is done to the queue of one database."""

    def __init__(self, database: Database, lease: float | Timing = Timing()) -> None:  # noqa: B008  immutable
        contact = Contact(lease if isinstance(lease, Timing) else Timing(lease, lease / 3))
        ClaimStore.__init__(self, database, contact)
        OutcomeStore.__init__(self, database, contact)
        self._outbox = Outbox(database, EgressGuard(development=True, resolve=None))
        self.enqueue = self._outbox.write

    async def claim(  # a number: the oldest of all, as a tick does
        self, asks: int | Sequence[Due], *, per_destination: int | None = None, probe: bool = False
    ) -> list[ClaimedDelivery]:
        if isinstance(asks, int):
            asks = await self.oldest(asks, per_destination)
        return await super().claim(asks, probe=probe) if asks else []


class Deliveries(Insights):
    """The deliveries of a database, with what people and retention do to them."""

    def __init__(self, database: Database) -> None:
        super().__init__(database)
        self.prune = Retention(database).prune

    async def stored(self, row_id: str, organization_id: str) -> tuple[Any, Sequence[Any]] | None:
        """Give the row of a delivery, and the rows of its attempts."""
        return await self._read(lambda connection: _stored(connection, Scope(organization_id), row_id))

    async def retry(self, row_id: str, organization_id: str) -> bool:
        return await change_one(self._database, "retry", row_id, Scope(organization_id), SOMEBODY)

    async def retry_many(self, organization_id: str, wanted: Filter, *, reset_attempts: bool) -> int:
        """Retry the dead rows of a filter, as a bulk action does; give how many there were."""
        operations, scope = Operations(self._database), Scope(organization_id)
        preview = await operations.preview(scope, "retry", wanted)
        action = await operations.change(scope, preview.chosen, SOMEBODY, "", reset_attempts=reset_attempts)
        while action is not None and await Engine(self._database).run_step(action.id) is not None:
            pass
        return preview.count

    async def cancel(self, row_id: str, organization_id: str, reason: str) -> bool:
        return await change_one(self._database, "cancel", row_id, Scope(organization_id), SOMEBODY, reason)


class Queue:
    """A store with a database of its own, and shortcuts."""

    def __init__(self, database: Database, lease: float | Timing = Timing()) -> None:  # noqa: B008  immutable
        self.database = database
        self.store = OutboxStore(database, lease)
        self.queries = Deliveries(database)

    async def put(self, *, state: Any = None, **changes: Any) -> str:
        """Write a row; ``state``: columns that no enqueue writes, or writes otherwise, such as ``{"takeovers": 3}``."""
        delivery = a_delivery(**changes)
        async with self.database.write() as connection:
            await self.store.enqueue(delivery, connection)
            if state:
                await connection.execute(update(outbox).where(outbox.c.id == delivery.id).values(**state))
        return delivery.id

    async def complete(self, claim: ClaimedDelivery, outcome: Outcome, change: Transition) -> bool:
        """Write one outcome, and tell whether the claim held."""
        ends = await self.store.complete([Attempted(claim, outcome, change)])
        return ends[claim.id].kind == "written"

    async def mark_dead(self, claim: ClaimedDelivery, reason: str) -> bool:
        """End a claimed row without an attempt, and tell whether the claim held."""
        return (await self.store.complete([Ended(claim, reason)]))[claim.id].kind == "written"

    async def run(self, statement: str | Executable) -> None:
        async with self.database.write() as connection:
            await connection.execute(text(statement) if isinstance(statement, str) else statement)

    async def expire_claims(self) -> None:
        await self.run("UPDATE flowactions_outbox SET claimed_until = 0 WHERE claimed_by IS NOT NULL")

    async def count(self, condition: str) -> int:
        """Count rows."""
        query = f"SELECT count(*) FROM flowactions_outbox WHERE {condition}"  # noqa: S608
        async with self.database.read() as connection:
            return int((await connection.execute(text(query))).scalar_one())

    async def row(self, row_id: str) -> Any:
        found = await self.queries.stored(row_id, "acme")
        assert found is not None
        return found[0]


def an_executor(
    queue: Queue,
    answer: Any,
    *,
    validate: Validate = validate,
    signing_secret: Any = None,
    delivery_finished: Any = None,
    lag: LagMeter | None = None,
    timing: Timing | None = None,
    **options: Any,
) -> Executor:
    """Make an executor; ``answer`` is a transport, or what answers in place of one."""
    timing = timing or Timing()
    transport, clock = as_transport(answer), queue.database.clock
    sender = Sender(transport, validate, clock, time.monotonic, lag, timing.deadline_seconds)
    sequences = queue.store._outbox.sequences
    completer = Completer(queue.store, delivery_finished or nobody_listens, sequences=sequences)
    source = SecretSource(signing_secret or no_secret)
    return Executor(queue.store, sender, completer, source, timing, **options)


def a_schedule(
    queue: Queue,
    answer: Any,
    limit: int = 50,
    *,
    per_destination: int | None = None,
    timing: Timing | None = None,
    clock: Clock = timer,
    **options: Any,
) -> ScheduledClaims:
    """Make scheduled claims without their worker: a test calls for the ticks."""
    return ScheduledClaims(
        queue.store,
        an_executor(queue, answer, timing=timing, **options),
        tick_seconds=0.01,
        claim_limit=limit,
        per_destination=per_destination,
        clock=clock,
    )


def a_worker(
    queue: Queue, answer: Any, limit: int = 50, *, timing: Timing | None = None, **options: Any
) -> Worker:
    """Make a worker that ticks."""
    claims = a_schedule(queue, answer, limit, timing=timing, **options)
    return Worker(queue.store, claims._executor, claims, timing or Timing())


def continuously(
    queue: Queue,
    answer: Any,
    slots: int = 20,
    per_destination: int = 5,
    *,
    timing: Timing | None = None,
    claims_all: bool = True,
    **options: Any,
) -> ContinuousClaims:
    """Make continuous claims without their worker; ``answer`` may be an executor."""
    made = isinstance(answer, Executor)
    executor = answer if made else an_executor(queue, answer, timing=timing, **options)
    return ContinuousClaims(
        queue.store, executor, slots=slots, per_destination=per_destination, claims_all=claims_all
    )


@asynccontextmanager
async def delivering(
    queue: Queue, claims: ContinuousClaims | ScheduledClaims, timing: Timing | None = None
) -> AsyncIterator[Worker]:
    """Run a worker with these claims until the block ends, and it has stopped."""
    worker = Worker(queue.store, claims._executor, claims, timing or Timing())
    task = asyncio.create_task(worker.run())
    try:
        yield worker
    finally:
        task.cancel()
        await asyncio.wait({task})


def ok(_request: httpx.Request) -> httpx.Response:
    return httpx.Response(200)


async def no_secret(origin: object) -> None:
    """Say that deliveries are not signed."""
    return


async def nobody_listens(delivery: object) -> None:
    return None


def claimed(**changes: Any) -> ClaimedDelivery:
    """Make a row in the hands of a worker."""
    values: dict[str, Any] = {
        "id": "1",
        "token": "t",
        "organization_id": "acme",
        "agent_id": "a",
        "event_id": "evt_1",
        "event_type": "t",
        "origin": ORIGIN,
        "url": "http://127.0.0.1/",
        "destination": "http://127.0.0.1:80",
        "method": "POST",
        "headers": [("x", "1")],
        "body": b"{}",
        "attempts": 0,
        "earlier_attempts": 0,
        "max_attempts": 4,
        "reclaims": 0,
    }
    return ClaimedDelivery(**{**values, **changes})
