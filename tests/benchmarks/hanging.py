"""What receivers of one organization that hang cost another: the time from enqueue to arrival beside them, and alone.

    python -m tests.benchmarks.hanging [--database sqlite postgres] [--receivers 12 40 100] [--rows 20] [--rate 10]
        [--seconds 30] [--rounds 1] [--organizations 1] [--shared another same] [--server BIN|URL] [--json]

One organization has so many due rows for each of so many receivers that take connections and never answer; another enqueues at
a steady rate, and its arrivals are timed from five seconds on: until the tenth, no attempt has timed out yet. A worker
process delivers. Prints for each database and number of receivers
p50 and p99 in milliseconds, and the median ratios to the same alone. With two organizations, each has so many such receivers.

With ``--shared``, the rows are for one hook that never answers, on the host to which the others go; they are of another
organization or of the same one.
"""

from __future__ import annotations

import asyncio
import logging
import statistics
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection

from flowactions_plugin.queue.lanes import lane_of
from tests.benchmarks.deliver import printed_by
from tests.benchmarks.field import (
    ROOT,
    a_database,
    a_parser,
    fill,
    machine,
    opened,
    percentile,
    settings_of,
    show,
    worker,
)
from tests.benchmarks.sink import sink
from tests.waiting import until

RECEIVERS = """
import asyncio, sys
async def silent(reader, writer):
    while await reader.read(65536):
        pass
    writer.close()
async def main():
    servers = [await asyncio.start_server(silent, "127.0.0.1", 0, backlog=1000) for _ in range(int(sys.argv[1]))]
    print(*(each.sockets[0].getsockname()[1] for each in servers), flush=True)
    await asyncio.Event().wait()
asyncio.run(main())
"""


@contextmanager
def silent(number: int) -> Iterator[list[str]]:
    """Run receivers that never answer; give their URLs."""
    command = [sys.executable, "-c", RECEIVERS, str(number)]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield [f"http://127.0.0.1:{port}/hook" for port in process.stdout.readline().split()]
        finally:
            process.kill()


async def measure(
    kind: str, receivers: int, rows: int, rate: float, seconds: float, organizations: int = 1, shared: str = ""
) -> dict[str, float]:
    """Give percentiles of the times to arrival of one organization, in milliseconds, beside receivers of another that hang."""
    with ExitStack() as stack:
        url = stack.enter_context(a_database(kind))
        async with sink(silent=b"/hook") as (receiver, arrivals):
            await fill(url, 0, [])
            for number in range(organizations if receivers else 0):
                hooks = [f"{receiver}/hook"] if shared else stack.enter_context(silent(receivers))
                await fill(url, receivers * rows, hooks)
                async with opened(url) as database, database.write() as connection:
                    await give(connection, "acme" if shared == "same" else f"hung{number}")
            settings = settings_of(url)
            stack.enter_context(worker(settings))
            reached = await asyncio.to_thread(
                printed_by,
                "steady",
                {**settings, "FLOWACTIONS_HOST_WORKER": "off"},
                *("--url", receiver, "--rate", str(rate), "--seconds", str(seconds)),
            )
            await until(lambda: reached.keys() <= arrivals.keys(), seconds=300)
    # The worker starts within the first second.
    begin = min(reached.values()) + min(5.0, seconds / 4)
    took = [(arrivals[path] - at) * 1000 for path, at in reached.items() if at >= begin]
    return {f"p{share}_ms": percentile(took, share / 100) for share in (50, 99)}


async def give(connection: AsyncConnection, organization_id: str) -> None:
    """Give the rows that were filled last to an organization, each in its lane."""
    rows = await connection.execute(
        text("SELECT DISTINCT url, destination FROM flowactions_outbox WHERE organization_id = 'acme'")
    )
    for row in rows.all():
        lane = lane_of(organization_id, row.destination, row.url)
        moved = "UPDATE flowactions_outbox SET organization_id = :new, lane = :lane WHERE organization_id = 'acme' AND url = :url"
        await connection.execute(text(moved), {"new": organization_id, "lane": lane, "url": row.url})


def main() -> None:
    """Measure and print."""
    parser = a_parser(__doc__, rows=20, rate=10.0, seconds=30.0, rounds=1)
    parser.add_argument("--receivers", type=int, nargs="+", default=[12, 40, 100], help="default: 12 40 100")
    parser.add_argument("--organizations", type=int, default=1, help="default: 1")
    parser.add_argument("--shared", choices=("another", "same"), default="")
    options = parser.parse_args()
    logging.disable(logging.INFO)
    found: dict[str, Any] = {"rate_per_s": options.rate, "machine": machine()}
    for kind in options.database:
        measured: dict[int, list[dict[str, float]]] = {number: [] for number in (0, *options.receivers)}
        for _ in range(options.rounds):
            for number, each in measured.items():
                each.append(
                    asyncio.run(
                        measure(
                            kind,
                            number,
                            options.rows,
                            options.rate,
                            options.seconds,
                            options.organizations,
                            options.shared,
                        )
                    )
                )
        for name in ("p50_ms", "p99_ms"):
            alone = [each[name] for each in measured[0]]
            found[f"{kind}_alone_{name}"] = statistics.median(alone)
            for number in options.receivers:
                beside = [each[name] for each in measured[number]]
                found[f"{kind}_{number}_{name}"] = statistics.median(beside)
                ratios = [one / other for one, other in zip(beside, alone, strict=True)]
                found[f"{kind}_{number}_{name.replace('_ms', '_ratio')}"] = statistics.median(ratios)
    show(found, as_json=options.json)


if __name__ == "__main__":
    main()
