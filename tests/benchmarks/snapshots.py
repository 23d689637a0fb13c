"""What a transaction that stays open costs the queue, such as that of a backup: PostgreSQL keeps all that was delivered since.

    python -m tests.benchmarks.snapshots [--rows 10000] [--drains 20] [--rate 0] [--seconds 900] [--only held|alone] [--json]

A worker empties the queue again and again, as many rows each time, in a database of its own: once beside a transaction that
holds a snapshot from the beginning, once without. Prints the rate and PostgreSQL's processor time a delivery of the last
quarter of the drains, and the ratios. The time to fill the queue is not counted.

With ``--rate``, so many rows a second are enqueued and delivered before the drains, for ``--seconds``: 800 for 900 seconds is what a
backup of 15 minutes keeps. Of these, PostgreSQL's processor time in the last quarter is printed, too. ``--only`` measures one of the
two, so that each command takes half of the time.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import statistics
import time
from contextlib import ExitStack
from pathlib import Path

import asyncpg
from sqlalchemy.engine import make_url

from flowactions_plugin.egress.guard import EgressGuard
from flowactions_plugin.egress.resolver import Resolver
from flowactions_plugin.queue.enqueue import Outbox
from tests.benchmarks.field import (
    a_database,
    a_parser,
    a_webhook,
    fill,
    machine,
    opened,
    settings_of,
    show,
    worker,
)
from tests.benchmarks.processor import tree_seconds
from tests.benchmarks.sink import sink
from tests.waiting import until

STEP_SECONDS = 0.05
"""Between two transactions that enqueue, at a steady rate."""


async def enqueue(url: str, receiver: str, rate: float, seconds: float) -> int:
    """Enqueue at a steady rate for so long; return how many rows."""
    each, began, number = max(1, round(rate * STEP_SECONDS)), time.monotonic(), 0
    async with opened(url) as database:
        queue = Outbox(database, EgressGuard(development=True, resolve=Resolver(1)))
        while (passed := time.monotonic() - began) < seconds:
            while number < passed * rate:
                async with database.write() as connection:
                    for place in range(number, number + each):
                        webhook = a_webhook(f"{receiver}/steady-{place}", place)
                        await queue.write(await queue.new_delivery(webhook), connection)
                number += each
            await asyncio.sleep(STEP_SECONDS)
    return number


async def measure(
    rows: int, drains: int, rate: float, seconds: float, *, held: bool
) -> tuple[list[float], list[float], float | None]:
    """Give the rates of the drains, PostgreSQL's microseconds a delivery, and the same at the steady rate."""
    rates, times = [], []
    steady: float | None = None
    with ExitStack() as stack:
        url = stack.enter_context(a_database("postgres"))
        await fill(url, 0, [])
        plain = make_url(url).set(drivername="postgresql").render_as_string(hide_password=False)
        other = await asyncpg.connect(plain)
        directory = Path(await other.fetchval("SHOW data_directory"))
        server = int((directory / "postmaster.pid").read_text().split()[0])
        if held:
            await other.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
            await other.fetchval("SELECT count(*) FROM flowactions_outbox")
        async with sink() as (receiver, arrivals):
            process = stack.enter_context(worker(settings_of(url)))
            before = 0
            if rate:
                before = await enqueue(url, receiver, rate, seconds * 3 / 4)
                await until(lambda: len(arrivals) == before, seconds=600)
                used = tree_seconds(server)
                last = await enqueue(url, f"{receiver}/last", rate, seconds / 4)
                before += last
                await until(lambda: len(arrivals) == before, seconds=600)
                steady = (tree_seconds(server) - used) / last * 1e6
            for drain in range(drains):
                os.kill(process.pid, signal.SIGSTOP)
                await fill(url, rows, [f"{receiver}/{drain}-{number}" for number in range(rows)])
                used, began = tree_seconds(server), time.perf_counter()
                os.kill(process.pid, signal.SIGCONT)
                wanted = before + (drain + 1) * rows
                await until(lambda wanted=wanted: len(arrivals) == wanted, seconds=600)  # type: ignore[misc]
                rates.append(rows / (time.perf_counter() - began))
                times.append((tree_seconds(server) - used) / rows * 1e6)
        await other.close()
    return rates, times, steady


def main() -> None:
    """Measure and print."""
    numbers = {"rows": 10_000, "drains": 20, "rate": 0.0, "seconds": 900.0}
    parser = a_parser(__doc__, "postgres", one_database=True, **numbers)
    parser.add_argument("--only", choices=["alone", "held"], help="default: both")
    options = parser.parse_args()
    logging.disable(logging.INFO)
    found: dict[str, float | str] = {"rows": options.rows, "drains": options.drains, "machine": machine()}
    last = max(1, options.drains // 4)
    names = [options.only] if options.only else ["alone", "held"]
    for name in names:
        given = (options.rows, options.drains, options.rate, options.seconds)
        rates, times, steady = asyncio.run(measure(*given, held=name == "held"))
        found[f"{name}_per_s"] = statistics.median(rates[-last:])
        found[f"{name}_database_us"] = statistics.median(times[-last:])
        if steady is not None:
            found[f"{name}_steady_database_us"] = steady
    figures = ("per_s", "database_us", *(["steady_database_us"] if options.rate else []))
    for figure in figures if len(names) == 2 else ():
        found[f"{figure}_ratio"] = float(found[f"held_{figure}"]) / float(found[f"alone_{figure}"])
    show(found, as_json=options.json)


if __name__ == "__main__":
    main()
