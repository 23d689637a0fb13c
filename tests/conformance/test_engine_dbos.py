"""DBOS as a host's engine, in an environment of its own: what is special about it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from secrets import token_hex

import asyncpg
import pytest
from sqlalchemy.engine import make_url

from tests.conformance.engines import python_of, run

HOST = "tests.conformance.hosts.dbos"


@pytest.fixture(scope="module")
def python(store: Path) -> Path:
    """The Python of an environment with DBOS."""
    return python_of("dbos", store)


@contextmanager
def a_database(request: pytest.FixtureRequest) -> Iterator[str]:
    """Have a new database of the PostgreSQL server."""
    server = make_url(request.getfixturevalue("postgres_server")).set(drivername="postgresql")
    name = f"dbos_{token_hex(6)}"

    async def execute(statement: str) -> None:
        connection = await asyncpg.connect(server.render_as_string(hide_password=False))
        try:
            await connection.execute(statement)
        finally:
            await connection.close()

    asyncio.run(execute(f"CREATE DATABASE {name}"))
    try:
        yield server.set(database=name).render_as_string(hide_password=False)
    finally:
        asyncio.run(execute(f"DROP DATABASE {name} WITH (FORCE)"))


@pytest.mark.ci
def test_kills_within_transactions_lose_nothing_and_repeat_nothing(python: Path, tmp_path: Path) -> None:
    """Each workflow has one row of the host's and one in the outbox, wherever its process was killed."""
    workflows, kills = 24, 3
    done = run(python, f"{HOST}.killed", str(tmp_path), str(workflows), str(kills), within=tmp_path)
    assert done.returncode == 0, done.stderr
    counted = json.loads(done.stdout)
    each = kills // 3
    assert counted.pop("killed") == {
        "before the node": each,
        "before the commit": each,
        "behind the commit": each,
    }
    assert counted == {name: [workflows, workflows] for name in ("orders", "bodies", "events")}


@pytest.mark.ci
def test_it_starts_beside_transactions_of_its_event_loop(
    python: Path, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """DBOS's migrations wait for transactions in the database, and must not keep the event loop from them."""
    with a_database(request) as place:
        done = run(python, f"{HOST}.started", place, within=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "started\n"
