"""A worker of another queue, alone in its process with its client, so that its memory is what it needs: see `peers`."""

from __future__ import annotations

import argparse
import asyncio
import json
import resource
import statistics
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any, NamedTuple, TypeAlias

from tests.benchmarks.sink import BODY

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
    import asyncpg  # noqa: PLC0415
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
    import httpx  # noqa: PLC0415  its memory is not the other's

    limits = httpx.Limits(max_connections=CONCURRENCY, max_keepalive_connections=CONCURRENCY)
    async with httpx.AsyncClient(limits=limits) as client:

        async def post(body: bytes) -> None:
            (await client.post(receiver, content=body, headers=JSON)).raise_for_status()

        yield post


@asynccontextmanager
async def posting_with_aiohttp(receiver: str) -> AsyncIterator[Post]:
    """Post with aiohttp."""
    import aiohttp  # noqa: PLC0415

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
        """Wait until this number of further jobs is done, for ten minutes at the most."""
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
    """Add jobs at a steady rate, and return how many seconds after its call each job started."""
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


def main() -> None:
    """Measure one, and print the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("name", choices=sorted(PEERS))
    parser.add_argument("client", choices=sorted(CLIENTS))
    parser.add_argument("url")
    parser.add_argument("receiver")
    parser.add_argument("rows", type=int)
    parser.add_argument("rate", type=float)
    parser.add_argument("seconds", type=float)
    print(json.dumps(asyncio.run(measure(**vars(parser.parse_args())))))


if __name__ == "__main__":
    main()
