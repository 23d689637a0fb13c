"""How fast one worker process delivers, beside what its transport can do without a queue.

    python -m tests.benchmarks.deliver [--database sqlite|postgres] [--rows 20000] [--destinations 10] [--json]

Measured in one run, against a local receiver (nginx where it is installed):

- the ceiling: the same transport posting the same rows, as many at once, without a queue;
- deliveries a second of ``flowactions worker`` in continuous mode, from the first attempt to the last outcome written,
  and its resident memory;
- the time from reaching the node to arrival at a steady rate, once with the delivery in the host's own process, once
  (PostgreSQL) in a worker process that NOTIFY wakes.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Mapping
from contextlib import ExitStack
from typing import Any

from tests.benchmarks.field import (
    ROOT,
    a_database,
    a_receiver,
    drain,
    fill,
    machine,
    percentile,
    settings_of,
    show,
    worker,
)
from tests.benchmarks.sink import sink
from tests.waiting import until


def printed_by(module: str, settings: Mapping[str, str], *arguments: str) -> Any:
    """Run a module of the benchmarks in a process of its own, and give the JSON that it prints."""
    command = [sys.executable, "-m", f"tests.benchmarks.{module}", *arguments]
    done = subprocess.run(
        command, cwd=ROOT, env={**os.environ, **settings}, stdout=subprocess.PIPE, check=True, timeout=600
    )
    return json.loads(done.stdout)


def throughput(kind: str, rows: int, destinations: int, settings: Mapping[str, str]) -> dict[str, Any]:
    """Measure ceiling and deliveries."""
    with a_receiver(destinations) as receivers, a_database(kind) as url:
        asyncio.run(fill(url, rows, receivers))
        ceiling = printed_by("ceiling", {**settings_of(url), **settings})
        drained = drain(url, rows, settings)
    return {
        "deliveries_per_s": drained.per_s,
        "ceiling_per_s": ceiling,
        "ratio": drained.per_s / ceiling,
        "peak_rss_mib": drained.peak_rss_mib,
        "early_rss_mib": drained.early_rss_mib,
        "late_rss_mib": drained.late_rss_mib,
    }


async def latency(kind: str, rate: float, seconds: float, *, apart: bool) -> dict[str, float]:
    """Measure the time to arrival; ``apart``: delivered by a worker process."""
    async with sink() as (receiver, arrivals):
        with ExitStack() as stack:
            url = stack.enter_context(a_database(kind))
            settings = settings_of(url)
            if apart:
                # The tables first, then the worker that uses them.
                await fill(url, 0, [])
                stack.enter_context(worker(settings))
                await asyncio.sleep(2)
            reached = await asyncio.to_thread(
                printed_by,
                "steady",
                {**settings, "FLOWACTIONS_HOST_WORKER": "off" if apart else "on"},
                *("--url", receiver, "--rate", str(rate), "--seconds", str(seconds)),
            )
            await until(lambda: reached.keys() <= arrivals.keys(), seconds=300)
    took = [(arrivals[path] - at) * 1000 for path, at in reached.items()]
    prefix = "apart_" if apart else ""
    return {f"{prefix}p{share}_ms": percentile(took, share / 100) for share in (50, 95, 99)}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--database", choices=["sqlite", "postgres"], default="sqlite")
    parser.add_argument("--rows", type=int, default=20_000)
    parser.add_argument("--destinations", type=int, default=10)
    parser.add_argument("--concurrency", type=int, default=100, help="deliveries in flight (default: 100)")
    parser.add_argument("--rate", type=float, default=200, help="webhooks a second for the latency")
    parser.add_argument("--seconds", type=float, default=15, help="how long at that rate; 0: not at all")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    settings = {"FLOWACTIONS_CONCURRENCY": str(options.concurrency)}
    found: dict[str, Any] = {
        "database": options.database,
        "rows": options.rows,
        "destinations": options.destinations,
        "concurrency": options.concurrency,
        "machine": machine(),
    }
    found |= throughput(options.database, options.rows, options.destinations, settings)
    if options.seconds:
        found["rate_per_s"] = options.rate
        found |= asyncio.run(latency(options.database, options.rate, options.seconds, apart=False))
        if options.database == "postgres":
            found |= asyncio.run(latency(options.database, options.rate, options.seconds, apart=True))
    show(found, as_json=options.json)


if __name__ == "__main__":
    main()
