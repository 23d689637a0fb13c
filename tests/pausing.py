"""Destinations that are paused, by a person or automatically, for tests of pauses and probes."""

from __future__ import annotations

from typing import Any

import httpx

from flowactions_hookspecs import DeliveryAlert
from flowactions_plugin.clock import new_id
from flowactions_plugin.operations.automatic import AutomaticPauses
from flowactions_plugin.operations.port import Operations
from flowactions_plugin.operators.scope import AUTOMATIC, Actor, Scope
from flowactions_plugin.queue.probes import Probes
from flowactions_plugin.settings.readers import AutoPause
from flowactions_plugin.watch.statistics import Counts
from flowactions_plugin.watch.statistics_store import add_counts
from tests.queueing import OutboxStore, Queue, an_executor

ACME, ALL = Scope("acme"), Scope(None)
MAYA = Actor("u1", "Maya", "dashboard")
OLIVE = Actor("root", "Olive", "operator")
DOWN = "https://down.example:443"
RULE = AutoPause(3, 60)


async def rows_of(queue: Queue, what: str) -> list[Any]:
    async with queue.database.read() as connection:
        return list((await connection.exec_driver_sql(f"SELECT {what}")).all())


async def has_failed(queue: Queue, times: int, seconds: float = 60.0, organization: str = "acme") -> None:
    """Record failures in a row, the first of them so long ago."""
    counts = Counts()
    counts.failed = counts.failures_in_row = times
    counts.last_error = "http_5xx"
    await add_counts(queue.database, {(organization, DOWN): counts}, 0.0)
    began = f"failing_since = last_failure_at - {int(seconds * 1000)}"
    await queue.run(f"UPDATE flowactions_destinations SET {began} WHERE failing_since IS NOT NULL")  # noqa: S608


async def has_arrived(queue: Queue) -> None:
    counts = Counts()
    counts.delivered, counts.succeeded = 1, True
    await add_counts(queue.database, {("acme", DOWN): counts}, 0.0)


async def look(queue: Queue, rule: AutoPause | None = RULE) -> list[DeliveryAlert]:
    told: list[DeliveryAlert] = []
    await AutomaticPauses(queue.database, rule, told.append).look()
    return told


async def put(queue: Queue, number: int, destination: str = DOWN, **changes: Any) -> str:
    """Put a row that is due, later ones later."""
    new = new_id(queue.database.clock() + number / 100)
    row_id = await queue.put(id=new, destination=destination, **changes)
    await queue.run(f"UPDATE flowactions_outbox SET next_attempt_at = {1000 + number} WHERE id = '{row_id}'")  # noqa: S608
    return row_id


async def a_paused_queue(queue: Queue, rows: int = 1) -> list[str]:
    """Put rows, pause their destination automatically, and make a probe due."""
    ids = [await put(queue, number) for number in range(rows)]
    await Operations(queue.database).pause(ACME, DOWN, AUTOMATIC, "it fails")
    await make_due(queue)
    return ids


async def make_due(queue: Queue) -> None:
    await queue.run("UPDATE flowactions_pauses SET probe_at = 1")


def probing(queue: Queue, answer: Any = None, store: OutboxStore | None = None) -> Probes:
    executor = an_executor(queue, answer or (lambda request: httpx.Response(503)))
    return Probes(store or queue.store, executor)
