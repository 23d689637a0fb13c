"""What a claim and its completion cost as the table grows: 10,000 rows against a million, a thousand of them live.

    python -m tests.benchmarks.backlog [--database sqlite postgres] [--rows 10000 1000000] [--spread] [--waiting 10000] [--json]

The live rows are the newest, as in most queues, or spread evenly over the table, so that each lies on a page of its own.

With ``--waiting``, the same is measured of 10,000 rows beside so many that wait for hours, and without them, in turns.

Prints a table, or with ``--json`` one object. The exit status is 1 when the largest table's claim takes more than
twice as long as the smallest's.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import statistics
import sys
import time
from collections.abc import Sequence

from sqlalchemy import func, select

from flowactions_plugin.egress.attempt import Outcome
from flowactions_plugin.queue.claimed import Completion
from flowactions_plugin.queue.rules import Transition
from flowactions_plugin.storage.database import Database
from flowactions_plugin.storage.schema import outbox
from tests.benchmarks.field import a_database, opened
from tests.bulk import copy, fill
from tests.queueing import OutboxStore

LIVE = 1000
HOURS_MS = 2 * 3600 * 1000
CLAIM = 50


class Timed:
    """The seconds of claims of fifty rows, and of writing their outcomes, in one database."""

    def __init__(self, database: Database) -> None:
        self._store = OutboxStore(database)
        self._claims: list[float] = []
        self._completions: list[float] = []

    async def claim(self) -> bool:
        """Claim once and write the outcomes; tell whether anything was due."""
        started = time.perf_counter()
        claimed = await self._store.claim(CLAIM)
        if not claimed:
            return False
        self._claims.append(time.perf_counter() - started)
        outcomes = [
            Completion(each, Outcome(0, 0, status_code=200), Transition("delivered")) for each in claimed
        ]
        started = time.perf_counter()
        await self._store.complete(outcomes)
        self._completions.append(time.perf_counter() - started)
        return True

    def medians(self, rows: int) -> dict[str, float]:
        """Give the medians."""
        return {
            "rows": rows,
            "claim_ms": statistics.median(self._claims) * 1000,
            "complete_ms": statistics.median(self._completions) * 1000,
        }


async def measure(url: str, rows: int, *, spread: bool) -> dict[str, float]:
    """Measure until nothing is due."""
    async with opened(url) as database:
        await fill(database, rows=rows, live=LIVE, spread=spread)
        timed = Timed(database)
        while await timed.claim():
            pass
        return timed.medians(rows)


async def measure_beside(urls: Sequence[str], waiting: int) -> list[dict[str, float]]:
    """Measure without rows that wait and beside them, in turns; the second of a pair is the first of the next."""
    async with opened(urls[0]) as without, opened(urls[1]) as beside:
        timed = [Timed(without), Timed(beside)]
        for database in (without, beside):
            await fill(database, rows=10_000, live=5000)
        async with beside.read() as connection:
            row_id = (await connection.execute(select(func.max(outbox.c.id)))).scalar_one()
        await copy(beside, row_id, waiting, already=int(time.time() * 1000) + HOURS_MS)
        while all([await each.claim() for each in timed]):
            timed.reverse()
        if timed[0]._store.database is beside:
            timed.reverse()
        return [each.medians(rows) for each, rows in zip(timed, (10_000, 10_000 + waiting), strict=True)]


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--database", choices=["sqlite", "postgres"], nargs="+", default=["sqlite", "postgres"])
    parser.add_argument("--rows", type=int, nargs="+", default=[10_000, 1_000_000])
    parser.add_argument("--spread", action="store_true")
    parser.add_argument("--waiting", type=int, default=0)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    logging.disable(logging.INFO)
    found: dict[str, list[dict[str, float]]] = {}
    for kind in options.database:
        if options.waiting:
            with a_database(kind) as without, a_database(kind) as beside:
                found[kind] = asyncio.run(measure_beside([without, beside], options.waiting))
            continue
        for rows in options.rows:
            with a_database(kind) as url:
                found.setdefault(kind, []).append(asyncio.run(measure(url, rows, spread=options.spread)))
    ratios = {kind: rows[-1]["claim_ms"] / rows[0]["claim_ms"] for kind, rows in found.items()}
    if options.json:
        print(json.dumps({"measured": found, "claim_ratio": ratios}))
    else:
        print(f"{'database':10} {'rows':>10} {'claim of 50, ms':>16} {'outcomes, ms':>16}")
        for kind, rows in found.items():
            for row in rows:
                print(f"{kind:10} {row['rows']:>10,} {row['claim_ms']:>16.2f} {row['complete_ms']:>16.2f}")
            print(f"{kind:10} largest / smallest: {ratios[kind]:.2f}")
    return int(any(ratio > 2 for ratio in ratios.values()))


if __name__ == "__main__":
    sys.exit(main())
