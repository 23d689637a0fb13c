"""Whether this process can do its work: its lifespan is open, the database answers, the tables fit.

Whether deliveries arrive is another question, about all processes together: the verdict answers it.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Callable
from typing import Any, Final, Literal, TypeAlias

from sqlalchemy import Column, LargeBinary, String, delete, insert, literal, select, update

from flowactions_plugin.clock import new_id
from flowactions_plugin.errors import SchemaOutdated, StorageUnavailable
from flowactions_plugin.storage.database import Database
from flowactions_plugin.storage.schema import chat_connections, deferred, metadata, outbox
from flowactions_plugin.storage.waiting import repeated

Word: TypeAlias = Literal["ready", "starting", "database", "tables", "unwritable"]

CACHE_SECONDS: Final = 1.0
"""For how long an answer is given again: anybody may ask, as often as they like."""

WRITTEN_BYTES: Final = 16 * 1024

LOCK_SECONDS: Final = 3.0
"""How long `try_writing` waits for the locks of others on PostgreSQL: longer than those that are not told."""

STATUSES: Final = {outbox.c.status: "dead", chat_connections.c.status: "active"}
"""Columns that hold some texts only, and one of these."""

LOOK_SECONDS: Final = 2.0
"""How long the database may take. Probes of orchestrators do not wait for much longer."""


class Health:
    """Checks one process, at most once a second.

    Args:
        database: where the outbox is.
        is_running: whether the lifespan is open.
        timer: monotonic seconds.
    """

    def __init__(
        self,
        database: Database,
        is_running: Callable[[], bool],
        timer: Callable[[], float] = time.monotonic,
    ) -> None:
        self._database = database
        self._is_running = is_running
        self._timer = timer
        self._until = 0.0
        self._word: Word = "starting"
        self._turn = asyncio.Lock()

    async def readiness(self) -> Word:
        """Return ``ready``, or what is missing: ``starting`` (the lifespan), ``database``, ``tables``, ``unwritable``."""
        if not self._is_running():
            return "starting"
        async with self._turn:
            if self._timer() >= self._until:
                self._word = await self._look()
                self._until = self._timer() + CACHE_SECONDS
            return self._word

    async def _look(self) -> Word:
        try:
            async with asyncio.timeout(LOOK_SECONDS):
                async with self._database.read() as connection:
                    await connection.execute(select(literal(1)).select_from(outbox).limit(1))
        except SchemaOutdated:
            return "tables"
        except (StorageUnavailable, TimeoutError):
            return "database"
        return "ready" if self._database.refused is None else "unwritable"


async def try_writing(database: Database) -> None:
    """Write a row to each table, change it and remove it, in one transaction, so that nobody sees it.

    Raises:
        StorageUnavailable: the database is full, read-only or locked, or refuses the role. The message says who holds the lock,
            or which rights are missing.
    """
    try:
        await _write_everywhere(database)
    except StorageUnavailable as exc:
        async with database.read() as connection:
            words = await connection.run_sync(database.obstacle)
        if words is None:
            raise
        raise StorageUnavailable(f"the database cannot be written: {words}", code=exc.code) from exc


@repeated
async def _write_everywhere(database: Database) -> None:
    mark = new_id(database.clock())
    async with database.write() as transaction:
        await database.limit_locks(transaction, LOCK_SECONDS)
        for table in metadata.tables.values():
            row = {each.name: _value(each, mark) for each in table.c if each is not deferred.c.id}
            marked = next(each for each in table.c if row.get(each.name) == mark)
            await transaction.execute(insert(table).values(row))
            await transaction.execute(update(table).where(marked == mark).values({marked.name: marked}))
            await transaction.execute(delete(table).where(marked == mark))


def _value(column: Column[Any], mark: str) -> object:
    """Return a value that a column may have; bytes need new pages of the database's file, which a full disk has not."""
    if isinstance(column.type, LargeBinary):
        return secrets.token_bytes(WRITTEN_BYTES)
    if isinstance(column.type, String):
        return STATUSES.get(column, mark[: column.type.length])
    return 0
