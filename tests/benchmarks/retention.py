"""What retention costs the deliveries beside it: a queue is drained while old rows are removed, and without.

    python -m tests.benchmarks.retention [--database sqlite postgres] [--old 200000] [--rows 10000] [--rounds 3] [--json]

Both drains have the same old rows in the table; in one of them they are old enough to be removed. Prints for each
database the median ratio of the rates, and how many old rows were removed a second while the queue was drained.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import statistics
import time
from typing import Any

from sqlalchemy import func, select, text

from flowactions_plugin.storage.schema import outbox
from tests.benchmarks.field import a_database, a_receiver, drain, fill, machine, opened, show
from tests.bulk import SERIES

DESTINATIONS = 10
AGE_MS = 100 * 24 * 3600 * 1000


async def age(url: str, rows: int) -> None:
    """Write so many rows that ended long ago; dead ones, which are kept for 90 days."""
    async with opened(url) as database:
        series, row_id, source = SERIES[database.dialect]
        at = int(time.time() * 1000) - AGE_MS
        statement = f"""
            INSERT INTO flowactions_outbox (id, organization_id, agent_id, origin, event_id, event_type, url,
                destination, method, headers, body, status, attempts, earlier_attempts, max_attempts, next_attempt_at,
                takeovers, created_at, updated_at, finished_at)
            {series.format(rows=rows)}
            SELECT {row_id}, 'acme', 'agent-' || (i % 100), '{{}}', 'evt_' || i, 't', 'https://example.com/hook',
                'https://example.com:443', 'POST', '[]', NULL, 'dead', 1, 0, 4, {at} + i, 0, {at} + i, {at} + i,
                {at} + i
            FROM {source.format(rows=rows)}"""  # noqa: S608  numbers only
        async with database.write() as connection:
            await connection.execute(text(statement))
        async with database.write() as connection:
            await connection.execute(text("ANALYZE"))


async def left(url: str, rows: int) -> int:
    """Count the old rows that are left."""
    async with opened(url) as database, database.read() as connection:
        total: int = (await connection.execute(select(func.count()).select_from(outbox))).scalar_one()
        return total - rows


def measure(kind: str, old: int, rows: int, days: int) -> tuple[float, float]:
    """Give the deliveries a second, and how many old rows were removed a second meanwhile.

    Args:
        kind: of database.
        old: rows that ended a hundred days ago.
        rows: what is drained.
        days: how long rows are kept.
    """
    with a_receiver(DESTINATIONS) as receivers, a_database(kind) as url:
        asyncio.run(age(url, old))
        asyncio.run(fill(url, rows, receivers))
        per_s = drain(url, rows, {"FLOWACTIONS_RETENTION_DAYS": str(days)}).per_s
        return per_s, (old - asyncio.run(left(url, rows))) * per_s / rows


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--database", choices=["sqlite", "postgres"], nargs="+", default=["sqlite", "postgres"])
    parser.add_argument("--old", type=int, default=200_000)
    parser.add_argument("--rows", type=int, default=10_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    logging.disable(logging.INFO)
    found: dict[str, Any] = {"old": options.old, "rows": options.rows, "machine": machine()}
    for kind in options.database:
        ratios, removed = [], []
        for _ in range(options.rounds):
            without, _none = measure(kind, options.old, options.rows, 365)
            beside, removed_per_s = measure(kind, options.old, options.rows, 30)
            ratios.append(beside / without)
            removed.append(removed_per_s)
        found[f"{kind}_ratio"] = statistics.median(ratios)
        found[f"{kind}_removed_per_s"] = statistics.median(removed)
    show(found, as_json=options.json)


if __name__ == "__main__":
    main()
