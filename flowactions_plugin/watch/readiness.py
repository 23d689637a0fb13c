"""Whether this process can do its work: its lifespan is open, the database answers, the tables fit.

Whether deliveries arrive is another question, about all processes together: the verdict answers it.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Callable
from typing import Final, Literal, TypeAlias

from sqlalchemy import delete, insert, literal, select

from flowactions_plugin.clock import new_id
from flowactions_plugin.errors import SchemaOutdated, StorageUnavailable
from flowactions_plugin.storage.database import Database
from flowactions_plugin.storage.schema import outbox, workers
from flowactions_plugin.storage.waiting import repeated

Word: TypeAlias = Literal["ready", "starting", "database", "tables", "unwritable"]

CACHE_SECONDS: Final = 1.0
"""For how long an answer is given again: anybody may ask, as often as they like."""

WRITTEN_BYTES: Final = 16 * 1024
"""So many need new pages of the database's file, which a full disk has not."""

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
