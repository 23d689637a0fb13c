"""Two revisions drain queues in turns, and what each costs is compared.

On a machine that does other things too, microseconds and rates are as noisy as the machine; what disturbs one drain
disturbs the next one of the other revision as well, so the median of the ratios of such pairs holds.

Each drain begins with the same table: rows are due a millisecond apart (`spread_sql`), and on PostgreSQL the table is vacuumed and
analyzed. Otherwise the first reader of each page pays for what the inserts have left, and autovacuum comes in the middle of
some drains and not of others.
"""

from __future__ import annotations

import asyncio
import signal
import sqlite3
import statistics
import subprocess
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, NamedTuple, Protocol, TypeVar

import asyncpg

from tests.benchmarks.field import a_database, a_receiver_process, percentile, settings_of
from tests.benchmarks.processor import has_loaded, memory_mib, parent_of, tree_seconds
from tests.benchmarks.revisions import Tree
from tests.benchmarks.sink import sink
from tests.waiting import until

T = TypeVar("T")

POLL_SECONDS = 0.2
SAFETY_SECONDS = 1800

RATIOS = {
    "worker_ratio": "worker_us",
    "database_ratio": "database_us",
    "receiver_ratio": "receiver_us",
    "rate_ratio": "deliveries_per_s",
    "wal_ratio": "wal_bytes",
    "memory_ratio": "peak_rss_mib",
}
"""What is compared, and the figure of `Cost` that it is the ratio of."""

LIVE_SQL = "SELECT count(*) FROM (SELECT 1 FROM flowactions_outbox WHERE status NOT IN ('delivered', 'dead') LIMIT 1) AS live"
ENDED_SQL = (
    "SELECT count(*), sum(attempts), max(finished_at) FROM flowactions_outbox WHERE status = 'delivered'"
)
FIRST_SQL = "SELECT min(finished_at) FROM flowactions_outbox WHERE finished_at >= {since}"


def spread_sql(now: float) -> str:
    """Return the statement that makes the rows that wait due a millisecond apart, the last one a second ago.

    Rows that are enqueued as fast as possible are due in a few milliseconds. Then claims find no place in the index from
    which on nothing is delivered yet, and read the entries of what is. How many they read depends on chance, and on the
    revision.
    """
    return f"""
        UPDATE flowactions_outbox SET next_attempt_at = {int(now * 1000) - 1000} - waiting.place
        FROM (
            SELECT id, row_number() OVER (ORDER BY id DESC) AS place FROM flowactions_outbox
            WHERE status IN ('pending', 'retrying')
        ) AS waiting
        WHERE flowactions_outbox.id = waiting.id"""  # noqa: S608  a number only


class Load(NamedTuple):
    """What is drained.

    Attributes:
        database: ``sqlite`` or ``postgres``.
        rows: how many.
        destinations: receivers that take them in turn.
        workers: processes that deliver.
        settings: further settings of the workers.
        tls: whether the receivers take https.
        paths: to how many paths of each receiver: each is a lane.
    """

    database: str
    rows: int
    destinations: int
    workers: int
    settings: Mapping[str, str]
    tls: bool = False
    paths: int = 1


class Cost(NamedTuple):
    """What a drain took, processor times in microseconds a delivery.

    Attributes:
        worker_us: of the workers.
        database_us: of PostgreSQL; SQLite's is the worker's.
        receiver_us: of the receivers.
        deliveries_per_s: from the first outcome to the last: workers wait for a second after they were stopped.
        wal_bytes: PostgreSQL's write-ahead log, bytes a delivery.
        peak_rss_mib: the highest resident memory of any worker.
    """

    worker_us: float
    database_us: float | None
    receiver_us: float
    deliveries_per_s: float
    wal_bytes: float | None
    peak_rss_mib: float


class _Watched(Protocol):
    """A database that is read from outside, without the plugin."""

    async def row(self, statement: str) -> Sequence[Any]:
        """Returns the first row."""

    def seconds(self) -> float | None:
        """Returns the processor time of the server so far."""

    async def wal(self) -> int | None:
        """Returns the position in the write-ahead log, bytes."""

    async def prepare(self) -> None:
        """Spread the due times of what waits, and do what autovacuum would soon."""

    async def close(self) -> None:
        """Close the connection."""


class _SQLite:
    def __init__(self, path: str) -> None:
        self._connection = sqlite3.connect(path, isolation_level=None, timeout=60)

    async def row(self, statement: str) -> Sequence[Any]:
        found: Sequence[Any] = self._connection.execute(statement).fetchone()
        return found

    def seconds(self) -> None:
        return None

    async def wal(self) -> None:
        return None

    async def prepare(self) -> None:
        # SQLite gathers no statistics unless it is told to, and the plugin does not tell it.
        self._connection.execute(spread_sql(time.time()))

    async def close(self) -> None:
        self._connection.close()


class _PostgreSQL:
    def __init__(self, connection: Any, own_pid: int) -> None:
        self._connection = connection
        self._own_pid = own_pid
        self._server = parent_of(own_pid)

    @classmethod
    async def open(cls, url: str) -> _PostgreSQL:
        connection = await asyncpg.connect(url, ssl=False)
        return cls(connection, await connection.fetchval("SELECT pg_backend_pid()"))

    async def row(self, statement: str) -> Sequence[Any]:
        found: Sequence[Any] = await self._connection.fetchrow(statement)
        return found

    def seconds(self) -> float:
        return tree_seconds(self._server, without=[self._own_pid])

    async def wal(self) -> int:
        written: int = await self._connection.fetchval("SELECT pg_current_wal_lsn() - '0/0'::pg_lsn")
        return int(written)

    async def prepare(self) -> None:
        await self._connection.execute(spread_sql(time.time()))
        await self._connection.execute("VACUUM (ANALYZE) flowactions_outbox")

    async def close(self) -> None:
        await self._connection.close()


async def _watched(url: str) -> _Watched:
    if url.startswith("sqlite"):
        return _SQLite(url.removeprefix("sqlite:///"))
    return await _PostgreSQL.open(url)


class _Field(NamedTuple):
    """What a tree delivers from and to.

    Attributes:
        tree: the tree.
        load: what is drained.
        url: the database's.
        receiver: the receivers' process.
        receivers: their URLs.
        workers: the processes that deliver.
    """

    tree: Tree
    load: Load
    url: str
    receiver: int
    receivers: Sequence[str]
    workers: Sequence[subprocess.Popen[bytes]]


@contextmanager
def _field(tree: Tree, load: Load) -> Iterator[_Field]:
    """Run receivers, a new database with a row for each of them, and workers."""
    with ExitStack() as stack:
        received = a_receiver_process(load.destinations, tls=load.tls)
        receiver, receivers, needed = stack.enter_context(received)
        url = stack.enter_context(a_database(load.database))
        tree.fill(url, load.destinations, receivers)
        settings = {**settings_of(url), **needed, **load.settings}
        workers = [stack.enter_context(tree.worker(settings)) for _ in range(load.workers)]
        yield _Field(tree, load, url, receiver, receivers, workers)


def drain(tree: Tree, load: Load) -> Cost:
    """Fill a new database with a tree's own code, and have its workers empty it.

    The workers have delivered to each destination before, so that neither start nor first connections count. While the
    queue is filled they are stopped.

    Raises:
        RuntimeError: not every row was delivered, or one was attempted more often than it had to be.
    """
    with _field(tree, load) as field:
        return asyncio.run(_drain_in_turn(field, [load.destinations]))[0]


async def _drain_in_turn(field: _Field, turns: Iterable[int]) -> list[Cost]:
    """Have the same workers drain once for each number of destinations."""
    database = await _watched(field.url)
    try:
        await _until_drained(database, field.workers)
        # The other workers, which may have had none of the first rows, are up too.
        await asyncio.sleep(1)
        if field.tree.loop == "uvloop" and not has_loaded(field.workers[0].pid, "/uvloop/"):
            raise RuntimeError("the worker does not use uvloop")
        return [await _drain(field, database, field.receivers[:number]) for number in turns]
    finally:
        await database.close()


async def _drain(field: _Field, database: _Watched, receivers: Sequence[str]) -> Cost:
    load, processes = field.load, field.workers
    before_delivered, before_attempts, _ = await database.row(ENDED_SQL)
    with _stopped(processes, field.url) as resume:
        field.tree.fill(
            field.url, load.rows, [f"{each}/{path}" for path in range(load.paths) for each in receivers]
        )
        await database.prepare()

        def processor_times() -> tuple[float, float | None, float]:
            worker = sum(tree_seconds(process.pid) for process in processes)
            return worker, database.seconds(), tree_seconds(field.receiver)

        log = await database.wal()
        before = processor_times()
        released = int(time.time() * 1000)
        resume()
        await _until_drained(database, processes)
        after = processor_times()
        log_end = await database.wal()
    delivered, attempts, ended = await database.row(ENDED_SQL)
    started = (await database.row(FIRST_SQL.format(since=released)))[0]
    made = (delivered - before_delivered, attempts - before_attempts)
    if made != (load.rows, load.rows):
        raise RuntimeError(f"{load.rows} rows, {made[0]} delivered, {made[1]} attempts")

    def each(end: float | None, start: float | None) -> float | None:
        return None if end is None or start is None else (end - start) / load.rows

    worker, server, receiving = (each(end, start) for end, start in zip(after, before, strict=True))
    return Cost(
        worker_us=(worker or 0) * 1e6,
        database_us=None if server is None else server * 1e6,
        receiver_us=(receiving or 0) * 1e6,
        deliveries_per_s=load.rows * 1000 / max(1, ended - started),
        wal_bytes=each(log_end, log),
        peak_rss_mib=max(memory_mib(process.pid, "VmHWM") for process in processes),
    )


def compare_destinations(tree: Tree, load: Load, few: int, rounds: int) -> dict[str, Any]:
    """Have the same workers drain queues to all destinations and to a few of them, so many times in turns.

    Returns:
        The costs of both, and the ratios of the few to all.
    """
    turns = list(_turns(few, load.destinations, rounds))
    with _field(tree, load) as field:
        drained = asyncio.run(_drain_in_turn(field, turns))
    costs: dict[int, list[Cost]] = {few: [], load.destinations: []}
    for number, cost in zip(turns, drained, strict=True):
        costs[number].append(cost)
    found = _compared(costs[few], costs[load.destinations], f"of_{load.destinations}_")
    words = {1: "one", 10: "ten"}
    found[f"{words.get(few, few)}_to_{words.get(load.destinations, load.destinations)}"] = found["rate_ratio"]
    return found


@contextmanager
def _stopped(processes: Sequence[subprocess.Popen[bytes]], url: str) -> Iterator[Callable[[], None]]:
    """Stop processes, at a moment when none holds SQLite's lock; gives what lets them go on."""

    def send(number: signal.Signals) -> None:
        for process in processes:
            process.send_signal(number)

    try:
        send(signal.SIGSTOP)
        while not _writable(url):
            send(signal.SIGCONT)
            time.sleep(0.01)
            send(signal.SIGSTOP)
        yield lambda: send(signal.SIGCONT)
    finally:
        # A stopped process does not end when it is asked to.
        send(signal.SIGCONT)


def _writable(url: str) -> bool:
    if not url.startswith("sqlite"):
        return True
    connection = sqlite3.connect(url.removeprefix("sqlite:///"), isolation_level=None, timeout=0.1)
    try:
        connection.execute("BEGIN IMMEDIATE")
        connection.execute("ROLLBACK")
    except sqlite3.OperationalError:
        return False
    finally:
        connection.close()
    return True


async def _until_drained(database: _Watched, processes: Iterable[subprocess.Popen[bytes]]) -> None:
    async def drained() -> bool:
        if any(process.poll() is not None for process in processes):
            raise RuntimeError("a worker has ended")
        return not (await database.row(LIVE_SQL))[0]

    deadline = time.monotonic() + SAFETY_SECONDS
    while not await drained():
        if time.monotonic() > deadline:
            raise RuntimeError(f"not drained within {SAFETY_SECONDS} s")
        await asyncio.sleep(POLL_SECONDS)


def arrivals_ms(tree: Tree, kind: str, rate: float, seconds: float, *, apart: bool) -> list[float]:
    """Returns the milliseconds from reaching the node to the request's arrival, at a steady rate.

    Args:
        tree: whose host and, ``apart``, whose worker.
        kind: of database.
        rate: webhooks a second.
        seconds: how long.
        apart: whether a worker process delivers, instead of the host's own.
    """
    with ExitStack() as stack:
        settings = settings_of(stack.enter_context(a_database(kind)))
        if apart:
            # The tables first, then the worker that uses them.
            tree.fill(settings["FLOWACTIONS_DATABASE_URL"], 0, [])
            stack.enter_context(tree.worker(settings))
            time.sleep(2)
        return asyncio.run(_arrivals_ms(tree, settings, rate, seconds, apart=apart))


async def _arrivals_ms(
    tree: Tree, settings: Mapping[str, str], rate: float, seconds: float, *, apart: bool
) -> list[float]:
    async with sink() as (receiver, arrivals):
        reached = await tree.steady(
            {**settings, "FLOWACTIONS_HOST_WORKER": "off" if apart else "on"},
            *("--url", receiver, "--rate", str(rate), "--seconds", str(seconds)),
        )
        await until(lambda: reached.keys() <= arrivals.keys(), seconds=300)
    return [(arrivals[path] - at) * 1000 for path, at in reached.items()]


def compare(this: Tree, other: Tree, load: Load, rounds: int) -> dict[str, Any]:
    """Drain with both, so many times in turns, and give the costs and their ratios, this tree's to the other's."""
    costs: dict[Tree, list[Cost]] = {this: [], other: []}
    for tree in _turns(this, other, rounds):
        costs[tree].append(drain(tree, load))
    return _compared(costs[this], costs[other], "other_")


def _compared(mine: Sequence[Cost], theirs: Sequence[Cost], prefix: str) -> dict[str, Any]:
    """Give the medians of costs, of the second ones under names with a prefix, and of the ratios of the pairs."""
    found: dict[str, Any] = {}
    for start, costs in (("", mine), (prefix, theirs)):
        for name in Cost._fields:
            found[start + name] = _median([getattr(cost, name) for cost in costs])
    for ratio, name in RATIOS.items():
        found |= _ratios(ratio, *([getattr(cost, name) for cost in costs] for costs in (mine, theirs)))
    return found


def compare_arrivals(
    this: Tree, other: Tree, kind: str, rate: float, seconds: float, rounds: int, *, apart: bool
) -> dict[str, Any]:
    """Measure the time to arrival with both, so many times in turns; the figures of all rounds, the ratios of each."""
    took: dict[Tree, list[list[float]]] = {this: [], other: []}
    for tree in _turns(this, other, rounds):
        took[tree].append(arrivals_ms(tree, kind, rate, seconds, apart=apart))
    place = "apart_" if apart else ""
    found: dict[str, Any] = {}
    for share in (50, 95, 99):
        for prefix, tree in (("", this), ("other_", other)):
            everything = [each for one_round in took[tree] for each in one_round]
            found[f"{prefix}{place}p{share}_ms"] = percentile(everything, share / 100)
        mine, theirs = ([percentile(each, share / 100) for each in took[tree]] for tree in (this, other))
        found |= _ratios(f"{place}p{share}_ratio", mine, theirs)
    return found


def _turns(this: T, other: T, rounds: int) -> Iterator[T]:
    """Yields each of the two once a round; who comes first changes."""
    for number in range(rounds):
        yield from (this, other) if number % 2 == 0 else (other, this)


def _median(values: Sequence[float | None]) -> float | None:
    measured = [value for value in values if value is not None]
    return statistics.median(measured) if measured else None


def _ratios(name: str, mine: Sequence[float | None], theirs: Sequence[float | None]) -> dict[str, Any]:
    """Returns the median of the rounds' ratios, and the lowest and the highest of them."""
    found = [a / b for a, b in zip(mine, theirs, strict=True) if a is not None and b]
    if not found:
        return {name: None, f"{name}_spread": None}
    return {name: statistics.median(found), f"{name}_spread": [min(found), max(found)]}
