"""Whether the database takes writes: tried once in a while, for all in a process who want to know."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Final

from flowactions_plugin.errors import StorageUnavailable
from flowactions_plugin.health.queries import try_writing
from flowactions_plugin.storage.database import Database
from flowactions_plugin.storage.outages import refusal_of

KEPT_SECONDS: Final = 10.0
"""For how long an answer is given again: each try is a transaction."""

TRY_SECONDS: Final = 1.0
"""How long a try may take. One that took longer says nothing: a lock is no refusal."""


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

    async def refused(self) -> str | None:
        """Return why the database takes no writes, after a try unless there was one a moment ago.

        Returns:
            What continues "the database takes no writes: "; ``None``: it takes them, or does not answer at all.
        """
        if self._trying is not None and self._trying.get_loop() is not asyncio.get_running_loop():
            self._trying = None  # of a loop that has ended
        if self._trying is None:
            if self._timer() < self._until:
                return self.refusal
            self._trying = asyncio.create_task(self._try())
        # Callers of the same moment share one try, and one that leaves does not end it for the others.
        await asyncio.shield(self._trying)
        return self.refusal

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
