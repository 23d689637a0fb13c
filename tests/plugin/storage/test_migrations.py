from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from sqlalchemy import Connection, TextClause, insert, inspect, select, text
from sqlalchemy.ext.asyncio import create_async_engine

from flowactions_hookspecs import Deferred, FlowActions, Node, StartFailed
from flowactions_plugin.cli.context import opened_database
from flowactions_plugin.errors import SchemaOutdated
from flowactions_plugin.storage import migrations, revisions, schema
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


async def tables(database_url: str) -> set[str]:
    """Give the names of our tables."""
    async with connected(database_url) as connection:
        names = await connection.run_sync(lambda opened: inspect(opened).get_table_names())
        return {name for name in names if name.startswith("flowactions_")}


async def pretend(database_url: str, revision: str) -> None:
    await execute(database_url, f"UPDATE flowactions_version SET version_num = '{revision}'")  # noqa: S608


def test_conditions_of_statements_are_those_of_indexes() -> None:
    """A database uses an index of some rows only for statements with its condition."""
    written = " ".join(revisions.INDEXES.split())
    conditions = [each.text for each in vars(schema).values() if isinstance(each, TextClause)]
    assert len(conditions) > 5
    assert [each for each in conditions if f"WHERE {each}" not in written] == []


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
    with monkeypatch.context() as patched:
        patched.setattr(migrations, "REVISIONS", {**revisions.REVISIONS, "9999": fail})
        with pytest.raises(LookupError):
            await a_database(database_url).migrate()
    assert await tables(database_url) == set()
    assert await a_database(database_url).migrate() == (None, migrations.head())
    assert await tables(database_url) == {*metadata.tables, "flowactions_version"}


def fail(_: Connection) -> None:
    raise LookupError


async def test_the_hosts_version_table_is_not_changed(postgres_url: str) -> None:
    """The host's version table and the plugin's are separate."""
    await execute(
        postgres_url,
        "CREATE TABLE alembic_version (version_num VARCHAR(32) NOT NULL)",
        "INSERT INTO alembic_version VALUES ('host-7')",
    )
    await a_database(postgres_url).migrate()
    async with connected(postgres_url) as connection:
        assert (await connection.execute(text("SELECT version_num FROM alembic_version"))).scalars().all() == [
            "host-7"
        ]


@pytest.mark.parametrize("revision", ["0001", "0009", "0099"])
async def test_tables_of_a_state_before_the_first_release_are_refused(database_url: str, revision: str) -> None:
    """By the start, by commands and by migrate, on both databases: one error says to begin a new one, and nothing changes."""
    await a_database(database_url).migrate()
    await pretend(database_url, revision)
    said = f"the tables are at revision {revision}, an earlier state .*: begin a new database"
    with pytest.raises(StartFailed, match=said):
        async with FlowActions.load(SmallHost(development(database_url))).lifespan():
            pass
    with pytest.raises(SchemaOutdated, match=said):
        await a_database(database_url).migrate()
    with pytest.raises(SchemaOutdated, match=said):
        async with opened_database(a_database(database_url)):
            pass
    assert await a_database(database_url).migrate(dry=True) == (revision, migrations.head())


def colour(connection: Connection) -> None:
    connection.execute(text("ALTER TABLE flowactions_outbox ADD COLUMN colour TEXT NOT NULL DEFAULT 'red'"))
    connection.execute(text("UPDATE flowactions_outbox SET colour = 'blue'"))


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
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its statements run on rows in all tables, which stay; on SQLite the start runs it, on PostgreSQL the command."""
    await a_database(database_url).migrate()
    await fill(database_url)
    before, first = await rows_of(database_url), migrations.head()
    monkeypatch.setattr(migrations, "REVISIONS", {**revisions.REVISIONS, "9999": colour})
    if database_url.startswith("sqlite"):
        async with a_database(database_url):
            pass
    else:
        with pytest.raises(SchemaOutdated, match="run 'flowactions migrate'"):
            await a_database(database_url).open(required=True)
        with pytest.raises(StartFailed, match="run 'flowactions migrate'"):
            async with FlowActions.load(SmallHost(development(database_url))).lifespan():
                pass
        assert await a_database(database_url).migrate() == (first, "9999")
    assert await a_database(database_url).migrate() == ("9999", "9999")
    assert await rows_of(database_url) == before
    assert all(before.values())
    async with connected(database_url) as connection:
        assert (await connection.scalars(text("SELECT colour FROM flowactions_outbox"))).all() == ["blue"]


async def test_this_release_works_on_tables_with_one_column_more(
    database_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    """As beside processes of a later one: nodes of both kinds run, a delivery is sent, read and retried (§9)."""
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


async def test_a_first_start_logs_one_line(database_url: str, caplog: pytest.LogCaptureFixture) -> None:
    """It says which revision was made."""
    caplog.set_level(logging.INFO, "flowactions")
    async with a_database(database_url):
        pass
    lines = [record.getMessage() for record in caplog.records if record.name.startswith("flowactions")]
    made = [line for line in lines if "database file" not in line]
    assert made == [f"created the tables (revision {migrations.head()})"]
