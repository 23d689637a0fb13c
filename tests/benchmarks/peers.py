"""The same job by other Python queues that live in a host's PostgreSQL: one POST for each job.

    python -m tests.benchmarks.peers [--rows 4000] [--json]

Each is used as its documentation shows, with one httpx client and a worker of 100 concurrent jobs; same rows, same
receiver, same run. Jobs are enqueued before the worker starts, and the time goes from its start until the last is done.
The others come with ``pip install -e '.[bench]'``. None of them signs, freezes bytes, keeps an attempts log, limits a
destination or looks where a request goes.
"""

from __future__ import annotations

import argparse
import asyncio
import subprocess
import sys
import time
from collections.abc import Callable, Coroutine
from typing import Any

import asyncpg
import httpx

from tests.benchmarks.field import BODY, ROOT, a_database, a_receiver, drain, fill, machine, show

CONCURRENCY = 100


async def post(client: httpx.AsyncClient, url: str, number: int) -> None:
    """Do the job."""
    response = await client.post(url, content=BODY % number, headers={"content-type": "application/json"})
    response.raise_for_status()


def limits() -> httpx.Limits:
    """Let every concurrent job have a connection."""
    return httpx.Limits(max_connections=CONCURRENCY, max_keepalive_connections=CONCURRENCY)


async def pgqueuer(url: str, rows: int, receiver: str) -> float:
    """Run pgqueuer: an entrypoint, fetched in batches."""
    from pgqueuer import AsyncpgDriver, Job, PgQueuer, Queries  # noqa: PLC0415  only where it is installed

    connection = await asyncpg.connect(url)
    driver = AsyncpgDriver(connection)
    queries = Queries(driver)
    await queries.install()
    for first in range(0, rows, 500):
        numbers = range(first, min(first + 500, rows))
        await queries.enqueue(
            ["post"] * len(numbers), [str(number).encode() for number in numbers], [0] * len(numbers)
        )
    app = PgQueuer(driver)
    done = Countdown(rows)

    async with httpx.AsyncClient(limits=limits()) as client:

        @app.entrypoint("post", concurrency_limit=CONCURRENCY)
        async def job(job: Job) -> None:
            await post(client, receiver, int(job.payload or b"0"))
            done.one()

        started = time.perf_counter()
        running = asyncio.create_task(app.run(batch_size=CONCURRENCY))
        await done.wait()
        seconds = time.perf_counter() - started
        app.shutdown.set()
        await running
    await connection.close()
    return rows / seconds


async def procrastinate(url: str, rows: int, receiver: str) -> float:
    """Run procrastinate: a task, and a worker in the same process."""
    from procrastinate import App, PsycopgConnector  # noqa: PLC0415  only where it is installed

    app = App(connector=PsycopgConnector(conninfo=url))
    done = Countdown(rows)
    async with httpx.AsyncClient(limits=limits()) as client:

        @app.task(name="post", queue="webhooks")
        async def task(number: int) -> None:
            await post(client, receiver, number)
            done.one()

        async with app.open_async():
            await app.schema_manager.apply_schema_async()
            for first in range(0, rows, 500):
                await task.batch_defer_async(
                    *({"number": number} for number in range(first, min(first + 500, rows)))
                )
            started = time.perf_counter()
            running = asyncio.create_task(
                app.run_worker_async(
                    queues=["webhooks"], concurrency=CONCURRENCY, wait=True, install_signal_handlers=False
                )
            )
            await done.wait()
            seconds = time.perf_counter() - started
            running.cancel()
            await asyncio.wait({running})
    return rows / seconds


async def saq(url: str, rows: int, receiver: str) -> float:
    """Run SAQ on its PostgreSQL queue."""
    from saq import Queue, Worker  # noqa: PLC0415  only where it is installed

    queue = Queue.from_url(url, max_size=20)
    await queue.connect()
    done = Countdown(rows)
    for number in range(rows):
        await queue.enqueue("post_one", number=number)
    async with httpx.AsyncClient(limits=limits()) as client:

        async def post_one(_context: Any, *, number: int) -> None:
            await post(client, receiver, number)
            done.one()

        worker = Worker(queue, functions=[("post_one", post_one)], concurrency=CONCURRENCY)
        started = time.perf_counter()
        running = asyncio.create_task(worker.start())
        await done.wait()
        seconds = time.perf_counter() - started
        await worker.stop()
        await asyncio.wait({running}, timeout=10)
    await queue.disconnect()
    return rows / seconds


class Countdown:
    """Waits until all is done, ten minutes at the most."""

    def __init__(self, count: int) -> None:
        self._left = count
        self._all = asyncio.Event()

    def one(self) -> None:
        self._left -= 1
        if self._left == 0:
            self._all.set()

    async def wait(self) -> None:
        async with asyncio.timeout(600):
            await self._all.wait()


PEERS: dict[str, Callable[[str, int, str], Coroutine[Any, Any, float]]] = {
    "pgqueuer": pgqueuer,
    "procrastinate": procrastinate,
    "saq": saq,
}


def apart(name: str, rows: int, receiver: str, url: str) -> float | None:
    """Run one in a process of its own; ``None`` when it is not installed or does not end."""
    command = [sys.executable, "-m", "tests.benchmarks.peers", "--one", name, "--rows", str(rows)]
    process = subprocess.Popen(
        [*command, "--receiver", receiver, "--url", url], cwd=ROOT, stdout=subprocess.PIPE, text=True
    )
    try:
        printed, _ = process.communicate(timeout=660)
    except subprocess.TimeoutExpired:
        return None
    finally:
        process.kill()
        process.wait()
    return float(printed.split()[-1]) if process.returncode == 0 and printed.split() else None


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=4000)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--one", choices=sorted(PEERS), help=argparse.SUPPRESS)
    parser.add_argument("--receiver", help=argparse.SUPPRESS)
    parser.add_argument("--url", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        print(asyncio.run(PEERS[options.one](options.url, options.rows, options.receiver)))
        return
    found: dict[str, Any] = {"rows": options.rows, "machine": machine()}
    with a_receiver(10) as receivers:
        with a_database("postgres") as url:
            asyncio.run(fill(url, options.rows, receivers))
            found["flowactions"] = drain(url, options.rows, {}).per_s
        for name in PEERS:
            with a_database("postgres") as url:
                found[name] = apart(name, options.rows, receivers[0], url)
    for name in PEERS:
        if found[name]:
            found[f"to_{name}"] = found["flowactions"] / found[name]
    show(found, as_json=options.json)


if __name__ == "__main__":
    main()
