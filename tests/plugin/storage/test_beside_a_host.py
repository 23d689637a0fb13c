"""A host's own tools for tables work beside the plugin, in the same database."""

from __future__ import annotations

import asyncio
import re
import subprocess
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from sqlalchemy import Column, Connection, MetaData, Table, Text, event, inspect, select, text
from sqlalchemy.engine import make_url
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, create_async_engine
from sqlalchemy.pool import AssertionPool, Pool, StaticPool

from flowactions_hookspecs import FlowActions, HostInvalid, Node, StartFailed
from flowactions_plugin.errors import StorageUnavailable
from flowactions_plugin.storage.database import Database
from flowactions_plugin.storage.schema import metadata
from tests.commanding import command
from tests.outages import a_database, a_role, execute, parsed
from tests.support import SmallHost, a_walk, development, services_of

GUIDE = Path(__file__).parents[3] / "docs/how-to/add-to-your-host.md"

NODE = Node(id="n", type="webhook", config={"webhookUrl": "http://127.0.0.1:1/"})

MEMBERS = Table("members", MetaData(), Column("name", Text))

MODELS = """
from sqlalchemy import MetaData, Table, Column, Integer, String
{guide}
target_metadata = MetaData()
Table("orders", target_metadata, Column("id", Integer, primary_key=True), Column("name", String(50), index=True))
"""


async def fill(engine: AsyncEngine) -> None:
    """Start a host that shares its engine, and enqueue a webhook."""
    host = SmallHost(development("sqlite:///never.db"), database=engine)
    async with (actions := FlowActions.load(host)).lifespan(tasks=False):
        assert (await actions.reach(a_walk(), NODE)).status == "queued"


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
    engine = create_async_engine(parsed(database_url))
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
    engine = create_async_engine(parsed(database_url))

    def all_of(call: str) -> object:
        return getattr(models, call)

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
    engine = create_async_engine(parsed(database_url))
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


MEANS = ("role", "arguments", "connect", "checkout", "begin", "map")


async def an_engine(url: str, means: str, path: str) -> AsyncEngine:
    """Make an engine as hosts with a schema for each tenant do."""
    if means == "map":
        schema = path.partition(",")[0]
        return create_async_engine(parsed(url)).execution_options(schema_translate_map={None: schema})
    if means == "role":
        made = make_url(parsed(url))
        await execute(url, f'ALTER ROLE CURRENT_USER IN DATABASE "{made.database}" SET search_path TO {path}')
    server = {"server_settings": {"search_path": path}} if means == "arguments" else {}
    engine = create_async_engine(parsed(url), connect_args=server)
    if means in {"connect", "checkout"}:

        def set_path(connection: Any, *_: object) -> None:
            connection.cursor().execute(f"SET search_path TO {path}")
            connection.commit()

        event.listen(engine.sync_engine, means, set_path)
    if means == "begin":
        event.listen(
            engine.sync_engine, means, lambda it: it.exec_driver_sql(f"SET LOCAL search_path TO {path}")
        )
    return engine


@pytest.mark.parametrize("means", MEANS)
async def test_a_schema_for_each_tenant_is_the_hosts_own_business(postgres_url: str, means: str) -> None:
    """By whatever means a host finds its tables, the plugin's are found in the schema that all tenants share."""
    await a_database(postgres_url).migrate()
    await execute(postgres_url, "CREATE SCHEMA tenant_a", "CREATE TABLE tenant_a.members (name TEXT)")
    engine = await an_engine(postgres_url, means, "tenant_a, public")
    host = SmallHost(development("sqlite:///never.db"), database=engine)
    async with (actions := FlowActions.load(host)).lifespan():
        assert (await actions.reach(a_walk(run_id="alone"), NODE)).status == "queued"
        async with engine.begin() as transaction:
            await transaction.execute(MEMBERS.insert().values(name="joined"))
            assert (await actions.reach(a_walk(run_id="joined"), NODE, transaction)).status == "queued"
            await transaction.execute(MEMBERS.insert().values(name="after"))
        database = services_of(host)._database
        async with (
            engine.begin() as transaction,
            database.write(transaction) as joined,
            database.transactions.lent(joined) as given,  # as the `write` of a plugin gets it
        ):
            assert len((await given.execute(select(metadata.tables["flowactions_outbox"]))).all()) == 2
        async with database.write(as_host=True) as transaction, database.transactions.lent(transaction):
            await transaction.execute(MEMBERS.insert().values(name="lent"))
            assert (await actions.reach(a_walk(run_id="lent"), NODE, transaction)).status == "queued"
            await transaction.execute(MEMBERS.insert().values(name="lent after"))
    async with engine.connect() as connection:
        rows = await connection.exec_driver_sql("SELECT count(*) FROM public.flowactions_outbox")
        assert rows.scalar_one() == 3
        names = await connection.exec_driver_sql("SELECT name FROM tenant_a.members")
        assert list(names.scalars()) == ["joined", "after", "lent", "lent after"]
    await engine.dispose()


HALTED = "INSERT INTO flowactions_halted_runs VALUES ('acme', '{}', 'f', 1)"


def halt(database: Database, number: str, *, several: bool = False) -> Awaitable[Any]:
    """Write a row."""
    statement = text(HALTED.format(number))
    return database.in_transaction(lambda connection: connection.execute(statement), several=several)


OWN: dict[str, Callable[[Database], Awaitable[Any]]] = {
    "statements at once": lambda database: asyncio.gather(*(halt(database, number) for number in "12345")),
    "query": lambda database: database.rows(select(metadata.tables["flowactions_outbox"])),
    "transaction": lambda database: halt(database, "1", several=True),
    "read": lambda database: database.prune(metadata.tables["flowactions_halted_runs"].c.halted_at, 0, 9),
}


@pytest.mark.parametrize("name", OWN)
async def test_a_connection_that_comes_back_with_another_search_path_loses_nothing(
    postgres_url: str, name: str
) -> None:
    """What the plugin does itself finds its tables, also the first time; the host finds its connection as it was."""
    await a_database(postgres_url).migrate()
    await execute(postgres_url, "CREATE SCHEMA tenant_a", HALTED.format("0"))
    engine = create_async_engine(parsed(postgres_url), pool_size=1, max_overflow=0)
    async with Database("sqlite+aiosqlite:///never.db", engine=engine) as database:
        await database.rows(text("SELECT 1"))  # type: ignore[arg-type]
        async with engine.connect() as connection:
            await connection.exec_driver_sql("SET search_path TO tenant_a")
            await connection.commit()
        await OWN[name](database)
        async with engine.connect() as connection:
            assert (await connection.exec_driver_sql("SHOW search_path")).scalar_one() == "tenant_a"
            found = await connection.exec_driver_sql("SELECT count(*) FROM public.flowactions_halted_runs")
            assert (
                found.scalar_one() == {"statements at once": 6, "transaction": 2, "query": 1, "read": 0}[name]
            )
        await OWN["query"](database)
    await engine.dispose()


@pytest.mark.parametrize("means", ["role", "begin"])
async def test_an_error_about_missing_tables_names_the_schemas_that_were_searched(
    postgres_url: str, means: str
) -> None:
    """For a transaction of the plugin's own, and for one of the host's, which stays usable."""
    await a_database(postgres_url).migrate()
    await execute(postgres_url, "CREATE SCHEMA tenant_a")
    engine = create_async_engine(parsed(postgres_url))
    async with Database("sqlite+aiosqlite:///never.db", engine=engine) as database:
        await engine.dispose()
        database._engines.current = astray = await an_engine(postgres_url, means, "tenant_a")
        database._engines.shared = astray

        async def look(transaction: AsyncConnection | None) -> None:
            async with database.read(transaction) as connection:
                await connection.execute(text("SELECT 1 FROM flowactions_outbox"))

        searched = "search_path was tenant_a; run 'flowactions migrate', or have search_path name"
        with pytest.raises(StorageUnavailable, match=searched):
            await look(None)
        async with astray.begin() as transaction:
            with pytest.raises(StorageUnavailable, match=searched):
                await look(transaction)
            assert (await transaction.execute(text("SELECT 1"))).scalar_one() == 1
        await astray.dispose()


@pytest.mark.parametrize(
    ("path", "said"),
    [
        ("nowhere", "search_path was nowhere; have search_path name a schema that exists"),
        (
            "tenant_a",
            "permission denied for schema tenant_a; search_path was tenant_a; run 'flowactions migrate' as a role",
        ),
    ],
)
async def test_a_start_that_cannot_make_the_tables_names_the_schemas(
    postgres_url: str, path: str, said: str
) -> None:
    """A schema that is not there, and one in which the host's role may make nothing."""
    await execute(postgres_url, "CREATE SCHEMA tenant_a")
    async with a_role(postgres_url, "USAGE ON SCHEMA tenant_a") as url:
        engine = create_async_engine(parsed(url), connect_args={"server_settings": {"search_path": path}})
        with pytest.raises(StartFailed, match=said):
            await fill(engine)
        with pytest.raises(StorageUnavailable, match=path):
            await a_database("sqlite:///never.db", engine=engine).migrate()
        await engine.dispose()


@pytest.mark.parametrize("encoding", ["LATIN1", "SQL_ASCII"])
@pytest.mark.parametrize("shared", [False, True])
async def test_a_database_that_cannot_store_all_characters_is_refused(
    postgres_url: str, encoding: str, shared: bool, tmp_path: Path
) -> None:
    """At start, by migrate and by doctor, with the reason; and nothing was made in it."""
    name = f"flowactions_{uuid4().hex}"
    await execute(postgres_url, f"CREATE DATABASE {name} ENCODING '{encoding}' LOCALE 'C' TEMPLATE template0")
    url = make_url(postgres_url).set(database=name).render_as_string(hide_password=False)
    engine = create_async_engine(parsed(url)) if shared else None
    said = f"the database is in {encoding}, which cannot store every character: use one .* ENCODING 'UTF8'"
    try:
        with pytest.raises(StartFailed, match=said):
            async with FlowActions.load(SmallHost(development(url), database=engine)).lifespan():
                pass
        with pytest.raises(StorageUnavailable, match=said):
            await a_database(url, engine=engine).migrate()
        if not shared:
            asked = await command("doctor", cwd=tmp_path, FLOWACTIONS_DATABASE_URL=url)
            assert "which cannot store every character" in asked.out
            assert "host, user and password" not in asked.out + asked.err
    finally:
        if engine is not None:
            await engine.dispose()
        await execute(postgres_url, f"DROP DATABASE {name} WITH (FORCE)")


async def test_tables_that_are_gone_are_looked_for_in_the_schemas_of_the_url(postgres_url: str) -> None:
    """The plugin's own engine says so, too, for a statement by itself and for a transaction."""
    await execute(postgres_url, "CREATE SCHEMA tenant_a")
    given = make_url(postgres_url).update_query_dict({"options": "-csearch_path=tenant_a"})
    query = select(text("1")).select_from(text("flowactions_outbox"))
    async with a_database(given.render_as_string(hide_password=False)) as database:
        assert await database.rows(query) == []
        await execute(postgres_url, "DROP SCHEMA tenant_a CASCADE")
        for work in (
            database.rows(query),
            database.prune(metadata.tables["flowactions_outbox"].c.created_at, 1, 1),
        ):
            with pytest.raises(
                StorageUnavailable, match="search_path was tenant_a; run 'flowactions migrate', or"
            ):
                await work
