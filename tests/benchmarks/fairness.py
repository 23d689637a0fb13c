"""What one organization's backlog costs another: the time from enqueue to arrival beside it, and alone.

    python -m tests.benchmarks.fairness [--database sqlite postgres] [--rows 20000] [--destinations 100] [--rate 50]
        [--seconds 10] [--rounds 3] [--host-worker off own] [--server BIN|URL] [--json]

One organization has so many due rows over so many destinations (a million over a thousand: ``--rows 1000000
--destinations 1000``); another enqueues at a steady rate, and its arrivals are timed. A worker process delivers; with ``--host-worker own`` the
process that enqueues sends its own. Prints for
each database p50 and p99 of both in milliseconds, and the median ratios.
"""

from __future__ import annotations

import asyncio
import logging
import statistics
from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any

from sqlalchemy import BigInteger, bindparam, text

from flowactions_plugin.queue.lanes import lane_of
from flowactions_plugin.storage.schema import outbox
from tests.benchmarks.deliver import printed_by
from tests.benchmarks.field import (
    a_database,
    a_parser,
    a_receiver,
    fill,
    machine,
    opened,
    percentile,
    settings_of,
    show,
    worker,
)
from tests.benchmarks.sink import sink
from tests.bulk import SERIES
from tests.waiting import until

NOT_COPIED = {"id", "organization_id", "url", "destination", "lane"}


async def backlog(url: str, rows: int, receivers: Sequence[str]) -> None:
    """Write due rows of one organization, the same number to each receiver."""
    await fill(url, 1, receivers)
    copied = ", ".join(column.name for column in outbox.c if column.name not in NOT_COPIED)
    async with opened(url) as database:
        series, row_id, source = SERIES[database.dialect]
        each = rows // len(receivers)
        async with database.write() as connection:
            for number, receiver in enumerate(receivers):
                at = number * each
                new_id = row_id.replace("(i)", f"({at} + i)").replace("i, i)", f"{at} + i, {at} + i)")
                statement = f"""
                    INSERT INTO flowactions_outbox (id, organization_id, url, destination, lane, {copied})
                    {series.format(rows=each)}
                    SELECT {new_id}, 'big', :url, :destination, :lane, {copied} FROM {source.format(rows=each)},
                        flowactions_outbox WHERE organization_id = 'acme'"""  # noqa: S608  names and numbers only
                destination = receiver.removesuffix("/hook")
                lane = lane_of("big", destination, receiver)
                given = {"url": receiver, "destination": destination, "lane": lane}
                await connection.execute(text(statement).bindparams(bindparam("lane", type_=BigInteger)), given)
            await connection.execute(text("DELETE FROM flowactions_outbox WHERE organization_id = 'acme'"))
        async with database.write() as connection:
            await connection.execute(text("ANALYZE"))


async def measure(
    kind: str, rows: int, destinations: int, rate: float, seconds: float, host_worker: str
) -> dict[str, float]:
    """Give percentiles of the times to arrival of one organization, in milliseconds, beside another's rows."""
    with ExitStack() as stack:
        receivers = stack.enter_context(a_receiver(destinations))
        url = stack.enter_context(a_database(kind))
        await fill(url, 0, [])
        if rows:
            await backlog(url, rows, receivers)
        settings = settings_of(url)
        stack.enter_context(worker(settings))
        settings["FLOWACTIONS_HOST_WORKER"] = host_worker
        await asyncio.sleep(3)
        async with sink() as (receiver, arrivals):
            given = ("--url", receiver, "--rate", str(rate), "--seconds", str(seconds))
            reached = await asyncio.to_thread(printed_by, "steady", settings, *given)
            await until(lambda: reached.keys() <= arrivals.keys(), seconds=60)
    took = [(arrivals[path] - at) * 1000 for path, at in reached.items()]
    return {f"p{share}_ms": percentile(took, share / 100) for share in (50, 99)}


def main() -> None:
    """Measure and print."""
    parser = a_parser(__doc__, rows=20_000, destinations=100, rate=50.0, seconds=10.0, rounds=3)
    parser.add_argument("--host-worker", choices=("off", "own"), default="off")
    options = parser.parse_args()
    logging.disable(logging.INFO)
    found: dict[str, Any] = {
        "rows": options.rows,
        "destinations": options.destinations,
        "rate_per_s": options.rate,
        "machine": machine(),
    }
    for kind in options.database:
        pairs = []
        for _ in range(options.rounds):
            alone, beside = (
                asyncio.run(
                    measure(
                        kind, rows, options.destinations, options.rate, options.seconds, options.host_worker
                    )
                )
                for rows in (0, options.rows)
            )
            pairs.append((alone, beside))
        for name in ("p50_ms", "p99_ms"):
            found[f"{kind}_{name}"] = statistics.median(beside[name] for _, beside in pairs)
            found[f"{kind}_alone_{name}"] = statistics.median(alone[name] for alone, _ in pairs)
            ratios = [beside[name] / alone[name] for alone, beside in pairs]
            found[f"{kind}_{name.replace('_ms', '_ratio')}"] = statistics.median(ratios)
    show(found, as_json=options.json)


if __name__ == "__main__":
    main()
