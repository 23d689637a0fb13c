"""Databases that an earlier release has filled: loading their dumps, and reading them row by row."""

from __future__ import annotations

import json
import sqlite3
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import Any

import asyncpg
from sqlalchemy import LargeBinary, MetaData, Table, cast, inspect, select, text
from sqlalchemy.ext.asyncio import AsyncConnection, create_async_engine

from flowactions_plugin.settings.model import read_settings

FOLDER = Path(__file__).parent / "0.1.0"
RECEIVER = "127.0.0.1:18099"
"""Where the deliveries of the dumps go."""

TIMES = {
    "flowactions_attempts": ("started_at",),
    "flowactions_call_rates": ("updated_at",),
    "flowactions_chat_connections": ("installed_at",),
    "flowactions_deferred": ("created_at", "held_until"),
    "flowactions_idempotency_keys": ("created_at",),
    "flowactions_inbound_events": ("received_at",),
    "flowactions_oauth_states": ("expires_at",),
    "flowactions_outbox": ("next_attempt_at", "created_at", "updated_at", "finished_at"),
}

Rows = list[dict[str, Any]]


async def load(database_url: str, receiver: str = "127.0.0.1:9") -> None:
    """Make a database as the release left it a moment ago.

    Args:
        database_url: an empty database.
        receiver: host and port of who receives the deliveries.
    """
    if database_url.startswith("sqlite"):
        script = (FOLDER / "sqlite.sql").read_text().replace(RECEIVER, receiver)
        with closing(sqlite3.connect(database_url.removeprefix("sqlite:///"))) as connection:
            connection.executescript(script)
    else:
        script = (FOLDER / "postgresql.sql").read_text().replace(RECEIVER, receiver)
        connection = await asyncpg.connect(database_url)
        try:
            await connection.execute(script)
        finally:
            await connection.close()
    await _bring_to_the_present(database_url)


async def _bring_to_the_present(database_url: str) -> None:
    async with connected(database_url) as connection:
        last = (
            await connection.execute(text("SELECT max(received_at) FROM flowactions_inbound_events"))
        ).scalar_one()
        by = int(time.time() * 1000) - last
        for table, columns in TIMES.items():
            changes = ", ".join(f"{column} = {column} + {by}" for column in columns)
            await connection.execute(text(f"UPDATE {table} SET {changes}"))  # noqa: S608  names and a number
        for agent, times in (
            await connection.execute(text("SELECT agent_id, times FROM flowactions_call_rates"))
        ).all():
            later = {"agent": agent, "times": json.dumps([moment + by for moment in json.loads(times)])}
            await connection.execute(
                text("UPDATE flowactions_call_rates SET times = :times WHERE agent_id = :agent"), later
            )


@asynccontextmanager
async def connected(database_url: str) -> AsyncIterator[AsyncConnection]:
    """Open a transaction on a database, apart from any host."""
    engine = create_async_engine(read_settings({"FLOWACTIONS_DATABASE_URL": database_url}).database_url)
    try:
        async with engine.begin() as connection:
            yield connection
    finally:
        await engine.dispose()


async def run(database_url: str, *statements: str) -> None:
    """Run statements as they stand, as one transaction."""
    async with connected(database_url) as connection:
        for statement in statements:
            await connection.exec_driver_sql(statement)


async def every_row(database_url: str) -> Mapping[str, Rows]:
    """Give the rows of every table of ours, in the order of their primary keys; texts of SQLite as bytes."""

    def tables(connection: Any) -> list[Table]:
        names = sorted(name for name in inspect(connection).get_table_names() if name.startswith("flowactions"))
        metadata = MetaData()
        return [Table(name, metadata, autoload_with=connection) for name in names]

    found: dict[str, Rows] = {}
    async with connected(database_url) as connection:
        for table in await connection.run_sync(tables):
            columns: list[Any] = list(table.c)
            if connection.dialect.name == "sqlite":
                columns = [
                    cast(column, LargeBinary).label(column.name)
                    if "CHAR" in str(column.type) or "TEXT" in str(column.type)
                    else column
                    for column in columns
                ]
            query = select(*columns).order_by(*table.primary_key)
            found[table.name] = [dict(row._mapping) for row in await connection.execute(query)]
    return found
