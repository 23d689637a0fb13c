"""What operators' pages and commands wait for in a large outbox, and what a worker loses meanwhile.

    python -m tests.benchmarks.operator [--database postgres|sqlite] [--rows 1000000] [--drain 10000]
        [--pause 0.3] [--json]

The outbox has ended rows of many organizations, and as many intervals of statistics as a week has. Each query of the pages
is run in turn, beside a worker that drains rows; before and after it, a row is looked up by its id. Printed are the 95th
percentiles, their ratio to that of the look-up, and the rate of the worker beside the queries and alone.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import sys
import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import ExitStack
from typing import Any

from sqlalchemy import select, text

from flowactions_plugin.deliveries.filters import Filter
from flowactions_plugin.deliveries.operator_queries import OperatorQueries
from flowactions_plugin.health.status import QueueStatus
from flowactions_plugin.operators.scope import Scope
from flowactions_plugin.storage.database import Database
from flowactions_plugin.storage.schema import LIVE, outbox
from tests.benchmarks.field import (
    a_database,
    a_receiver,
    fill,
    machine,
    opened,
    percentile,
    settings_of,
    worker,
)
from tests.bulk import SERIES

ORGANIZATIONS = 50
DESTINATIONS = 200
START = 1_700_000_000_000
EVERY_MS = 600
"""Between the enqueues of two rows: a million rows are a week."""


IDS = {
    "sqlite": "substr(h, 1, 8) || '-' || substr(h, 9, 4) || '-7000-8000-' || printf('%012x', i)",
    "postgresql": "substr(h, 1, 8) || '-' || substr(h, 9, 4) || '-7000-8000-' || lpad(to_hex(i), 12, '0')",
}
TIMES = {
    "sqlite": f"printf('%012x', {START} + i * {EVERY_MS})",
    "postgresql": f"lpad(to_hex({START} + i::bigint * {EVERY_MS}), 12, '0')",
}


def an_id(number: int) -> str:
    """Give the id of a row."""
    moment = f"{START + number * EVERY_MS:012x}"
    return f"{moment[:8]}-{moment[8:]}-7000-8000-{number:012x}"


async def history(url: str, rows: int) -> None:
    """Write rows that have ended, one in fifty dead, and statistics of the last hour and day."""
    async with opened(url) as database:
        series, _, source = SERIES[database.dialect]
        at = f"{START} + {'i::bigint' if database.dialect == 'postgresql' else 'i'} * {EVERY_MS}"
        statement = f"""
            INSERT INTO flowactions_outbox (id, organization_id, agent_id, origin, event_id, event_type, url, destination,
                method, headers, body, status, attempts, earlier_attempts, max_attempts, next_attempt_at, takeovers,
                created_at, updated_at, finished_at, error_class, flow_id, node_id, idempotency_key)
            {series.format(rows=rows)}
            SELECT {IDS[database.dialect]}, 'o-' || (i % {ORGANIZATIONS}), 'agent-' || (i % 100), '{{}}', 'evt_' || i,
                'experience.flow_node.webhook', 'https://d' || (i % {DESTINATIONS}) || '.example.com/hook',
                'https://d' || (i % {DESTINATIONS}) || '.example.com:443', 'POST', '[]', NULL,
                CASE WHEN i % 50 = 1 THEN 'dead' ELSE 'delivered' END, 1, 0, 5, {at}, 0, {at}, {at}, {at},
                CASE WHEN i % 50 = 1 THEN CASE WHEN i % 100 = 1 THEN 'timeout' ELSE 'http_5xx' END END,
                'f-' || (i % 50), 'n-' || (i % 50), CASE WHEN i % 10 = 0 THEN 'k-' || i END
            FROM (SELECT i, {TIMES[database.dialect]} AS h FROM {source.format(rows=rows)}) AS made"""  # noqa: S608
        counts = f"""
            INSERT INTO flowactions_statistics
                (bucket, organization_id, destination, delivered, failed, dead, duration_ms)
            {series.format(rows=288 * DESTINATIONS)}
            SELECT CAST(:last AS BIGINT) - (i % 288) * 300000, 'o-' || (i / 288 % {ORGANIZATIONS}), 'https://d' || (i / 288), 90, 10, 1, 9000
            FROM {source.format(rows=288 * DESTINATIONS - 1)}"""  # noqa: S608
        last = int(time.time()) // 300 * 300_000
        async with database.write() as connection:
            await connection.execute(text(statement))
            await connection.execute(text(counts), {"last": last})
        async with database.write() as connection:
            await connection.execute(text("ANALYZE"))


def queries(database: Database, rows: int) -> dict[str, Callable[[], Awaitable[Any]]]:
    """Give what the pages and commands ask, by name."""
    operator = OperatorQueries(database, QueueStatus(database, mode="continuous"))
    every, one = Scope(None), Scope("o-7")

    def search(scope: Scope, wanted: Filter) -> Callable[[], Awaitable[Any]]:
        return lambda: operator.deliveries(scope, wanted, None, 50)

    def count(scope: Scope, wanted: Filter) -> Callable[[], Awaitable[Any]]:
        return lambda: operator.count(scope, wanted)

    oldest = START + rows // 2 * EVERY_MS
    filters = {
        "everything": Filter(),
        "dead": Filter(status="dead"),
        "delivered": Filter(status="delivered"),
        "event id, old": Filter(event_id="evt_101"),
        "key": Filter(idempotency_key="k-100"),
        "agent": Filter(agent_id="agent-7"),
        "destination": Filter(destination="https://d51.example.com:443"),
        "dead of a destination": Filter(destination="https://d51.example.com:443", status="dead"),
        "error": Filter(error_class="timeout"),
        "node": Filter(flow_id="f-1", node_id="n-1"),
        "time": Filter(created_before=oldest, status="dead"),
    }
    found: dict[str, Callable[[], Awaitable[Any]]] = {
        "overview, all": lambda: operator.overview(every),
        "overview, one": lambda: operator.overview(one),
        "verdict": operator.status.verdict,
        "destinations": lambda: operator.status.destinations(every, 50),
        "workers": operator.status.workers,
        "delivery": lambda: operator.delivery(every, an_id(rows // 2)),
        "audit": lambda: operator.audit(every, None, 50),
    }
    for name, wanted in filters.items():
        for whose, scope in (("all", every), ("one", one)):
            found[f"search {name}, {whose}"] = search(scope, wanted)
            found[f"count {name}, {whose}"] = count(scope, wanted)
    return found


async def ask(url: str, rows: int, rounds: int, pause: float) -> dict[str, list[float]]:
    """Give how long each query and the look-up took, in milliseconds; with a pause, in seconds, behind each query."""
    times: dict[str, list[float]] = {"look-up by id": []}
    async with opened(url) as database:
        asked = queries(database, rows)
        bare = select(outbox.c.status).where(outbox.c.id == an_id(rows // 3))

        async def look_up() -> None:
            async with database.read() as connection:
                (await connection.execute(bare)).one()

        for number in range(rounds):
            for name, query in asked.items():
                for title, run in (("look-up by id", look_up), (name, query)):
                    started = time.perf_counter()
                    await run()
                    if number:  # the first one opens connections and prepares statements
                        times.setdefault(title, []).append((time.perf_counter() - started) * 1000)
                await asyncio.sleep(pause)
    return times


async def drained(url: str) -> None:
    """Wait until nothing waits."""
    async with opened(url) as database:
        while True:
            async with database.read() as connection:
                if (await connection.execute(select(outbox.c.id).where(LIVE).limit(1))).first() is None:
                    return
            await asyncio.sleep(0.1)


async def rate(
    url: str, rows: int, receivers: list[str], since: int, asking: Callable[[], Awaitable[Any]] | None
) -> float:
    """Give the rows a second that a worker delivers, with or without somebody asking meanwhile."""
    await fill(url, rows, receivers)
    with worker(settings_of(url)):
        asked = asyncio.create_task(_forever(asking)) if asking else None
        await asyncio.wait_for(drained(url), 600)
        if asked:
            asked.cancel()
            await asyncio.wait({asked})
            if not asked.cancelled() and asked.exception():
                raise RuntimeError("a query failed") from asked.exception()
    async with opened(url) as database, database.read() as connection:
        ended = text(
            "SELECT min(delivered_started_at), max(finished_at), count(*) FROM flowactions_outbox"
            " WHERE delivered_started_at >= CAST(:since AS BIGINT)"
        )
        first, last, count = (await connection.execute(ended, {"since": since})).one()
    if count < rows:
        raise RuntimeError(f"{rows} rows, {count} delivered")
    return float(rows / (last - first) * 1000)


async def _forever(asking: Callable[[], Awaitable[Any]]) -> None:
    while True:
        await asking()


async def measure(kind: str, rows: int, drain: int, rounds: int, pause: float) -> dict[str, Any]:
    """Measure on one database."""
    with ExitStack() as stack:
        url = stack.enter_context(a_database(kind))
        receivers = stack.enter_context(a_receiver(4))
        await history(url, rows)
        found: dict[str, Any] = {}
        collected: dict[str, list[float]] = {}

        async def asking() -> None:
            for name, took in (await ask(url, rows, 2, pause)).items():
                collected.setdefault(name, []).extend(took)

        if drain:
            rates = {}
            for name, beside in (("alone", None), ("beside_queries", asking)):
                rates[name] = await rate(url, drain, receivers, int(time.time() * 1000), beside)
            found["rows_per_s"] = rates
            found["rate_kept"] = rates["beside_queries"] / rates["alone"]
        for name, took in (await ask(url, rows, rounds, 0)).items():
            collected.setdefault(name, []).extend(took)
        p95 = {name: percentile(took, 0.95) for name, took in collected.items()}
        return {**found, "p95_ms": p95, "slowest_ratio": max(p95.values()) / p95["look-up by id"]}


def shown(found: Mapping[str, Any]) -> None:
    """Print the figures of one database."""
    bare = found["p95_ms"]["look-up by id"]
    for name, p95 in sorted(found["p95_ms"].items(), key=lambda each: -each[1]):
        print(f"  {name:36} {p95:8.2f} ms {p95 / bare:8.1f} × the look-up")
    if "rows_per_s" in found:
        alone, beside = found["rows_per_s"].values()
        print(f"  worker: {alone:.0f} rows/s alone, {beside:.0f} beside the queries ({found['rate_kept']:.2f})")


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--database", choices=["sqlite", "postgres"], nargs="+", default=["sqlite", "postgres"])
    parser.add_argument("--rows", type=int, help="default: 1,000,000 on PostgreSQL, 100,000 on SQLite")
    parser.add_argument(
        "--drain", type=int, default=10_000, help="rows that the worker delivers each time; 0: none"
    )
    parser.add_argument("--rounds", type=int, default=11)
    parser.add_argument(
        "--pause",
        type=float,
        default=0.3,
        help="seconds between two queries beside the worker; default: 0.3, as some five people ask whose pages refresh",
    )
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    logging.disable(logging.INFO)
    found: dict[str, Any] = {"machine": machine()}
    for kind in options.database:
        rows = options.rows or (1_000_000 if kind == "postgres" else 100_000)
        found[kind] = asyncio.run(measure(kind, rows, options.drain, options.rounds, options.pause))
        if not options.json:
            print(f"{kind}, {rows:,} rows")
            shown(found[kind])
    if options.json:
        print(json.dumps(found))
    return 0


if __name__ == "__main__":
    sys.exit(main())
