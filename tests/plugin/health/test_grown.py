"""Lists, and one delivery, cost no more with more rows in every table."""

from __future__ import annotations

import time
from typing import Any

import pytest
from sqlalchemy import Table, insert

from flowactions_plugin.insights import standing
from flowactions_plugin.insights.port import Insights
from flowactions_plugin.operators.scope import Scope
from flowactions_plugin.storage.schema import metadata, outbox
from tests.costs import Watched
from tests.plugin import stored
from tests.queueing import Queue

OWN = {"flowactions_installation", "flowactions_alembic"}
NOW = int(time.time() * 1000)


def a_row(table: Table, number: int) -> dict[str, Any]:
    """Give a row of one of many organizations; half of the deliveries wait, and half of the destinations fail."""
    text, waits = f"{number:08x}-0000-7000-8000-{number:012x}", number % 2 == 0
    known: dict[str, Any] = {
        "organization_id": f"o{number}",
        "destination": f"https://d{number}.example:443",
        "url": "https://d.example/x",
        "status": ("pending" if waits else "dead") if table is outbox else "active",
        "state": "done",
        "bucket": NOW - NOW % 300_000,
        "next_attempt_at": NOW - number,
        "finished_at": None if waits else NOW - number,
        "failing_since": NOW - number if waits else None,
        "last_failure_at": NOW - number if waits else None,
        "origin": "{}",
        "headers": "[]",
    }
    return stored.a_row(table, text, known, number=number)


async def grow(queue: Queue, numbers: range) -> None:
    """Write so many rows into every table but those of one row."""
    async with queue.database.write() as connection:
        for table in metadata.sorted_tables:
            if table.name not in OWN:
                await connection.execute(insert(table), [a_row(table, number) for number in numbers])
    await queue.run("ANALYZE")


@pytest.mark.parametrize("organization", [None, "o8"])
async def test_lists_cost_no_more_with_ten_times_the_rows_of_everything(
    queue: Queue, organization: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Destinations, organizations, deliveries, attempts, pauses, actions, entries of the audit, events."""
    monkeypatch.setattr(standing, "COUNT_LIMIT", 200)
    insights, scope, row_id = Insights(queue.database), Scope(organization), a_row(outbox, 8)["id"]
    reads = {
        "destinations": lambda _: insights.destinations(scope, 50),
        "delivery": lambda _: insights.delivery(scope, row_id),
        "connections": lambda _: insights.connections(scope, lambda *_: None),
        "inbound": lambda _: insights.inbound(scope, None, None, 50),
        "actions": lambda _: insights.actions(scope),
        "pauses": lambda _: insights.pauses(scope),
        "audit": lambda _: insights.audit(scope, None, 50),
    }
    work: dict[str, list[int]] = {name: [] for name in reads}
    for numbers in (range(1200), range(1200, 12_000)):
        await grow(queue, numbers)
        seen = Watched(queue.database, "flowactions_")
        for name, read in reads.items():
            work[name].append(sorted([await seen.work(read) for _ in range(3)])[1])
    assert {name: found for name, found in work.items() if found[1] > 1.5 * found[0] + 20} == {}
