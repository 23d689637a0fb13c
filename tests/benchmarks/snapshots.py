"""What a transaction that stays open costs the queue, such as that of a backup: PostgreSQL keeps all that was delivered since.

    python -m tests.benchmarks.snapshots [--rows 10000] [--drains 20] [--json]

A worker empties the queue again and again, as many rows each time, in a database of its own: once beside a transaction that
holds a snapshot from the beginning, once without. Prints the rate and PostgreSQL's processor time a delivery of the last
quarter of the drains, and the ratios. The time to fill the queue is not counted.
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

from tests.benchmarks.field import a_database, a_parser, fill, machine, settings_of, show, worker
from tests.benchmarks.processor import tree_seconds
from tests.benchmarks.sink import sink
from tests.waiting import until


async def measure(rows: int, drains: int, *, held: bool) -> tuple[list[float], list[float]]:
    """Give the rates of the drains, and PostgreSQL's microseconds a delivery."""
    rates, times = [], []
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
            for drain in range(drains):
                os.kill(process.pid, signal.SIGSTOP)
                await fill(url, rows, [f"{receiver}/{drain}-{number}" for number in range(rows)])
                used, began = tree_seconds(server), time.perf_counter()
                os.kill(process.pid, signal.SIGCONT)
                wanted = (drain + 1) * rows
                await until(lambda wanted=wanted: len(arrivals) == wanted, seconds=600)  # type: ignore[misc]
                rates.append(rows / (time.perf_counter() - began))
                times.append((tree_seconds(server) - used) / rows * 1e6)
        await other.close()
    return rates, times


def main() -> None:
    """Measure and print."""
    options = a_parser(__doc__, "postgres", one_database=True, rows=10_000, drains=20).parse_args()
    logging.disable(logging.INFO)
    found: dict[str, float | str] = {"rows": options.rows, "drains": options.drains, "machine": machine()}
    last = max(1, options.drains // 4)
    for name, held in (("alone", False), ("held", True)):
        rates, times = asyncio.run(measure(options.rows, options.drains, held=held))
        found[f"{name}_per_s"] = statistics.median(rates[-last:])
        found[f"{name}_database_us"] = statistics.median(times[-last:])
    for figure in ("per_s", "database_us"):
        found[f"{figure}_ratio"] = float(found[f"held_{figure}"]) / float(found[f"alone_{figure}"])
    show(found, as_json=options.json)


if __name__ == "__main__":
    main()
