"""DBOS as a host's engine, in an environment of its own: what is special about it."""

from __future__ import annotations

import asyncio
from pathlib import Path
from secrets import token_hex

import asyncpg
import pytest
from sqlalchemy.engine import make_url

from tests.conformance.engines import python_of, run


@pytest.mark.ci
async def test_it_starts_beside_transactions_of_its_event_loop(
    store: Path, tmp_path: Path, postgres_server: str
) -> None:
    """DBOS's migrations wait for transactions in the database, and must not keep the event loop from them."""
    server = make_url(postgres_server).set(drivername="postgresql", database=f"dbos_{token_hex(6)}")
    connection = await asyncpg.connect(postgres_server)
    await connection.execute(f"CREATE DATABASE {server.database}")
    try:
        place = server.render_as_string(hide_password=False)
        module = "tests.conformance.hosts.dbos.started"
        done = await asyncio.to_thread(run, python_of("dbos", store), module, place, within=tmp_path)
    finally:
        await connection.execute(f"DROP DATABASE {server.database} WITH (FORCE)")
        await connection.close()
    assert done.returncode == 0, done.stderr
    assert done.stdout == "started\n"
