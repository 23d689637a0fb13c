"""A host's own tools for tables work beside the plugin, in the same database."""

from __future__ import annotations

import asyncio
import re
import subprocess
import sys
from pathlib import Path

import pytest
from sqlalchemy import Connection, inspect, text
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine
from sqlalchemy.pool import AssertionPool, Pool, StaticPool

from flowactions_hookspecs import FlowActions, HostInvalid, Node
from flowactions_plugin.settings.model import read_settings
from flowactions_plugin.storage.schema import metadata
from tests.support import SmallHost, a_walk, development

GUIDE = Path(__file__).parents[3] / "docs/how-to/add-to-your-host.md"

MODELS = """
from sqlalchemy import MetaData, Table, Column, Integer, String
{guide}
target_metadata = MetaData()
Table("orders", target_metadata, Column("id", Integer, primary_key=True), Column("name", String(50), index=True))
"""


def url_of(database_url: str) -> str:
    return read_settings({"FLOWACTIONS_DATABASE_URL": database_url}).database_url


async def fill(engine: AsyncEngine) -> None:
    """Start a host that shares its engine, and enqueue a webhook."""
    host = SmallHost(development("sqlite:///never.db"), database=engine)
    async with (actions := FlowActions.load(host)).lifespan(tasks=False):
        node = Node(id="n", type="webhook", config={"webhookUrl": "http://127.0.0.1:1/"})
        assert (await actions.reach(a_walk(), node)).status == "queued"


async def rows_and_tables(engine: AsyncEngine) -> tuple[int, set[str]]:
    async with engine.connect() as connection:
        rows = (await connection.execute(text("SELECT count(*) FROM flowactions_outbox"))).scalar_one()
        return rows, set(await connection.run_sync(lambda opened: inspect(opened).get_table_names()))


def an_environment(folder: Path, url: str, guide: str) -> None:
    """Make what Alembic's own template makes, with the host's models and the lines of the guide."""
    alembic(folder, "init", "-t", "async", "migrations")
    settings = folder / "alembic.ini"
    url = url.replace("%", "%%")
    settings.write_text(
        re.sub(r"(?m)^sqlalchemy\.url = .*", lambda _: f"sqlalchemy.url = {url}", settings.read_text())
    )
    env = folder / "migrations/env.py"
    models = MODELS.format(guide=guide)
    made = env.read_text().replace("target_metadata = None", models)
    if guide:
        made = made.replace(
            "target_metadata=target_metadata", "target_metadata=target_metadata, include_name=include_name"
        )
    env.write_text(made)


def alembic(folder: Path, *arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "alembic", *arguments],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def the_guides_lines() -> str:
    found = re.search(r"```python\n(def include_name.*?)```", GUIDE.read_text(), re.DOTALL)
    assert found is not None
    return found[1]


@pytest.mark.ci
async def test_a_hosts_own_alembic_leaves_the_plugins_tables_alone(database_url: str, tmp_path: Path) -> None:
    """With the lines of the guide in the file that Alembic's template makes: autogenerate, upgrade, check, downgrade."""
    engine = create_async_engine(url_of(database_url))
    await fill(engine)
    given = engine.url.render_as_string(hide_password=False)

    def work() -> str:
        an_environment(tmp_path, given, the_guides_lines())
        alembic(tmp_path, "revision", "--autogenerate", "-m", "orders")
        (revision,) = (tmp_path / "migrations/versions").glob("*.py")
        alembic(tmp_path, "upgrade", "head")
        alembic(tmp_path, "check")
        return revision.read_text()

    made = await asyncio.to_thread(work)
    assert "create_table('orders'" in made
    assert "flowactions" not in made
    rows, tables = await rows_and_tables(engine)
    assert rows == 1
    assert {"orders", "alembic_version"} < tables
    await asyncio.to_thread(alembic, tmp_path, "downgrade", "base")
    rows, tables = await rows_and_tables(engine)
    assert rows == 1
    assert "orders" not in tables
    await fill(engine)
    await engine.dispose()


async def test_a_hosts_create_all_and_drop_all_leave_the_plugins_tables_alone(database_url: str) -> None:
    """Before the plugin has started, and after: they know the host's own tables only."""
    given: dict[str, object] = {}
    exec(MODELS.format(guide=""), given)  # noqa: S102  the models of the test above
    models = given["target_metadata"]
    engine = create_async_engine(url_of(database_url))

    def all_of(call: str) -> object:
        return lambda connection: getattr(models, call)(connection)

    for call in ("create_all", "drop_all", "create_all", "drop_all"):
        async with engine.begin() as connection:
            await connection.run_sync(all_of(call))  # type: ignore[arg-type]
        if call == "create_all":
            await fill(engine)
    rows, tables = await rows_and_tables(engine)
    assert rows == 2
    assert set(metadata.tables) < tables
    assert "orders" not in tables
    await engine.dispose()


async def test_every_table_of_the_plugin_has_its_prefix(database_url: str) -> None:
    """So a host's tools can leave them out by name, the version table too."""
    engine = create_async_engine(url_of(database_url))
    await fill(engine)
    assert all(name.startswith("flowactions_") for name in (await rows_and_tables(engine))[1])

    def sequences(connection: Connection) -> list[str]:
        return inspect(connection).get_sequence_names() if connection.dialect.supports_sequences else []

    async with engine.connect() as connection:
        assert all(name.startswith("flowactions_") for name in await connection.run_sync(sequences))
    await engine.dispose()


@pytest.mark.parametrize("pool", [StaticPool, AssertionPool])
def test_a_pool_with_one_connection_for_all_is_refused(tmp_path: Path, pool: type[Pool]) -> None:
    """Two callers would share a transaction: the error says what to do instead."""
    engine = create_async_engine(f"sqlite+aiosqlite:///{tmp_path / 'f.db'}", poolclass=pool)
    with pytest.raises(HostInvalid, match=rf"Host\.database has a {pool.__name__}, .* without poolclass"):
        FlowActions.load(SmallHost(development("sqlite:///never.db"), database=engine))
