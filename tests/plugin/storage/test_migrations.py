from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, text
from sqlalchemy.ext.asyncio import create_async_engine

from flowactions_hookspecs import FlowActions, Node, StartFailed
from flowactions_plugin.errors import SchemaOutdated
from flowactions_plugin.settings.model import read_settings
from flowactions_plugin.storage import migrations
from flowactions_plugin.storage.database import Database
from flowactions_plugin.storage.schema import metadata
from tests.support import SmallHost, a_walk, development
from tests.waiting import until

CATALOG = {
    "sqlite": ["SELECT type, name, tbl_name, sql FROM sqlite_master WHERE name LIKE '%flowactions%'"],
    "postgresql": [
        """SELECT table_name, column_name, ordinal_position, data_type, character_maximum_length, is_nullable,
        column_default FROM information_schema.columns WHERE table_name LIKE 'flowactions%'""",
        """SELECT conrelid::regclass::text, conname, pg_get_constraintdef(oid) FROM pg_constraint
        WHERE conrelid::regclass::text LIKE 'flowactions%'""",
        "SELECT indexname, indexdef FROM pg_indexes WHERE tablename LIKE 'flowactions%'",
        "SELECT relname, reloptions FROM pg_class WHERE relname LIKE 'flowactions%' AND reloptions IS NOT NULL",
    ],
}


def url_of(database_url: str) -> str:
    return read_settings({"FLOWACTIONS_DATABASE_URL": database_url}).database_url


@asynccontextmanager
async def connected(database_url: str) -> AsyncIterator[Any]:
    engine = create_async_engine(url_of(database_url))
    try:
        async with engine.begin() as connection:
            yield connection
    finally:
        await engine.dispose()


async def catalog(database_url: str) -> list[tuple[str, ...]]:
    """Give everything that the database says of our tables, the version table left out."""
    async with connected(database_url) as connection:
        rows = [
            tuple(str(value) for value in row)
            for query in CATALOG[connection.dialect.name]
            for row in await connection.execute(text(query))
        ]
    ours = (row for row in rows if not any(migrations.VERSION_TABLE in value for value in row))
    return sorted((*row[:-1], _clauses(row[-1])) for row in ours)


def _clauses(statement: str) -> str:
    """Write a statement's clauses in order: SQLite puts columns that were added behind the constraints."""
    for default in ("''", "'0'", "'1'"):
        # A default is written in brackets where SQLite copied the table.
        statement = statement.replace(f"DEFAULT ({default})", f"DEFAULT {default}")
    head, _, body = statement.replace('"', "").partition("(")
    depth, clauses = 0, [""]
    for character in body:
        depth += {"(": 1, ")": -1}.get(character, 0)
        if character == "," and depth == 0:
            clauses.append("")
        else:
            clauses[-1] += character
    return " ".join(head.split()) + " ".join(sorted(" ".join(clause.split()).strip(") ") for clause in clauses))


async def pretend(database_url: str, revision: str) -> None:
    async with connected(database_url) as connection:
        await connection.execute(text(f"UPDATE {migrations.VERSION_TABLE} SET version_num = '{revision}'"))  # noqa: S608


async def test_the_revisions_create_exactly_the_schema(database_url: str) -> None:
    """Columns, types, constraints, indexes and fill factors are equal, whether the tables were migrated or created."""
    await Database(url_of(database_url)).migrate()
    by_revisions = await catalog(database_url)
    async with connected(database_url) as connection:
        await connection.run_sync(metadata.drop_all)
        await connection.run_sync(metadata.create_all)
    assert by_revisions == await catalog(database_url)
    assert len(by_revisions) > 10


async def test_alembic_generates_an_empty_revision(database_url: str) -> None:
    """The schema and the revisions agree."""
    await Database(url_of(database_url)).migrate()

    def difference(connection: Connection) -> list[Any]:
        def ours(thing: Any, name: str | None, kind: str, *_: object) -> bool:
            if kind != "table" or name is None:
                return True
            return name.startswith("flowactions_") and name != migrations.VERSION_TABLE

        context = MigrationContext.configure(
            connection,
            opts={"include_object": ours, "compare_type": True, "version_table": migrations.VERSION_TABLE},
        )
        return list(compare_metadata(context, metadata))

    async with connected(database_url) as connection:
        assert await connection.run_sync(difference) == []


def test_the_revisions_are_known_without_alembic() -> None:
    """Their files are named after them, in the order in which they follow each other."""
    scripts = ScriptDirectory.from_config(migrations._config())
    assert list(migrations.revisions()) == [script.revision for script in scripts.walk_revisions()][::-1]
    assert scripts.get_heads() == [migrations.head()]


@pytest.mark.parametrize("revision", ["no tables", "no row", "0001", "9999"])
async def test_the_revision_of_the_tables_is_read_as_alembic_reads_it(database_url: str, revision: str) -> None:
    """Also where there are no tables yet, and where a later release has changed them."""
    if revision != "no tables":
        await Database(url_of(database_url)).migrate()
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


async def test_migrating_twice_changes_nothing(database_url: str) -> None:
    """The first run creates the tables, the second finds them at the latest revision."""
    database = Database(url_of(database_url))
    assert await database.migrate(dry=True) == (None, migrations.head())
    assert await database.migrate() == (None, migrations.head())
    assert await database.migrate() == (migrations.head(), migrations.head())


async def test_concurrent_migrations_run_one_after_the_other(database_url: str) -> None:
    """The second waits, and finds nothing to do."""
    await asyncio.gather(*(Database(url_of(database_url)).migrate() for _ in range(4)))
    assert await Database(url_of(database_url)).migrate() == (migrations.head(), migrations.head())


@pytest.mark.parametrize("threads", [False, True])
async def test_different_databases_may_be_made_at_once(tmp_path: Path, threads: bool) -> None:
    """Hosts that start together in one process, in one event loop or in several, each make the tables of their own."""

    async def make(number: int) -> None:
        async with Database(url_of(f"sqlite:///{tmp_path / f'{number}.db'}")):
            pass

    if threads:
        made = await asyncio.gather(
            *(asyncio.to_thread(asyncio.run, make(number)) for number in range(4)), return_exceptions=True
        )
    else:
        made = await asyncio.gather(*(make(number) for number in range(4)), return_exceptions=True)
    assert made == [None] * 4
    for number in range(4):
        url = url_of(f"sqlite:///{tmp_path / f'{number}.db'}")
        assert await Database(url).migrate(dry=True) == (migrations.head(), migrations.head())


async def test_outdated_tables_on_postgresql_refuse_the_start(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The message names the command, and nothing is changed while other processes may use the tables."""
    await Database(url_of(postgres_url)).migrate()
    monkeypatch.setattr(migrations, "head", lambda: "9999")
    with pytest.raises(StartFailed, match="run 'flowactions migrate'"):
        async with FlowActions.load(SmallHost(development(postgres_url))).lifespan():
            pass
    database = Database(url_of(postgres_url))
    with pytest.raises(SchemaOutdated):
        await database.__aenter__()


async def test_outdated_tables_on_sqlite_are_upgraded_at_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SQLite is migrated by the start itself."""
    url = f"sqlite:///{tmp_path / 'f.db'}"
    await Database(url_of(url)).migrate()
    upgraded: list[bool] = []
    monkeypatch.setattr(migrations, "head", lambda: "9999")
    monkeypatch.setattr(migrations, "upgrade", lambda connection: upgraded.append(True))
    async with Database(url_of(url)):
        assert upgraded == [True]


async def test_newer_tables_are_used(database_url: str, caplog: pytest.LogCaptureFixture) -> None:
    """During a rolling upgrade, a process of the previous release continues, and logs that it is outdated (§9)."""
    await Database(url_of(database_url)).migrate()
    await pretend(database_url, "9999")
    actions = FlowActions.load(SmallHost(development(database_url)))
    async with actions.lifespan():
        node = Node(id="n", type="webhook", config={"webhookUrl": "http://127.0.0.1:1/"})
        assert (await actions.reach(a_walk(), node)).status == "queued"
    assert "newer than this release's" in caplog.text


async def test_a_failed_migration_changes_nothing(database_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """All of a migration commits or none of it, tables and version alike, on both databases."""
    upgrade = migrations.upgrade

    def fail_at_the_end(connection: Connection) -> None:
        upgrade(connection)
        raise LookupError

    with monkeypatch.context() as patched:
        patched.setattr(migrations, "upgrade", fail_at_the_end)
        with pytest.raises(LookupError):
            await Database(url_of(database_url)).migrate()
    assert await catalog(database_url) == []
    assert await Database(url_of(database_url)).migrate() == (None, migrations.head())


async def test_the_hosts_version_table_is_not_changed(postgres_url: str) -> None:
    """The host's version table and the plugin's are separate."""
    async with connected(postgres_url) as connection:
        await connection.execute(text("CREATE TABLE alembic_version (version_num VARCHAR(32) NOT NULL)"))
        await connection.execute(text("INSERT INTO alembic_version VALUES ('host-7')"))
    await Database(url_of(postgres_url)).migrate()
    async with connected(postgres_url) as connection:
        assert (await connection.execute(text("SELECT version_num FROM alembic_version"))).scalars().all() == [
            "host-7"
        ]


async def test_a_host_whose_tables_are_there_waits_for_no_other_hosts_tables(
    postgres_url: str, tmp_path: Path
) -> None:
    """Only changes of tables take turns in a process: a database that stands still holds up no start but its own."""
    there = url_of(f"sqlite:///{tmp_path / 'there.db'}")
    await Database(there).migrate()
    async with connected(postgres_url) as blocking:
        # Alembic waits for this transaction in the middle of its work.
        await blocking.execute(text("CREATE TABLE flowactions_version (version_num VARCHAR(32))"))
        upgrading = asyncio.create_task(Database(url_of(postgres_url)).migrate())
        await until(migrations._ALEMBIC.locked)
        async with asyncio.timeout(300), Database(there):
            assert not upgrading.done()
        await blocking.rollback()
        await upgrading


async def test_pauses_that_are_there_get_the_role_of_who_set_them(database_url: str) -> None:
    """From the last line of the audit; where there is none, and for one that was resumed, it is not known."""

    def bring(connection: Connection) -> None:
        config = migrations._config()
        config.attributes[migrations._CONNECTION] = connection
        command.upgrade(config, "0004")

    async with connected(database_url) as connection:
        await connection.run_sync(bring)
    pauses = [
        ("acme", "a", "NULL"),
        ("acme", "b", "NULL"),
        ("", "a", "NULL"),
        ("acme", "c", "NULL"),
        ("acme", "d", "1"),
    ]
    lines = [("1", "acme", "a", "operator"), ("2", "acme", "a", "dashboard"), ("3", "acme", "b", "command")]
    lines += [("4", "", "a", "operator"), ("5", "acme", "d", "dashboard")]
    async with connected(database_url) as connection:
        for organization, place, resumed in pauses:
            await connection.exec_driver_sql(
                "INSERT INTO flowactions_pauses (organization_id, destination, paused_at, paused_by, reason, resumed_at)"  # noqa: S608
                f" VALUES ('{organization}', '{place}', 1, 'x', '', {resumed})"
            )
        for line_id, organization, place, role in lines:
            await connection.exec_driver_sql(
                "INSERT INTO flowactions_audit (id, at, organization_id, actor_id, actor_name, actor_role, action,"  # noqa: S608
                f" destination, reason) VALUES ('{line_id}', 1, '{organization}', '', '', '{role}', 'pause', '{place}', '')"
            )
    await Database(url_of(database_url)).migrate()
    async with connected(database_url) as connection:
        found = await connection.exec_driver_sql(
            "SELECT organization_id, destination, paused_role FROM flowactions_pauses ORDER BY 1, 2"
        )
        assert [tuple(row) for row in found] == [
            ("", "a", "operator"),
            ("acme", "a", "dashboard"),
            ("acme", "b", "command"),
            ("acme", "c", None),
            ("acme", "d", None),
        ]


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
        async with Database(url_of(database_url)):
            pass
        assert logger.level == level
    finally:
        logger.setLevel(before)
    names = {record.name for record in caplog.records if record.name.startswith(("alembic", "flowactions"))}
    assert {"alembic" if name.startswith("alembic.") else name for name in names} == shown
    assert f"created the tables (revision {migrations.head()})" in caplog.text
