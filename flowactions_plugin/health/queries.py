"""The statements of checks of the database."""

from __future__ import annotations

import secrets
from typing import Final

from sqlalchemy import delete, insert, literal, select

from flowactions_plugin.clock import new_id
from flowactions_plugin.storage.conflicts import repeated
from flowactions_plugin.storage.database import Database
from flowactions_plugin.storage.schema import outbox, workers
from flowactions_plugin.storage.sqlite import Deadline

WRITTEN_BYTES: Final = 16 * 1024
"""So many need new pages of the database's file, which a full disk has not."""


async def look(database: Database) -> None:
    """Read from the outbox, whatever is in it; the tables are made or refused before, as for any other use.

    Raises:
        SchemaOutdated: the tables are of an earlier release.
        StorageUnavailable: the database did not answer, or has not the tables.
    """
    async with database.read() as connection:
        await connection.execute(select(literal(1)).select_from(outbox).limit(1))


@repeated
async def try_writing(database: Database, seconds: float | None = None) -> None:
    """Write a row and remove it in the same transaction, so that nobody sees it.

    Args:
        database: which.
        seconds: how long SQLite's lock is waited for; ``None``: as long as by any other writer.

    Raises:
        StorageUnavailable: the database is full, read-only or locked, or refuses the role.
    """
    row_id = new_id(database.clock())
    text = secrets.token_hex(WRITTEN_BYTES // 2)
    async with database.write(deadline=Deadline(seconds)) as transaction:
        await transaction.execute(
            insert(workers).values(
                id=row_id,
                name=text,
                version="",
                host_name="",
                pid=0,
                mode="",
                slots=0,
                in_flight=0,
                started_at=0,
                last_seen_at=0,
            )
        )
        await transaction.execute(delete(workers).where(workers.c.id == row_id))
