"""Behind PgBouncer in transaction mode, which gives each transaction another connection of the server's."""

from __future__ import annotations

import asyncio
import os
import pwd
import shutil
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import text
from sqlalchemy.engine import make_url

from flowactions_hookspecs import FlowActions, Node
from flowactions_plugin.errors import StorageUnavailable
from tests.commanding import command
from tests.loopback import held_port
from tests.outages import a_database
from tests.support import SmallHost, a_walk, development
from tests.waiting import until

OPTIONS = {"prepared_statement_cache_size": "0", "statement_cache_size": "0"}

ADVISED = "prepared_statement_cache_size=0&statement_cache_size=0 in FLOWACTIONS_DATABASE_URL"

CONFIGURATION = """
[databases]
* = host={host} port={port} user={user}
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = {own}
auth_type = any
pool_mode = transaction
default_pool_size = 4
unix_socket_dir =
"""


def pgbouncer_program() -> str:
    """Return the path of PgBouncer; the test is skipped where it is missing, but not in CI."""
    found = shutil.which("pgbouncer", path=f"{os.environ['PATH']}:/usr/sbin")
    if found is None:
        assert os.environ.get("CI") != "true", "in CI this must run: install pgbouncer"
        pytest.skip("there is no PgBouncer on this machine")
    return found


@asynccontextmanager
async def pooled(url: str) -> AsyncIterator[str]:
    """Run a pooler before a server; give the URL through it."""
    program, server = pgbouncer_program(), make_url(url)
    host = str(server.query.get("host") or server.host)
    user = None
    if os.getuid() == 0:  # it does not run as root; whoever runs the server may enter the folder of its socket
        user = Path(host).stat().st_uid if host.startswith("/") else pwd.getpwnam("nobody").pw_uid
    with held_port() as port, tempfile.NamedTemporaryFile("w", dir="/tmp", suffix=".ini") as settings:
        settings.write(
            CONFIGURATION.format(host=host, port=server.port or 5432, user=server.username, own=port)
        )
        settings.flush()
        os.chmod(settings.name, 0o644)  # noqa: PTH101
        process = await asyncio.create_subprocess_exec(program, "-q", settings.name, user=user)

        async def answers() -> bool:
            assert process.returncode is None
            try:
                _, writer = await asyncio.open_connection("127.0.0.1", port)
            except OSError:
                return False
            writer.close()
            return True

        try:
            await until(answers)
            through = server.set(host="127.0.0.1", port=port, query={})
            yield through.render_as_string(hide_password=False)
        finally:
            if process.returncode is None:
                process.terminate()
                await process.wait()


@pytest.mark.ci
@pytest.mark.parametrize("delivery", ["continuous", "scheduled"])
async def test_with_the_options_of_the_page_nothing_is_lost(
    postgres_url: str, delivery: str, tmp_path: Path
) -> None:
    """Sixty nodes at once are queued, beside a worker, and doctor has nothing to say."""
    async with pooled(postgres_url) as through:
        url = make_url(through).update_query_dict(OPTIONS).render_as_string(hide_password=False)
        host = SmallHost(development(url, FLOWACTIONS_DELIVERY=delivery))
        node = Node(id="n", type="webhook", config={"webhookUrl": "http://127.0.0.1:1/"})
        async with (actions := FlowActions.load(host)).lifespan():
            walks = [a_walk(run_id=str(number)) for number in range(60)]
            results = await asyncio.gather(*(actions.reach(walk, node) for walk in walks))
            assert {result.status for result in results} == {"queued"}
        asked = await command("doctor", cwd=tmp_path, FLOWACTIONS_DATABASE_URL=url)
        assert "pooler" not in asked.out


@pytest.mark.ci
async def test_doctor_names_the_options_that_are_missing(postgres_url: str, tmp_path: Path) -> None:
    """Whether the server's connections meet or not."""
    await a_database(postgres_url).migrate()
    async with pooled(postgres_url) as through:
        asked = await command("doctor", cwd=tmp_path, FLOWACTIONS_DATABASE_URL=through)
        assert asked.code == 1
        assert ADVISED in asked.out
        assert "You have two options" not in asked.out  # the driver's


@pytest.mark.parametrize(
    ("code", "statement"), [("26000", "DEALLOCATE ALL"), ("42P05", "PREPARE one AS SELECT 1")]
)
async def test_an_error_about_a_prepared_statement_names_the_options(
    postgres_url: str, code: str, statement: str
) -> None:
    """In place of the driver's own advice, which is for programs, and of that about missing tables."""
    async with a_database(postgres_url) as database:

        async def ask() -> None:
            async with database.read() as connection:
                for _ in range(2):
                    await connection.execute(text("SELECT 1"))
                    driver: Any = (await connection.get_raw_connection()).driver_connection
                    await driver.execute(statement)

        with pytest.raises(StorageUnavailable, match=f"needs {ADVISED}, or both in the host's engine$") as told:
            await ask()
        assert told.value.code == code
        assert "HINT" not in str(told.value)
