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
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any, NamedTuple, TypeAlias

import aiohttp
import asyncpg
import httpx

from tests.benchmarks.deliver import latency
from tests.benchmarks.field import BODY, ROOT, a_database, a_receiver, add_server, drain, fill, machine, show

CONCURRENCY = 100
JSON = {"content-type": "application/json"}
BATCH = 500
"""Jobs that are added by one call, where the queue has one for many."""

Do: TypeAlias = Callable[[int], Awaitable[None]]
"""Does a job, by its number."""

Post: TypeAlias = Callable[[bytes], Awaitable[None]]
"""Posts a body of JSON."""


class Queue(NamedTuple):
    """A queue that is installed in its database.

    Attributes:
        add: adds jobs, by their numbers.
        working: runs its worker within a block.
    """

    add: Callable[[Sequence[int]], Awaitable[object]]
    working: Callable[[], AbstractAsyncContextManager[None]]


@asynccontextmanager
async def pgqueuer(url: str, do: Do) -> AsyncIterator[Queue]:
    """Use pgqueuer: an entrypoint, fetched in batches."""
    from pgqueuer import AsyncpgDriver, Job, PgQueuer, Queries  # noqa: PLC0415  only where it is installed

    connection, adding = await asyncpg.connect(url), await asyncpg.connect(url)
    driver = AsyncpgDriver(connection)
    queries = Queries(AsyncpgDriver(adding))
    await queries.install()
    app = PgQueuer(driver)

    @app.entrypoint("post", concurrency_limit=CONCURRENCY)
    async def job(job: Job) -> None:
        await do(int(job.payload or b"0"))

    async def add(numbers: Sequence[int]) -> None:
        payloads = [str(number).encode() for number in numbers]
        await queries.enqueue(["post"] * len(numbers), payloads, [0] * len(numbers))

    @asynccontextmanager
    async def working() -> AsyncIterator[None]:
        running = asyncio.create_task(app.run(batch_size=CONCURRENCY))
        yield
        app.shutdown.set()
        await running

    yield Queue(add, working)
    await connection.close()
    await adding.close()


@asynccontextmanager
async def procrastinate(url: str, do: Do) -> AsyncIterator[Queue]:
    """Use procrastinate: a task, and a worker in the same process."""
    from procrastinate import App, PsycopgConnector  # noqa: PLC0415  only where it is installed

    app = App(connector=PsycopgConnector(conninfo=url))

    @app.task(name="post", queue="webhooks")
    async def task(number: int) -> None:
        await do(number)

    @asynccontextmanager
    async def working() -> AsyncIterator[None]:
        running = asyncio.create_task(
            app.run_worker_async(
                queues=["webhooks"], concurrency=CONCURRENCY, wait=True, install_signal_handlers=False
            )
        )
        yield
        running.cancel()
        await asyncio.wait({running})

    async with app.open_async():
        await app.schema_manager.apply_schema_async()
        yield Queue(lambda numbers: task.batch_defer_async(*({"number": each} for each in numbers)), working)


@asynccontextmanager
async def saq(url: str, do: Do) -> AsyncIterator[Queue]:
    """Use SAQ on its PostgreSQL queue."""
    from saq import Queue as Saq  # noqa: PLC0415  only where it is installed
    from saq import Worker  # noqa: PLC0415

    queue = Saq.from_url(url, max_size=20)
    await queue.connect()

    async def add(numbers: Sequence[int]) -> None:
        for number in numbers:
            await queue.enqueue("post_one", number=number)

    async def post_one(_context: Any, *, number: int) -> None:
        await do(number)

    @asynccontextmanager
    async def working() -> AsyncIterator[None]:
        worker = Worker(queue, functions=[("post_one", post_one)], concurrency=CONCURRENCY)
        running = asyncio.create_task(worker.start())
        yield
        await worker.stop()
        await asyncio.wait({running}, timeout=10)

    yield Queue(add, working)
    await queue.disconnect()


@asynccontextmanager
async def oban(url: str, do: Do) -> AsyncIterator[Queue]:
    """Use oban: a worker of a queue."""
    from oban import Oban, worker  # noqa: PLC0415  only where it is installed
    from oban.schema import install  # noqa: PLC0415
    from psycopg_pool import AsyncConnectionPool  # noqa: PLC0415

    async with AsyncConnectionPool(url, min_size=2, max_size=20, open=False) as pool:
        await install(pool)

        @worker(queue="webhooks")
        class Post:
            async def process(self, job: Any) -> None:
                await do(job.args["number"])

        queue = Oban(pool=pool, queues={"webhooks": CONCURRENCY})

        @asynccontextmanager
        async def working() -> AsyncIterator[None]:
            async with queue:
                yield

        made: Any = Post
        yield Queue(
            lambda numbers: queue.enqueue_many([made.new({"number": each}) for each in numbers]), working
        )


PEERS: dict[str, Callable[[str, Do], AbstractAsyncContextManager[Queue]]] = {
    "pgqueuer": pgqueuer,
    "procrastinate": procrastinate,
    "saq": saq,
    "oban": oban,
}


@asynccontextmanager
async def posting_with_httpx(receiver: str) -> AsyncIterator[Post]:
    """Post with httpx."""
    limits = httpx.Limits(max_connections=CONCURRENCY, max_keepalive_connections=CONCURRENCY)
    async with httpx.AsyncClient(limits=limits) as client:

        async def post(body: bytes) -> None:
            (await client.post(receiver, content=body, headers=JSON)).raise_for_status()

        yield post


@asynccontextmanager
async def posting_with_aiohttp(receiver: str) -> AsyncIterator[Post]:
    """Post with aiohttp."""
    connector = aiohttp.TCPConnector(limit=CONCURRENCY)
    async with aiohttp.ClientSession(connector=connector) as client:

        async def post(body: bytes) -> None:
            async with client.post(receiver, data=body, headers=JSON) as response:
                await response.read()
                response.raise_for_status()

        yield post


CLIENTS: dict[str, Callable[[str], AbstractAsyncContextManager[Post]]] = {
    "httpx": posting_with_httpx,
    "aiohttp": posting_with_aiohttp,
}


class Jobs:
    """Does jobs, and knows when each began.

    Args:
        post: sends.
    """

    def __init__(self, post: Post) -> None:
        self._post = post
        self.begun: dict[int, float] = {}
        self._done = asyncio.Semaphore(0)

    async def do(self, number: int) -> None:
        """Do a job."""
        self.begun[number] = time.perf_counter()
        await self._post(BODY % number)
        self._done.release()

    async def wait(self, number: int) -> None:
        """Wait until so many more are done, ten minutes at the most."""
        async with asyncio.timeout(600):
            for _ in range(number):
                await self._done.acquire()


async def measure(
    name: str, client: str, url: str, receiver: str, rows: int, rate: float, seconds: float
) -> dict[str, float]:
    """Measure one of the others with a client: the rate of a drain, and the time until a job starts."""
    async with CLIENTS[client](receiver) as post:
        jobs = Jobs(post)
        async with PEERS[name](url, jobs.do) as queue:
            for first in range(0, rows, BATCH):
                await queue.add(range(first, min(first + BATCH, rows)))
            started = time.perf_counter()
            async with queue.working():
                await jobs.wait(rows)
                per_s = rows / (time.perf_counter() - started)
                took = await _latencies(queue, jobs, rows, rate, round(rate * seconds))
    cuts = statistics.quantiles(took, n=100)
    peak_mib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return {"per_s": per_s, "p50_ms": cuts[49] * 1000, "p99_ms": cuts[98] * 1000, "peak_mib": peak_mib}


async def _latencies(queue: Queue, jobs: Jobs, first: int, rate: float, number: int) -> list[float]:
    """Add jobs at a steady rate, whatever the earlier ones take; return the seconds from each call to the start of its job."""
    called: dict[int, float] = {}
    adding = set()
    begin = time.perf_counter()
    for each in range(number):
        await asyncio.sleep(max(0.0, begin + each / rate - time.perf_counter()))
        called[first + each] = time.perf_counter()
        adding.add(asyncio.ensure_future(queue.add([first + each])))
    await asyncio.gather(*adding)
    await jobs.wait(number)
    return [jobs.begun[each] - at for each, at in called.items()]


def apart(name: str, client: str, receiver: str, url: str, given: Sequence[str]) -> dict[str, float]:
    """Run one in a process of its own; empty when it is not installed or does not end."""
    command = [sys.executable, "-m", "tests.benchmarks.peers", *given, "--one", name, "--client", client]
    process = subprocess.Popen(
        [*command, "--receiver", receiver, "--url", url], cwd=ROOT, stdout=subprocess.PIPE, text=True
    )
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
    parser.add_argument("--one", choices=sorted(PEERS), help=argparse.SUPPRESS)
    parser.add_argument("--client", choices=sorted(CLIENTS), help=argparse.SUPPRESS)
    parser.add_argument("--receiver", help=argparse.SUPPRESS)
    parser.add_argument("--url", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        sizes = (options.rows, options.rate, options.seconds)
        print(
            json.dumps(asyncio.run(measure(options.one, options.client, options.url, options.receiver, *sizes)))
        )
        return
    found: dict[str, Any] = {"rows": options.rows, "rate_per_s": options.rate, "machine": machine()}
    with a_receiver(10) as receivers:
        with a_database("postgres") as url:
            asyncio.run(fill(url, options.rows, receivers))
            drained = drain(url, options.rows, {})
            found |= {"flowactions": drained.per_s, "flowactions_peak_mib": drained.peak_rss_mib}
        ours = latency("postgres", options.rate, options.seconds, apart=False)
        found |= {f"flowactions_{name}": ours[name] for name in ("p50_ms", "p99_ms")}
        for name, client in itertools.product(PEERS, CLIENTS):
            given = [f"--{each}={getattr(options, each)}" for each in ("rows", "rate", "seconds")]
            with a_database("postgres") as url:
                figures = apart(name, client, receivers[0], url, given)
            if figures:
                what = f"{name}_with_{client}"
                found[what] = figures.pop("per_s")
                found[f"to_{what}"] = found["flowactions"] / found[what]
                found |= {f"{what}_{key}": value for key, value in figures.items()}
    show(found, as_json=options.json)


if __name__ == "__main__":
    main()
