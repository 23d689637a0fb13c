"""The same job by other Python queues that live in a host's PostgreSQL: one POST for each job.

    python -m tests.benchmarks.peers [--rows 4000] [--rate 200] [--seconds 10] [--server BIN|URL] [--json]

Each is used as its documentation shows, with a worker of 100 concurrent jobs and one client, of httpx and of aiohttp, which costs
them much less; same rows, same receiver, same run. Three things are measured:

- the rate: jobs are enqueued before the worker starts, and the time goes from its start until the last is done;
- the time from adding a job to its start, while jobs are added at a steady rate in the worker's own process. Of this plugin it is
  the time until the request has arrived, which is later;
- the highest resident memory of the worker's process.

The others come with ``pip install -e '.[bench]'``; oban needs Python 3.12. One that is not installed is left out. None of them signs,
freezes bytes, keeps an attempts log, limits a destination or looks where a request goes.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import subprocess
import sys
from typing import Any

from tests.benchmarks.deliver import latency
from tests.benchmarks.field import ROOT, a_database, a_receiver, add_server, drain, fill, machine, show
from tests.benchmarks.peer import CLIENTS, PEERS


def apart(*given: object) -> dict[str, float]:
    """Run one in a process of its own; empty when it is not installed or does not end."""
    command = [sys.executable, "-m", "tests.benchmarks.peer", *map(str, given)]
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
    try:
        printed, _ = process.communicate(timeout=900)
    except subprocess.TimeoutExpired:
        return {}
    finally:
        process.kill()
        process.wait()
    figures: dict[str, float] = json.loads(printed) if process.returncode == 0 else {}
    return figures


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=4000)
    parser.add_argument("--rate", type=float, default=200, help="jobs a second for the time until they start")
    parser.add_argument("--seconds", type=float, default=10, help="how long at that rate")
    parser.add_argument("--json", action="store_true")
    add_server(parser)
    options = parser.parse_args()
    found: dict[str, Any] = {"rows": options.rows, "rate_per_s": options.rate, "machine": machine()}
    with a_receiver(10) as receivers:
        with a_database("postgres") as url:
            asyncio.run(fill(url, options.rows, receivers))
            drained = drain(url, options.rows, {})
            found |= {"flowactions": drained.per_s, "flowactions_peak_mib": drained.peak_rss_mib}
        ours = latency("postgres", options.rate, options.seconds, apart=False)
        found |= {f"flowactions_{name}": ours[name] for name in ("p50_ms", "p99_ms")}
        for name, client in itertools.product(PEERS, CLIENTS):
            with a_database("postgres") as url:
                figures = apart(name, client, url, receivers[0], options.rows, options.rate, options.seconds)
            if figures:
                what = f"{name}_with_{client}"
                found[what] = figures.pop("per_s")
                found[f"to_{what}"] = found["flowactions"] / found[what]
                found |= {f"{what}_{key}": value for key, value in figures.items()}
    show(found, as_json=options.json)


if __name__ == "__main__":
    main()
