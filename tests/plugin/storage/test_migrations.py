from __future__ import annotations

import asyncio
import logging
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, TextClause, insert, inspect, select, text
from sqlalchemy.ext.asyncio import create_async_engine

from flowactions_hookspecs import Deferred, FlowActions, Node, StartFailed
from flowactions_plugin.cli.context import opened_database
from flowactions_plugin.errors import SchemaOutdated
from flowactions_plugin.storage import migrations, schema
from flowactions_plugin.storage.schema import metadata
from tests.outages import a_database, execute, parsed
from tests.recorder import recorder
from tests.support import SmallHost, a_walk, development, transport_of
from tests.waiting import until


@asynccontextmanager
async def connected(database_url: str) -> AsyncIterator[Any]:
    engine = create_async_engine(parsed(database_url))
    try:
        async with engine.begin() as connection:
            yield connection
    finally:
        await engine.dispose()


def tables(connection: Connection) -> dict[str, Any]:
    """Give what the database says of each of our tables: its columns and its key; the version table left out."""
    inspector = inspect(connection)
    return {
        name: (
            [
                (each["name"], str(each["type"]), each["nullable"], each["default"])
                for each in inspector.get_columns(name)
            ],
            inspector.get_pk_constraint(name)["constrained_columns"],
        )
        for name in inspector.get_table_names()
        if name.startswith("flowactions_") and name != migrations.VERSION_TABLE
    }


async def pretend(database_url: str, revision: str) -> None:
    await execute(database_url, f"UPDATE {migrations.VERSION_TABLE} SET version_num = '{revision}'")  # noqa: S608


async def test_the_revisions_create_the_tables_that_statements_use(database_url: str) -> None:
    """Columns in their order, with types, nullability, defaults and keys."""
    await a_database(database_url).migrate()
    async with connected(database_url) as connection:
        by_revisions = await connection.run_sync(tables)
        await connection.run_sync(metadata.drop_all)
        await connection.run_sync(metadata.create_all)
        assert by_revisions == await connection.run_sync(tables)
    assert by_revisions.keys() == metadata.tables.keys()


def test_conditions_of_statements_are_those_of_indexes() -> None:
    """A database uses an index of some rows only for statements with its condition."""
    written = " ".join("".join(each.read_text() for each in migrations.FOLDER.glob("versions/*.py")).split())
    conditions = [each.text for each in vars(schema).values() if isinstance(each, TextClause)]
    assert len(conditions) > 5
    assert [each for each in conditions if f"WHERE {each}" not in written] == []


def test_the_revisions_are_known_without_alembic() -> None:
    """Their files are named after them, in the order in which they follow each other."""
    scripts = ScriptDirectory(str(migrations.FOLDER))
    assert list(migrations.revisions()) == [script.revision for script in scripts.walk_revisions()][::-1]
    assert scripts.get_heads() == [migrations.head()]


@pytest.mark.parametrize("revision", ["no tables", "no row", "0009", "9999"])
async def test_the_revision_of_the_tables_is_read_as_alembic_reads_it(database_url: str, revision: str) -> None:
    """Also where there are no tables yet, and where a later release has changed them."""
    if revision != "no tables":
        await a_database(database_url).migrate()
        await pretend(database_url, revision)
    async with connected(database_url) as connection:
        if revision == "no row":
            await connection.execute(text(f"DELETE FROM {migrations.VERSION_TABLE}"))  # noqa: S608

        def by_alembic(connection: Connection) -> str | None:
            context = MigrationContext.configure(connection, opts={"version_table": migrations.VERSION_TABLE})
            return context.get_current_revision()

        read = await connection.run_sync(migrations.current)
        assert read == await connection.run_sync(by_alembic)
        assert read == (None if revision.startswith("no ") else revision)


async def test_concurrent_migrations_run_one_after_the_other(database_url: str) -> None:
    """The first one creates the tables; the others wait, and find nothing to do, as does a later one."""
    head = migrations.head()
    assert await a_database(database_url).migrate(dry=True) == (None, head)
    found = await asyncio.gather(*(a_database(database_url).migrate() for _ in range(4)))
    assert sorted(found, key=str) == [(head, head)] * 3 + [(None, head)]
    assert await a_database(database_url).migrate() == (head, head)


@pytest.mark.parametrize("threads", [False, True])
async def test_different_databases_may_be_made_at_once(tmp_path: Path, threads: bool) -> None:
    """Hosts that start together in one process, in one event loop or in several, each make the tables of their own."""

    async def make(number: int) -> None:
        async with a_database(f"sqlite:///{tmp_path / f'{number}.db'}"):
            pass

    makes = map(make, range(4))
    await asyncio.gather(*(asyncio.to_thread(asyncio.run, each) if threads else each for each in makes))
    for number in range(4):
        url = f"sqlite:///{tmp_path / f'{number}.db'}"
        assert await a_database(url).migrate(dry=True) == (migrations.head(), migrations.head())


async def test_a_failed_migration_changes_nothing(database_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """All of a migration commits or none of it, tables and version alike, on both databases."""
    upgrade = migrations.upgrade

    def fail_at_the_end(connection: Connection, revision: None) -> None:
        upgrade(connection, revision)
        raise LookupError

    with monkeypatch.context() as patched:
        patched.setattr(migrations, "upgrade", fail_at_the_end)
        with pytest.raises(LookupError):
            await a_database(database_url).migrate()
    async with connected(database_url) as connection:
        assert await connection.run_sync(tables) == {}
    assert await a_database(database_url).migrate() == (None, migrations.head())


async def test_a_host_whose_tables_are_there_waits_for_no_other_hosts_tables(
    postgres_url: str, tmp_path: Path
) -> None:
    """Only changes of tables take turns in a process: a database that stands still holds up no start but its own."""
    there = f"sqlite:///{tmp_path / 'there.db'}"
    await a_database(there).migrate()
    async with connected(postgres_url) as blocking:
        # Alembic waits for this transaction in the middle of its work.
        await blocking.execute(text("CREATE TABLE flowactions_version (version_num VARCHAR(32))"))
        upgrading = asyncio.create_task(a_database(postgres_url).migrate())
        await until(migrations._ALEMBIC.locked)
        async with asyncio.timeout(300), a_database(there):
            assert not upgrading.done()
        await blocking.rollback()
        await upgrading


@pytest.mark.parametrize("revision", ["0001", "0009", "0099"])
async def test_tables_of_a_state_before_the_first_release_are_refused(database_url: str, revision: str) -> None:
    """By the start, by commands and by migrate, on both databases: one error says to begin a new one, and nothing changes."""
    await a_database(database_url).migrate()
    await pretend(database_url, revision)
    said = f"the tables are at revision {revision}, an earlier state .*: begin a new database"
    with pytest.raises(StartFailed, match=said):
        async with FlowActions.load(SmallHost(development(database_url))).lifespan():
            pass
    for dry in (False, True):
        with pytest.raises(SchemaOutdated, match=said):
            await a_database(database_url).migrate(dry=dry)
    with pytest.raises(SchemaOutdated, match=said):
        async with opened_database(a_database(database_url)):
            pass
    async with connected(database_url) as connection:
        assert await connection.run_sync(migrations.current) == revision


SECOND = """
import sqlalchemy as sa
from alembic import op

revision, down_revision = "9999", "{first}"


def upgrade():
    op.add_column("flowactions_outbox", sa.Column("colour", sa.Text(), nullable=False, server_default="red"))
    op.execute("UPDATE flowactions_outbox SET colour = 'blue'")
"""


async def fill(database_url: str) -> None:
    """Put a row with a value in each column into each table."""
    values = {"Float": 1.5, "Integer": 1, "BigInteger": 1, "LargeBinary": b"x", "String": "x", "Text": "x"}
    async with connected(database_url) as connection:
        for table in metadata.sorted_tables:
            row = {column.name: values[type(column.type).__name__] for column in table.columns}
            for name, status in (("flowactions_outbox", "dead"), ("flowactions_chat_connections", "active")):
                row |= {"status": status} if table.name == name else {}
            await connection.execute(insert(table).values(row))


async def rows_of(database_url: str) -> dict[str, list[tuple[Any, ...]]]:
    async with connected(database_url) as connection:
        return {
            table.name: [tuple(row) for row in await connection.execute(select(table))]
            for table in metadata.sorted_tables
        }


async def test_a_second_revision_carries_filled_tables_on(
    database_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its statements run on rows in all tables, which stay; on SQLite the start runs it, on PostgreSQL the command."""
    await a_database(database_url).migrate()
    await fill(database_url)
    before, first = await rows_of(database_url), migrations.head()
    folder = tmp_path / "migrations"
    shutil.copytree(migrations.FOLDER, folder)
    (folder / "versions/9999_colours.py").write_text(SECOND.format(first=first))
    monkeypatch.setattr(migrations, "FOLDER", folder)
    migrations.revisions.cache_clear()
    try:
        if database_url.startswith("sqlite"):
            async with a_database(database_url):
                pass
        else:
            with pytest.raises(SchemaOutdated, match="run 'flowactions migrate'"):
                async with a_database(database_url):
                    pass
            with pytest.raises(StartFailed, match="run 'flowactions migrate'"):
                async with FlowActions.load(SmallHost(development(database_url))).lifespan():
                    pass
            assert await a_database(database_url).migrate() == (first, "9999")
        assert await a_database(database_url).migrate() == ("9999", "9999")
    finally:
        migrations.revisions.cache_clear()
    assert await rows_of(database_url) == before
    assert all(before.values())
    async with connected(database_url) as connection:
        assert (await connection.execute(text("SELECT colour FROM flowactions_outbox"))).scalars().all() == [
            "blue"
        ]


async def test_this_release_works_on_tables_with_one_column_more(
    database_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    """As beside processes of a later one: nodes of both kinds run, a delivery is sent, read and retried (§8)."""
    await a_database(database_url).migrate()
    async with connected(database_url) as connection:
        for name in metadata.tables:
            await connection.execute(text(f"ALTER TABLE {name} ADD COLUMN later TEXT"))
    await pretend(database_url, "9999")
    host = SmallHost(development(database_url, FLOWACTIONS_DELIVERY="continuous"))
    actions = FlowActions.load(host)
    async with recorder() as receiver, actions.lifespan():
        node = Node(id="n", type="webhook", config={"webhookUrl": receiver.url})
        assert (await actions.reach(a_walk(), node)).status == "queued"
        paced = a_walk(run_id="paced", pacing=Deferred("s"))
        assert (await actions.reach(paced, node)).status == "recorded"
        assert (await actions.advance(paced, "s")).state == "done"
        await until(lambda: len(host.finished) == 2)
        async with httpx.AsyncClient(transport=transport_of(actions), base_url="http://host") as client:
            listed = (await client.get("/v1/webhooks/outbox")).json()
            assert [each["status"] for each in listed["data"]] == ["delivered", "delivered"]
            (one, _) = listed["data"]
            assert (await client.get(f"/v1/webhooks/outbox/{one['id']}")).status_code == 200
    assert "newer than this release's" in caplog.text


@pytest.mark.parametrize(
    ("level", "shown"),
    [(logging.NOTSET, {"flowactions.storage"}), (logging.INFO, {"flowactions.storage", "alembic"})],
    ids=["by default", "asked for by the host"],
)
async def test_a_first_start_logs_one_line_of_its_own(
    level: int, shown: set[str], database_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Alembic's info lines are hidden unless the host has set a level for them; afterwards its level is as it was."""
    caplog.set_level(logging.INFO)
    logger = logging.getLogger("alembic")
    before = logger.level
    logger.setLevel(level)
    try:
        async with a_database(database_url):
            pass
        assert logger.level == level
    finally:
        logger.setLevel(before)
    names = {record.name for record in caplog.records if record.name.startswith(("alembic", "flowactions"))}
    assert {"alembic" if name.startswith("alembic.") else name for name in names} == shown
    assert f"created the tables (revision {migrations.head()})" in caplog.text
