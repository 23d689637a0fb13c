"""Whether the database answers, and whether a row can be written and removed."""

from __future__ import annotations

import secrets
from typing import Final

from sqlalchemy import delete, insert, literal, select

from flowactions_plugin.clock import new_id
from flowactions_plugin.storage.database import Database
from flowactions_plugin.storage.schema import outbox, workers
from flowactions_plugin.storage.waiting import repeated

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
async def try_writing(database: Database) -> None:
    """Write a large row and remove it in the same transaction, so that nobody sees it.

    Raises:
        StorageUnavailable: the database is full, read-only or locked, or refuses the role.
    """
    row_id = new_id(database.clock())
    texts = dict.fromkeys(("version", "host_name", "mode"), "")
    texts["name"] = secrets.token_hex(WRITTEN_BYTES // 2)
    numbers = dict.fromkeys(("pid", "slots", "in_flight", "started_at", "last_seen_at"), 0)
    async with database.write() as transaction:
        await transaction.execute(insert(workers).values(id=row_id, **texts, **numbers))
        await transaction.execute(delete(workers).where(workers.c.id == row_id))
