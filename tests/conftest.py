from __future__ import annotations

import asyncio
import gc
import os
import shutil
import signal
from collections.abc import AsyncIterator, Generator, Iterator
from contextlib import ExitStack, contextmanager
from functools import cache
from pathlib import Path
from typing import Any
from uuid import uuid4

import asyncpg
import pytest
from hypothesis import HealthCheck, settings
from sqlalchemy.engine import make_url

from flowactions_plugin.settings.model import read_settings
from flowactions_plugin.storage.database import Database
from tests import reaper, sharing
from tests.outages import Outage
from tests.own_server import own_postgresql
from tests.queueing import Queue
from tests.rings import README, Case, announcement, rings

reaper.begin()

# How long an example takes, the machine decides.
_UNCHECKED = [HealthCheck.too_slow, HealthCheck.differing_executors]  # mutmut runs tests again in one process
settings.register_profile("any machine", deadline=None, suppress_health_check=_UNCHECKED)
settings.load_profile("any machine")

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # As where a shell started the tests in the background. Processes that tests start and interrupt would ignore it, too.
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int:
    """Twice as many workers as processors: tests wait for a third of their time."""
    given = os.environ.get("PYTEST_XDIST_AUTO_NUM_WORKERS")
    return int(given) if given else 2 * _processors()


def _processors() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def pytest_report_collectionfinish(config: pytest.Config, items: list[pytest.Item]) -> str:
    """Say what the run is about to do, where one process runs all tests."""
    return announcement(len(items), 1, config.option.markexpr)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_node_collection_finished(node: Any, ids: list[str]) -> None:
    """Say it, where several processes run them, once: tests begin when all processes have collected them."""
    if node.gateway.id == "gw0":
        reporter = node.config.pluginmanager.getplugin("terminalreporter")
        reporter.ensure_newline()
        reporter.write_line(announcement(len(ids), _processors(), node.config.option.markexpr))


EMPTY = (
    "tests/contract/",
    "tests/crash/",
    "tests/packaging/",
    "tests/plugin/storage/test_beside_a_host.py",
    "tests/plugin/storage/test_conflicts.py",
    "tests/plugin/storage/test_database.py::test_a_host_that_starts_before_its_database_recovers",
    "tests/plugin/storage/test_database.py::test_concurrent_first_starts_succeed",
    "tests/plugin/storage/test_few_connections.py",
    "tests/plugin/storage/test_migrations.py",
    "tests/plugin/storage/test_outages.py",
    "tests/plugin/storage/test_poolers.py",
    "tests/plugin/storage/test_transactions.py::test_joined_writes_commit_and_roll_back_with_the_host",
    "tests/plugin/storage/test_urls.py",
    "tests/plugin/test_cli.py",
)
"""Where tests get a database without tables: they are about the first start, too. The others get a copy of a database
with the tables, which takes a tenth of the time of making them."""

SLOW = (
    "tests/benchmarks/",
    "tests/conformance/test_engines.py",
    "tests/conformance/test_healthy_hosts.py",
    "tests/conformance/test_misbehaving.py",
    "tests/conformance/test_faulty.py",
    "tests/crash/",
    "tests/docs/test_installation.py",
    "tests/docs/test_site.py",
    "tests/docs/test_tutorials.py",
    "tests/model/",
    "tests/packaging/",
    "tests/plugin/egress/test_receivers.py",
    "tests/reference_host/test_openapi.py",
)
"""Where tests take seconds each: they begin first, so that at the end no process is left alone with them."""


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark the tests of later rings, leave out repetitions, and deal the slow tests out: each process gets its share of them first."""
    later = rings(map(Case.of, items))
    config.stash[README] = frozenset(
        item.nodeid.partition("[")[0] for item in items if item.nodeid not in later
    )
    config.hook.pytest_deselected(items=[item for item in items if later.get(item.nodeid) == "none"])
    items[:] = [item for item in items if later.get(item.nodeid) != "none"]
    for item in items:
        if item.nodeid in later:
            item.add_marker(later[item.nodeid])
    count = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    slow = [item for item in items if item.nodeid.startswith(SLOW)]
    quick = [item for item in items if not item.nodeid.startswith(SLOW)]
    size = -(-len(items) // count)
    dealt: list[pytest.Item] = []
    for number in range(count):
        first = slow[number::count]
        room = max(0, size - len(first))
        dealt += [*first, *quick[:room]]
        del quick[:room]
    items[:] = [*dealt, *quick]


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Take what is there before the first test out of garbage collection.

    The collected tests alone are more than a hundred thousand objects that stay to the end. Each full collection would look
    at all of them, and would take most of a second in a test that has nothing to do with it.
    """
    gc.disable()  # nothing becomes garbage meanwhile
    try:
        return (yield)
    finally:
        gc.collect()
        gc.freeze()
        gc.set_threshold(20_000, 20, 20)  # each host that a test loads makes some ten thousand objects
        gc.enable()


@pytest.fixture(scope="session", autouse=True)
def done_once() -> Iterator[None]:
    """What each host does anew is done once."""
    with ExitStack() as stack:
        for shared in sharing.EACH:
            stack.enter_context(shared())
        yield


@pytest.fixture(scope="session")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that the processes of a test run share, for environments that pip makes once a run."""
    base = tmp_path_factory.getbasetemp()
    return (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "environments"


@pytest.fixture(scope="session")
def anyio_backend() -> tuple[str, dict[str, bool]]:
    """Async tests run on asyncio, or on uvloop where the environment asks for it."""
    return "asyncio", {"use_uvloop": os.environ.get("FLOWACTIONS_TEST_LOOP") == "uvloop"}


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[str]:
    """The URL of a real PostgreSQL: the one named by the environment, or one of this run's own."""
    given = os.environ.get("FLOWACTIONS_TEST_POSTGRES_URL")
    if given:
        yield given
        _administrator(given).close()
        return
    # In memory where there is room: a new database is a thousand files.
    with own_postgresql(reaper.memory_folder()) as server:
        url = server.get_uri()
        _trust_the_disk(url)
        yield url
        _administrator(url).close()


def _trust_the_disk(url: str) -> None:
    """Have the server wait for no disk, and keep little of its log: data need outlive killed processes only."""
    for setting in ("fsync = off", "full_page_writes = off", "max_wal_size = '256MB'"):
        _administrator(url).execute(f"ALTER SYSTEM SET {setting}")
    _administrator(url).execute("SELECT pg_reload_conf()")


class _Administrator:
    """One connection to a server, for all databases that a run makes and drops: with one each, that takes twice as long."""

    def __init__(self, url: str) -> None:
        self._url = make_url(url).set(drivername="postgresql").render_as_string(hide_password=False)
        # Its event loop is not the thread's current one, which tests may ask for.
        self._runner = asyncio.Runner(loop_factory=asyncio.new_event_loop)
        self._connection: asyncpg.Connection | None = None

    def execute(self, statement: str) -> None:
        self._runner.run(self._execute(statement))

    async def _execute(self, statement: str) -> None:
        if self._connection is None:
            self._connection = await asyncpg.connect(self._url)
        await self._connection.execute(statement)

    def close(self) -> None:
        if self._connection is not None:
            self._runner.run(self._connection.close())
        self._runner.close()


_administrator = cache(_Administrator)


async def _make_tables(url: str) -> None:
    await Database(read_settings({"FLOWACTIONS_DATABASE_URL": url}).database_url).migrate()


@contextmanager
def _a_postgresql_database(server: str, template: str = "template1") -> Iterator[str]:
    """Make a database, and drop it at the end, whoever is still connected."""
    name = f"flowactions_{uuid4().hex}"
    made = f'CREATE DATABASE "{name}" TEMPLATE "{template}"'
    if "FLOWACTIONS_TEST_POSTGRES_URL" not in os.environ:
        made += " STRATEGY FILE_COPY"  # where nothing waits for the disk, a fifth of the time of WAL_LOG
    _administrator(server).execute(made)
    yield make_url(server).set(drivername="postgresql", database=name).render_as_string(hide_password=False)
    _administrator(server).execute(f'DROP DATABASE IF EXISTS "{name}" WITH (FORCE)')


@pytest.fixture(scope="session")
def postgres_tables(postgres_server: str) -> Iterator[str]:
    """The name of a PostgreSQL database with the tables, to be copied."""
    with _a_postgresql_database(postgres_server) as url:
        asyncio.run(_make_tables(url))
        yield str(make_url(url).database)


@pytest.fixture(scope="session")
def sqlite_tables(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The file of a SQLite database with the tables, to be copied."""
    path = tmp_path_factory.mktemp("tables") / "tables.db"
    asyncio.run(_make_tables(f"sqlite:///{path}"))
    assert not path.with_name("tables.db-wal").exists()
    return path


@pytest.fixture
def postgres_url(request: pytest.FixtureRequest, postgres_server: str) -> Iterator[str]:
    """The URL of a new PostgreSQL database without rows, and where `EMPTY` says so without tables."""
    empty = request.node.nodeid.startswith(EMPTY)
    template = "template1" if empty else request.getfixturevalue("postgres_tables")
    with _a_postgresql_database(postgres_server, template) as url:
        yield url


@pytest.fixture
def sqlite_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The URL of a new SQLite database without rows, and where `EMPTY` says so without tables."""
    path = tmp_path / "flowactions.db"
    if not request.node.nodeid.startswith(EMPTY):
        shutil.copyfile(request.getfixturevalue("sqlite_tables"), path)
    return f"sqlite:///{path}"


@pytest.fixture(params=["sqlite", "postgresql"])
def database_url(request: pytest.FixtureRequest) -> str:
    """The URL of a new database as of `sqlite_url` and `postgres_url`, on each of the two engines."""
    return str(request.getfixturevalue("sqlite_url" if request.param == "sqlite" else "postgres_url"))


@pytest.fixture
async def queue(database_url: str) -> AsyncIterator[Queue]:
    """An outbox in a new database, on each of the two engines."""
    async with Database(read_settings({"FLOWACTIONS_DATABASE_URL": database_url}).database_url) as database:
        yield Queue(database)


@pytest.fixture(
    params=[
        "disk full",
        "refused",
        *(
            pytest.param(each, marks=pytest.mark.ci)
            for each in ("read-only file", "locked", "read-only server")
        ),
    ]
)
def outage(request: pytest.FixtureRequest, tmp_path: Path) -> Outage:
    """A way of taking a new database away and giving it back."""
    if request.param in {"refused", "read-only server"}:
        return Outage(request.getfixturevalue("postgres_url"), request.param)
    return Outage(f"sqlite:///{tmp_path / 'f.db'}", request.param)
