"""Whether the database answers, and whether it takes writes: tried once in a while, for all in a process who want to know."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Callable
from typing import Any, Final

from sqlalchemy import delete, insert, literal, select

from flowactions_plugin.clock import new_id
from flowactions_plugin.errors import StorageUnavailable
from flowactions_plugin.storage.conflicts import repeated
from flowactions_plugin.storage.database import Database
from flowactions_plugin.storage.outages import refusal_of
from flowactions_plugin.storage.schema import outbox, workers
from flowactions_plugin.storage.sqlite import Deadline

KEPT_SECONDS: Final = 10.0
"""For how long an answer is given again: each try is a transaction."""

TRY_SECONDS: Final = 1.0
"""How long a try may take. One that took longer says nothing: a lock is no refusal."""

WRITTEN_BYTES: Final = 16 * 1024
"""So many need new pages of the database's file, which a full disk has not."""


class Writes:
    """Tries whether a database takes writes.

    Args:
        database: which.
        timer: monotonic seconds.

    Attributes:
        refusal: why it takes none, as far as is known; ``None``: it does.
    """

    def __init__(self, database: Database, timer: Callable[[], float] = time.monotonic) -> None:
        self._database = database
        self._timer = timer
        self._until = -KEPT_SECONDS
        self._trying: asyncio.Task[None] | None = None
        self.refusal: str | None = None

    async def refused(self, *, anew: bool = False) -> str | None:
        """Return why the database takes no writes, after a try unless there was one a moment ago.

        Args:
            anew: whether it is tried now in any case.

        Returns:
            What continues "the database takes no writes: "; ``None``: it takes them, or does not answer at all.
        """
        if self._trying is not None and self._trying.get_loop() is not asyncio.get_running_loop():
            self._trying = None  # of a loop that has ended
        if self._trying is None:
            if not anew and self._timer() < self._until:
                return self.refusal
            self._trying = asyncio.create_task(self._try())
        # Callers of the same moment share one try, and one that leaves does not end it for the others.
        await asyncio.shield(self._trying)
        return self.refusal

    async def aclose(self) -> None:
        """Wait for a try that is under way: who asked for it may have left, and it uses the database."""
        await over(self._trying)

    async def _try(self) -> None:
        try:
            async with asyncio.timeout(TRY_SECONDS):
                await try_writing(self._database, TRY_SECONDS)
        except TimeoutError:
            pass
        except StorageUnavailable as exc:
            found = refusal_of(exc)
            self.refusal = None if found is None else found.words
        else:
            self.refusal = None
        finally:
            self._until, self._trying = self._timer() + KEPT_SECONDS, None


async def over(task: asyncio.Task[Any] | None) -> None:
    """Wait until a task of this loop has ended, with or without an error."""
    if task is not None and task.get_loop() is asyncio.get_running_loop():
        await asyncio.wait({task})


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
