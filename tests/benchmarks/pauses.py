"""What a backlog of a paused destination costs the others: the time until one other row was found and claimed.

    python -m tests.benchmarks.pauses [--database sqlite postgres] [--rows 1000000] [--probes 20] [--json]

``empty``: without the backlog. ``paused``: with all of it due and paused. ``tick``: the same for the claim of a tick in scheduled mode.

Prints a line for each figure, or with ``--json`` one object. The exit status is 1 when a claim takes more than twice as long
beside the backlog.
"""

from __future__ import annotations

import statistics
import sys
import time

from flowactions_plugin.operations.port import Operations
from flowactions_plugin.operators.scope import Actor, Scope
from flowactions_plugin.queue.lanes import Due
from flowactions_plugin.storage.database import Database
from tests.benchmarks.field import on_each_database, opened
from tests.bulk import fill
from tests.queueing import Queue

PAUSED = "https://example.com:443"
OTHER = "https://other.example:443"
SOMEBODY = Actor("b", "Benchmark", "command")


async def probe(database: Database, probes: int, *, ticks: bool) -> float:
    """Give the median milliseconds of a claim that brings one row of another destination, with the scan that finds it."""
    queue = Queue(database)
    found = []
    for number in range(probes):
        row_id = await queue.put(
            id=f"ffffffff-0000-7000-8000-{time.time_ns() % 16**12:012x}",
            destination=OTHER,
            event_id=f"evt_p{number}",
        )
        started = time.perf_counter()
        asks: int | list[Due] = 100 if ticks else [due._replace(rows=10) for due in await queue.store.scan()]
        claimed = await queue.store.claim(asks)
        found.append(time.perf_counter() - started)
        assert [each.id for each in claimed] == [row_id]
        await queue.run(f"DELETE FROM flowactions_outbox WHERE id = '{row_id}'")  # noqa: S608
    return statistics.median(found) * 1000


async def measure(url: str, rows: int, probes: int) -> dict[str, float]:
    """Measure on one database."""
    async with opened(url) as database:
        empty = await probe(database, probes, ticks=False)
        await fill(database, rows=rows, live=rows)
        await Operations(database).pause(Scope(None), PAUSED, SOMEBODY, "")
        return {
            "empty_ms": empty,
            "paused_ms": await probe(database, probes, ticks=False),
            "tick_ms": await probe(database, probes, ticks=True),
        }


def main() -> int:
    """Measure and print."""
    found = on_each_database(__doc__, measure, rows=1_000_000, probes=20)
    return int(any(each["paused_ms"] > 2 * each["empty_ms"] for each in found.values()))


if __name__ == "__main__":
    sys.exit(main())
