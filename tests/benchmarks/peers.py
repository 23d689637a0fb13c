"""The same job by other Python queues that live in a host's PostgreSQL: one POST for each job.

    python -m tests.benchmarks.peers [--rows 4000] [--destinations 10] [--tls] [--clients aiohttp httpx] [--rate 200] [--seconds 10]
        [--json] [--server BIN|URL]

Each is used as its documentation shows, with a worker of 100 concurrent jobs, alone in its process, and one client, which keeps its
connections; same rows, same receivers, same run. Three things are measured:

- the rate: jobs are enqueued before the worker starts, and the time goes from its start (ours: its first attempt) until the last is
  done;
- the time from adding a job to its start, while jobs are added at a steady rate to an empty queue, in the worker's own process and in
  another one. Of this plugin it is the time until the request has arrived, which is later. ``--seconds 0`` leaves it out;
- the highest resident memory of the worker's process in the drain.

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
from collections.abc import Sequence
from importlib.util import find_spec
from typing import Any

from tests.benchmarks.deliver import latency
from tests.benchmarks.field import (
    ROOT,
    Receivers,
    a_database,
    a_receiver_process,
    add_server,
    drain,
    fill,
    machine,
    show,
)
from tests.benchmarks.peer import CLIENTS, PEERS, times_ms

SAFETY_SECONDS = 900
PEER = (sys.executable, "-m", "tests.benchmarks.peer")


def other(
    name: str, client: str, url: str, receivers: Receivers, rows: int, number: int, rate: float
) -> dict[str, float]:
    """Measure another queue in a new database: its drain of ``rows``, and ``number`` more jobs at a rate, twice."""
    subprocess.run([*PEER, "add", name, url, "0", str(rows), "0"], check=True, cwd=ROOT, timeout=SAFETY_SECONDS)
    ca = receivers.settings.get("FLOWACTIONS_EGRESS_CA_FILE")
    given = [
        name,
        url,
        client,
        str(rows),
        str(number),
        str(rate),
        *(["--ca", ca] if ca else []),
        *receivers.urls,
    ]
    worker = subprocess.Popen([*PEER, "work", *given], cwd=ROOT, stdout=subprocess.PIPE, text=True)
    try:
        assert worker.stdout is not None
        figures: dict[str, float] = _printed(worker.stdout.readline())
        if number:
            figures = _printed(worker.stdout.readline())
            adding = [*PEER, "add", name, url, str(rows + number), str(number), str(rate)]
            added = _printed(subprocess.check_output(adding, cwd=ROOT, text=True, timeout=SAFETY_SECONDS))
            apart = times_ms(added, _printed(worker.stdout.readline()))
            figures |= {f"apart_{key}": value for key, value in apart.items()}
        worker.wait(SAFETY_SECONDS)
    finally:
        worker.kill()
        worker.wait()
    return figures


def _printed(line: str) -> dict[str, float]:
    figures: dict[str, float] = json.loads(line) if line.strip() else {}
    return figures


def drained(url: str, rows: int, receivers: Receivers) -> dict[str, float]:
    """Measure this plugin's drain."""
    asyncio.run(fill(url, rows, receivers.urls))
    found = drain(url, rows, receivers.settings)
    return {"per_s": found.per_s, "peak_mib": found.peak_rss_mib}


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=4000)
    parser.add_argument("--destinations", type=int, default=10, help="ports of the receiver (default: 10)")
    parser.add_argument("--tls", action="store_true", help="the receiver takes https")
    parser.add_argument("--clients", choices=sorted(CLIENTS), nargs="+", default=sorted(CLIENTS))
    parser.add_argument("--rate", type=float, default=200, help="jobs a second for the time until they start")
    parser.add_argument("--seconds", type=float, default=10, help="how long at that rate")
    parser.add_argument("--json", action="store_true")
    add_server(parser)
    options = parser.parse_args(arguments)
    number, peers = round(options.rate * options.seconds), [each for each in PEERS if find_spec(each)]
    loads = [(options.rows, 0), (0, number)] if number else [(options.rows, 0)]
    found: dict[str, Any] = {"rows": options.rows, "rate_per_s": options.rate, "machine": machine()}
    with a_receiver_process(options.destinations, tls=options.tls) as receivers:
        with a_database("postgres") as url:
            figures = drained(url, options.rows, receivers)
        for apart in (False, True) if number else ():
            figures |= latency("postgres", options.rate, options.seconds, apart=apart)
        found |= {f"flowactions_{key}": value for key, value in figures.items()}
        for name, client, (rows, more) in itertools.product(peers, options.clients, loads):
            with a_database("postgres") as url:
                figures = other(name, client, url, receivers, rows, more, options.rate)
            found |= {f"{name}_with_{client}_{key}": value for key, value in figures.items()}
    show(found, as_json=options.json)


if __name__ == "__main__":
    main()
