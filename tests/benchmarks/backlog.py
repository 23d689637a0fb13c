"""What a claim and its completion cost as the table grows: 10,000 rows against a million, a thousand of them live.

    python -m tests.benchmarks.backlog [--database sqlite postgres] [--rows 10000 1000000] [--spread] [--json]

The live rows are the newest, as in most queues, or spread evenly over the table, so that each lies on a page of its own.

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

from flowactions_plugin.egress.attempt import Outcome
from flowactions_plugin.queue.claimed import Completion
from flowactions_plugin.queue.rules import Transition
from tests.benchmarks.field import a_database, opened
from tests.bulk import fill
from tests.queueing import OutboxStore

LIVE = 1000
CLAIM = 50


async def measure(url: str, rows: int, *, spread: bool) -> dict[str, float]:
    """Give the median seconds of a claim of fifty rows, and of writing their outcomes."""
    async with opened(url) as database:
        await fill(database, rows=rows, live=LIVE, spread=spread)
        store = OutboxStore(database)
        claims, completions = [], []
        while True:
            started = time.perf_counter()
            claimed = await store.claim(CLAIM)
            if not claimed:
                break
            claims.append(time.perf_counter() - started)
            outcomes = [
                Completion(each, Outcome(0, 0, status_code=200), Transition("delivered")) for each in claimed
            ]
            started = time.perf_counter()
            await store.complete(outcomes)
            completions.append(time.perf_counter() - started)
        return {
            "rows": rows,
            "claim_ms": statistics.median(claims) * 1000,
            "complete_ms": statistics.median(completions) * 1000,
        }


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--database", choices=["sqlite", "postgres"], nargs="+", default=["sqlite", "postgres"])
    parser.add_argument("--rows", type=int, nargs="+", default=[10_000, 1_000_000])
    parser.add_argument("--spread", action="store_true")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    logging.disable(logging.INFO)
    found: dict[str, list[dict[str, float]]] = {}
    for kind in options.database:
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
