"""The pace of a replay whose process is killed three times in the middle.

    python -m tests.benchmarks.replay [--database sqlite postgres] [--rows 100000] [--rate 2000] [--json]

A process carries the replay out, without deliveries beside it. When a quarter, a half and three quarters are done it is killed
(SIGKILL) and another is started. The pace is that from a process's first batch to its last, and over all.

Prints a line for each figure, or with ``--json`` one object. The exit status is 1 when a row was not replayed exactly once,
or is not counted.
"""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
import time

from sqlalchemy import text

from flowactions_plugin.bulk.actions import Actions
from flowactions_plugin.bulk.engine import actions_loop
from flowactions_plugin.deliveries.filters import Filter
from flowactions_plugin.operators.scope import Actor, Scope
from tests.benchmarks.field import ROOT, on_each_database, opened
from tests.bulk import fill

SOMEBODY = Actor("b", "Benchmark", "command")
KILLS = (0.25, 0.5, 0.75)
ACT = "import asyncio, sys; from tests.benchmarks.replay import act; asyncio.run(act(sys.argv[1]))"


async def act(url: str) -> None:
    """Carry out bulk actions until killed."""
    async with opened(url) as database:
        await actions_loop(database)


async def measure(url: str, rows: int, rate: float) -> dict[str, float]:
    """Replay on one database."""
    async with opened(url) as database:
        await fill(database, rows=rows, live=rows)
        async with database.write() as connection:
            await connection.execute(
                text(
                    "UPDATE flowactions_outbox SET status = 'dead', error_class = 'http_5xx', finished_at = created_at"
                )
            )
        actions = Actions(database)
        preview = await actions.preview(Scope(None), "replay", Filter())
        action = await actions.begin(
            Scope(None), "replay", preview.token, SOMEBODY, "", rate=rate, reset_attempts=True, undo_seconds=0
        )
        begun = time.monotonic()
        paced: list[tuple[float, int]] = []
        first, done = 0.0, 0
        for share in (*KILLS, 1.0):
            process = subprocess.Popen([sys.executable, "-c", ACT, url], cwd=ROOT)  # noqa: ASYNC220  short
            try:
                before, first, last = done, 0.0, 0.0
                while done < rows * share:
                    await asyncio.sleep(0.02)
                    found = await actions.get(Scope(None), action.id)
                    assert found is not None
                    if found.done > done:
                        last = time.monotonic()
                        if not first:
                            first, before = last, found.done
                        done = found.done
                paced.append((last - first, done - before))
            finally:
                process.send_signal(signal.SIGKILL)
                process.wait()
        whole = time.monotonic() - begun
        async with database.read() as connection:
            once = (
                await connection.execute(
                    text(
                        "SELECT count(*) FROM flowactions_outbox WHERE status = 'pending' AND attempts = 0"
                        " AND earlier_attempts = 1"
                    )
                )
            ).scalar_one()
    return {
        "pace": sum(number for _, number in paced) / sum(seconds for seconds, _ in paced),
        "pace_over_all": rows / whole,
        "not_replayed_once": rows - once,
        "not_counted": rows - done,
    }


def main() -> int:
    """Measure and print."""
    found = on_each_database(__doc__, measure, rows=100_000, rate=2000.0)
    return int(any(each["not_replayed_once"] or each["not_counted"] for each in found.values()))


if __name__ == "__main__":
    sys.exit(main())
