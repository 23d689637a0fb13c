"""How fast one worker process delivers, beside what its transport can do without a queue.

    python -m tests.benchmarks.deliver [--database sqlite|postgres] [--rows 20000 60000] [--destinations 10]
        [--server BIN|URL] [--json]
    python -m tests.benchmarks.deliver --against REVISION [--rounds 5] [--loop asyncio|uvloop] [--workers 1]
        [--tls] …
    python -m tests.benchmarks.deliver --destinations 1 10 [--rounds 5] [--loop asyncio|uvloop] …

Measured in one run, against a local receiver (nginx where it is installed):

- the ceiling: the same transport posting the same rows, as many at once, without a queue;
- deliveries a second of ``flowactions worker`` in continuous mode, from the first attempt to the last outcome written,
  and its resident memory;
- the time from reaching the node to arrival at a steady rate, once with the delivery in the host's own process, once
  (PostgreSQL) in a worker process that NOTIFY wakes.

With ``--against``, queues are drained by this tree and by a revision that Git knows, in turns, and the figures are:

- ``worker_us``, ``database_us``, ``receiver_us``: processor time of the workers, of PostgreSQL with all its processes,
  and of the receiver, microseconds a delivery, from ``/proc``; SQLite's is the worker's. Starts and first connections
  do not count. ``deliveries_per_s``; ``wal_bytes`` of PostgreSQL a delivery; ``peak_rss_mib`` of a worker. Each is the
  median of the rounds, and ``other_…`` is the revision's.
- ``worker_ratio``, ``database_ratio``, ``receiver_ratio``, ``rate_ratio``, ``wal_ratio``, ``memory_ratio``: this tree's
  to the revision's, the median of the rounds' ratios; ``…_spread`` is the lowest and the highest of them.
- the time to arrival of both, and ``p99_ratio``, ``apart_p99_ratio``.

With two numbers of destinations, the same workers drain queues to the first few of them and to all, in turns: the same
figures, of all as ``of_10_…``, and the ratios of the few to all, ``one_to_ten`` (the rate's, after the numbers) among them.

Of several numbers of rows, all is measured with the first; the figures of the others' drains follow as ``rows_60000_…``. ``--server``
takes the folder of another PostgreSQL's programs, such as ``/usr/lib/postgresql/15/bin``, or the URL of one that runs here.

Each drain begins with rows that are due a millisecond apart, and on PostgreSQL with a vacuumed and analyzed table (`comparison`).

Where something else keeps the machine busy, times and rates do not hold, and ratios hold less: a worker that gets the
processor seldom claims fewer rows at a time and wakes more often for a delivery, and revisions differ in what that costs.
On two busy processors, one revision took 297 µs of a worker's time at 1,743 deliveries a second and 443 at 307, the one of this
file 115 at 2,704 and 152 at 770. So look at the rates: a round whose rates differ much from the others says nothing.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Mapping
from typing import Any

from tests.benchmarks.comparison import Load, arrivals_ms, compare, compare_arrivals, compare_destinations
from tests.benchmarks.field import (
    ROOT,
    a_database,
    a_parser,
    a_receiver,
    drain,
    fill,
    machine,
    percentile,
    settings_of,
    show,
)
from tests.benchmarks.revisions import LOOPS, Tree, checked_out, this_tree


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


def latency(kind: str, rate: float, seconds: float, *, apart: bool) -> dict[str, float]:
    """Measure the time to arrival; ``apart``: delivered by a worker process."""
    took = arrivals_ms(this_tree(None), kind, rate, seconds, apart=apart)
    prefix = "apart_" if apart else ""
    return {f"{prefix}p{share}_ms": percentile(took, share / 100) for share in (50, 95, 99)}


def against(options: argparse.Namespace, load: Load) -> dict[str, Any]:
    """Compare this tree with a revision."""
    this = this_tree(options.loop)
    with checked_out(options.against) as folder:
        other = Tree(folder, options.against_loop)
        found = compare(this, other, load, options.rounds)
        if options.seconds:
            found["rate_per_s"] = options.rate
            for apart in (False, True) if options.database == "postgres" else (False,):
                found |= compare_arrivals(
                    this, other, options.database, options.rate, options.seconds, options.rounds, apart=apart
                )
    return found


def alone(options: argparse.Namespace, load: Load) -> dict[str, Any]:
    """Measure this tree."""
    found = throughput(load.database, load.rows, load.destinations, load.settings)
    if options.seconds:
        found["rate_per_s"] = options.rate
        found |= latency(options.database, options.rate, options.seconds, apart=False)
        if options.database == "postgres":
            found |= latency(options.database, options.rate, options.seconds, apart=True)
    return found


def main() -> None:
    """Measure and print."""
    parser = a_parser(__doc__, one_database=True)
    parser.add_argument("--rows", type=int, nargs="+", default=[20_000, 60_000], help="default: 20000 60000")
    parser.add_argument("--destinations", type=int, nargs="+", default=[10], help="1 10: one against ten")
    parser.add_argument("--concurrency", type=int, default=100, help="deliveries in flight (default: 100)")
    parser.add_argument("--rate", type=float, default=200, help="webhooks a second for the latency")
    parser.add_argument(
        "--seconds",
        type=float,
        help="how long at that rate, each time; 0: not at all (default: 15, with --against 5)",
    )
    comparing = parser.add_argument_group("comparisons: with another revision, of numbers of destinations")
    comparing.add_argument("--against", metavar="REVISION", help="a commit, tag or branch of this clone")
    comparing.add_argument("--rounds", type=int, default=5, help="of one drain each (default: 5)")
    comparing.add_argument(
        "--paths", type=int, default=1, help="of each destination, each a lane of its own (default: 1)"
    )
    comparing.add_argument("--tls", action="store_true", help="the receivers take https")
    comparing.add_argument("--loop", choices=LOOPS, help="the event loop of this tree's workers")
    comparing.add_argument("--against-loop", choices=LOOPS, help="of the revision's (default: what they take)")
    comparing.add_argument("--workers", type=int, default=1, help="processes; more than one: PostgreSQL only")
    options = parser.parse_args()
    few, many = options.destinations[0], options.destinations[-1]
    if len(options.destinations) > 2 or (few != many and (options.against or few > many)):
        parser.error("--destinations takes one number, or a smaller and a larger one without --against")
    compares = options.against is not None or few != many
    if not compares and (options.tls or options.loop or options.against_loop or options.workers != 1):
        parser.error("--tls, --loop, --against-loop and --workers are for comparisons")
    if options.seconds is None:
        options.seconds = 5 if options.against else 15
    found: dict[str, Any] = {
        "database": options.database,
        "rows": options.rows if len(options.rows) > 1 else options.rows[0],
        "destinations": few if few == many else [few, many],
        "concurrency": options.concurrency,
        "machine": machine(),
    }
    if compares:
        compared = ("against", "rounds", "loop", "against_loop", "workers", "tls", "paths")
        found |= {name: getattr(options, name) for name in compared if getattr(options, name)}
    settings = {"FLOWACTIONS_CONCURRENCY": str(options.concurrency)}
    load = Load(
        options.database,
        options.rows[0],
        many,
        options.workers,
        settings,
        tls=options.tls,
        paths=options.paths,
    )
    for number in options.rows:
        if options.against:
            each = against(options, load._replace(rows=number))
        elif few != many:
            each = compare_destinations(
                this_tree(options.loop), load._replace(rows=number), few, options.rounds
            )
        else:
            each = alone(options, load._replace(rows=number))
        # Drains alone differ by it.
        options.seconds = 0
        found |= (
            each if number == load.rows else {f"rows_{number}_{name}": value for name, value in each.items()}
        )
    show(found, as_json=options.json)


if __name__ == "__main__":
    main()
