"""Another queue: a process that adds jobs, or a worker alone in its process, so that its memory is what it needs.

    python -m tests.benchmarks.peer add  NAME DATABASE FIRST NUMBER RATE
    python -m tests.benchmarks.peer work NAME DATABASE CLIENT ROWS NUMBER RATE [--ca FILE] RECEIVER [RECEIVER …]

What adds prints when it added which job. What works does ``ROWS`` jobs and prints the rate and its memory. With a ``NUMBER``, it adds
and does so many more, prints the times until they started, does as many that another process adds, and prints when each started.
`peers` runs both. Times are those of the monotonic clock, which the processes of a machine share.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import resource
import ssl
import statistics
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any, NamedTuple, TypeAlias, TypeVar

from tests.benchmarks.sink import BODY

CONCURRENCY = 100
JSON = {"content-type": "application/json"}
BATCH = 500
"""Jobs that are added by one call, where the queue has one for many."""

Do: TypeAlias = Callable[[int], Awaitable[None]]
"""Does a job, by its number."""

Post: TypeAlias = Callable[[bytes], Awaitable[None]]
"""Posts a body of JSON."""


Number = TypeVar("Number", int, str)
"""Of a job; JSON makes strings of what names values."""


class Queue(NamedTuple):
    """A queue in its database.

    Attributes:
        install: makes its tables.
        add: adds jobs, by their numbers.
        working: runs its worker within a block.
    """

    install: Callable[[], Awaitable[object]]
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

    yield Queue(queries.install, add, working)
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

    async def add(numbers: Sequence[int]) -> None:
        await task.batch_defer_async(*({"number": each} for each in numbers))

    async with app.open_async():
        yield Queue(app.schema_manager.apply_schema_async, add, working)


@asynccontextmanager
async def saq(url: str, do: Do) -> AsyncIterator[Queue]:
    """Use SAQ on its PostgreSQL queue."""
    from saq import Queue as Saq  # noqa: PLC0415  only where it is installed
    from saq import Worker  # noqa: PLC0415

    queue = Saq.from_url(url, max_size=20)
    await queue.connect()  # makes its tables

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

    yield Queue(lambda: asyncio.sleep(0), add, working)
    await queue.disconnect()


@asynccontextmanager
async def oban(url: str, do: Do) -> AsyncIterator[Queue]:
    """Use oban: a worker of a queue."""
    from oban import Oban, worker  # noqa: PLC0415  only where it is installed
    from oban.schema import install  # noqa: PLC0415
    from psycopg_pool import AsyncConnectionPool  # noqa: PLC0415

    async with AsyncConnectionPool(url, min_size=2, max_size=20, open=False) as pool:

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
            lambda: install(pool),
            lambda numbers: queue.enqueue_many([made.new({"number": each}) for each in numbers]),
            working,
        )


PEERS: dict[str, Callable[[str, Do], AbstractAsyncContextManager[Queue]]] = {
    "pgqueuer": pgqueuer,
    "procrastinate": procrastinate,
    "saq": saq,
    "oban": oban,
}


@asynccontextmanager
async def posting_with_httpx(receivers: Sequence[str], ca: str | None) -> AsyncIterator[Post]:
    """Post with httpx."""
    import httpx  # noqa: PLC0415  its memory is not the other's

    kept, turns = CONCURRENCY + len(receivers), itertools.cycle(receivers)
    limits = httpx.Limits(max_connections=kept, max_keepalive_connections=kept)
    async with httpx.AsyncClient(limits=limits, verify=ssl.create_default_context(cafile=ca)) as client:

        async def post(body: bytes) -> None:
            (await client.post(next(turns), content=body, headers=JSON)).raise_for_status()

        yield post


@asynccontextmanager
async def posting_with_aiohttp(receivers: Sequence[str], ca: str | None) -> AsyncIterator[Post]:
    """Post with aiohttp."""
    import aiohttp  # noqa: PLC0415

    turns, tls = itertools.cycle(receivers), ssl.create_default_context(cafile=ca)
    connector = aiohttp.TCPConnector(limit=CONCURRENCY + len(receivers), ssl=tls)
    async with aiohttp.ClientSession(connector=connector) as client:

        async def post(body: bytes) -> None:
            async with client.post(next(turns), data=body, headers=JSON) as response:
                await response.read()
                response.raise_for_status()

        yield post


CLIENTS: dict[str, Callable[[Sequence[str], str | None], AbstractAsyncContextManager[Post]]] = {
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
        self.begun[number] = time.monotonic()
        await self._post(BODY % number)
        self._done.release()

    async def wait(self, number: int) -> None:
        """Wait at most ten minutes until this number of further jobs is done."""
        async with asyncio.timeout(600):
            for _ in range(number):
                await self._done.acquire()


async def add(name: str, database: str, first: int, number: int, rate: float) -> None:
    """Add jobs: the first ones as fast as it goes, to a queue that it installs; others at a rate."""

    async def do(_number: int) -> None:
        raise RuntimeError("this process only adds")

    async with PEERS[name](database, do) as queue:
        if not first:
            await queue.install()
        if rate:
            print(json.dumps(await _added(queue, first, number, rate)))
            return
        for at in range(first, first + number, BATCH):
            await queue.add(range(at, min(at + BATCH, first + number)))


async def work(
    name: str,
    database: str,
    client: str,
    rows: int,
    number: int,
    rate: float,
    ca: str | None,
    receivers: list[str],
) -> None:
    """Drain what is queued, then do what is added at a steady rate: in this process, and in another one."""
    async with CLIENTS[client](receivers, ca) as post:
        jobs = Jobs(post)
        async with PEERS[name](database, jobs.do) as queue:
            started = time.monotonic()
            async with queue.working():
                await jobs.wait(rows)
                per_s = rows / (time.monotonic() - started)
                peak_mib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
                print(json.dumps({"per_s": per_s, "peak_mib": peak_mib}), flush=True)
                if number:
                    added = await _added(queue, rows, number, rate)
                    await jobs.wait(number)
                    print(json.dumps(times_ms(added, jobs.begun)), flush=True)
                    await jobs.wait(number)
                    print(json.dumps(jobs.begun), flush=True)


def times_ms(added: Mapping[Number, float], begun: Mapping[Number, float]) -> dict[str, float]:
    """Give the median and the 99th percentile of the times from adding jobs to their starts."""
    cuts = statistics.quantiles([begun[number] - at for number, at in added.items()], n=100)
    return {"p50_ms": cuts[49] * 1000, "p99_ms": cuts[98] * 1000}


async def _added(queue: Queue, first: int, number: int, rate: float) -> dict[int, float]:
    """Add jobs at a steady rate, and return when each was added."""
    called: dict[int, float] = {}
    adding = set()
    begin = time.monotonic()
    for each in range(number):
        await asyncio.sleep(max(0.0, begin + each / rate - time.monotonic()))
        called[first + each] = time.monotonic()
        adding.add(asyncio.ensure_future(queue.add([first + each])))
    await asyncio.gather(*adding)
    return called


def main() -> None:
    """Add, or work."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    does = parser.add_subparsers(required=True)
    adds, works = does.add_parser("add"), does.add_parser("work")
    for each in (adds, works):
        each.add_argument("name", choices=sorted(PEERS))
        each.add_argument("database")
    adds.set_defaults(run=add)
    adds.add_argument("first", type=int)
    works.set_defaults(run=work)
    works.add_argument("client", choices=sorted(CLIENTS))
    works.add_argument("rows", type=int)
    for each in (adds, works):
        each.add_argument("number", type=int)
        each.add_argument("rate", type=float)
    works.add_argument("--ca")
    works.add_argument("receivers", nargs="+")
    given = vars(parser.parse_args())
    asyncio.run(given.pop("run")(**given))


if __name__ == "__main__":
    main()
