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
        self._looking: asyncio.Task[Word] | None = None

    async def readiness(self) -> Word:
        """Return ``ready``, or what is missing: ``starting`` (the lifespan), ``database``, ``tables``, ``unwritable``."""
        if not self._is_running():
            return "starting"
        if self._looking is not None and self._looking.get_loop() is not asyncio.get_running_loop():
            self._looking = None  # of a loop that has ended
        if self._looking is None:
            if self._timer() < self._until:
                return self._word
            self._looking = asyncio.create_task(self._look())
        # Callers of the same moment share one look, and one that goes away leaves it to the others.
        return await asyncio.shield(self._looking)

    async def aclose(self) -> None:
        """Wait for a look that is under way: who asked for it may have left, and it uses the database."""
        task = self._looking
        if task is not None and task.get_loop() is asyncio.get_running_loop():
            await asyncio.wait({task})

    async def _look(self) -> Word:
        word: Word = "ready"
        try:
            async with asyncio.timeout(LOOK_SECONDS):
                async with self._database.read() as connection:
                    await connection.execute(select(literal(1)).select_from(outbox).limit(1))
            if self._database.refused is not None:
                word = "unwritable"
        except SchemaOutdated:
            word = "tables"
        except (StorageUnavailable, TimeoutError):
            word = "database"
        finally:
            self._word, self._until, self._looking = word, self._timer() + CACHE_SECONDS, None
        return word


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
