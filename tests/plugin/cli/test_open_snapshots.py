"""What keeps PostgreSQL from removing old versions of rows, other than a process of the same server: on a server of its own."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from flowactions_plugin.settings.model import read_settings
from flowactions_plugin.storage import postgresql
from flowactions_plugin.storage.database import Database
from tests.own_server import own_postgresql, pg, pg_ctl
from tests.waiting import until

pytestmark = pytest.mark.ci


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Run a server that allows prepared transactions; little is enough to be named."""
    monkeypatch.setattr(postgresql, "OPEN_SECONDS", 0)
    monkeypatch.setattr(postgresql, "OPEN_TRANSACTIONS", 5)
    with own_postgresql() as running:
        with (running.pgdata / "postgresql.auto.conf").open("a") as settings:
            settings.write("max_prepared_transactions = 2\nfsync = off\n")
        pg_ctl(running, "restart")
        yield running


async def said(server: Any) -> str:
    settings = read_settings({"FLOWACTIONS_DATABASE_URL": server.get_uri()})
    async with Database(settings.database_url) as database, database.read() as connection:
        found = await connection.run_sync(database.oldest_snapshot)
    return "" if found is None else found.holder


async def connected(host: Path | str) -> asyncpg.Connection[Any]:
    return await asyncpg.connect(host=str(host), user="postgres", database="postgres")


async def test_a_prepared_transaction_is_named(server: Any) -> None:
    """By its name and owner, until it ends."""
    connection = await connected(server.pgdata)
    try:
        await connection.execute("CREATE TABLE something (n int)")
        await connection.execute("BEGIN; INSERT INTO something VALUES (1); PREPARE TRANSACTION 'order 7'")
        assert await said(server) == "prepared transaction order 7 (postgres)"
        await connection.execute("ROLLBACK PREPARED 'order 7'")
        assert not await said(server)
    finally:
        await connection.close()


async def test_a_replication_slot_is_named_that_a_query_of_a_standby_holds(server: Any) -> None:
    """A real standby that reports its oldest query: the slot keeps what that query may read."""
    primary = await connected(server.pgdata)
    with tempfile.TemporaryDirectory(prefix="flowactions-pg-", ignore_cleanup_errors=True) as folder:
        # Where root runs the tests, servers run as another user.
        Path(folder).chmod(0o777)
        standby = Path(folder) / "standby"
        copy = ("-h", str(server.pgdata), "-U", "postgres", "-D", str(standby), "-R", "-C", "-S", "reports")
        await asyncio.to_thread(pg, server, "pg_basebackup", *copy, "--checkpoint=fast")
        with (standby / "postgresql.auto.conf").open("a") as settings:
            settings.write("hot_standby_feedback = on\nwal_receiver_status_interval = 1\n")
        options = f"-c listen_addresses='' -c unix_socket_directories='{folder}'"
        control = ("-w", "-D", str(standby), "-l", str(standby / "log"))
        await asyncio.to_thread(pg, server, "pg_ctl", *control, "-o", options, "start")
        try:
            reader = await connected(folder)
            await reader.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
            await reader.execute("SELECT 1")

            async def is_reported() -> bool:
                return bool(await primary.fetchval("SELECT xmin IS NOT NULL FROM pg_replication_slots"))

            await until(is_reported)
            for _ in range(6):
                await primary.execute("SELECT pg_current_xact_id()")
            assert await said(server) == "replication slot reports"
            await reader.close()
        finally:
            await asyncio.to_thread(pg, server, "pg_ctl", *control, "-m", "immediate", "stop")
    await primary.execute("SELECT pg_drop_replication_slot('reports')")
    assert not await said(server)
    await primary.close()
