"""The housekeeper: one loop for all that a worker does now and then, beside delivering.

Each entry runs as a short task of its own, never twice at once, so a slow one delays no other. While the queue cannot be used none
begins, but for those that say that this process lives: the housekeeper alone tries whether it is back.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import Final, NamedTuple

from flowactions_hookspecs.tasks import is_being_cancelled, restart_delay
from flowactions_plugin.errors import StorageUnavailable
from flowactions_plugin.storage.outages import FAILURE_SECONDS, OutageLog, outage_delay, together

log = logging.getLogger("flowactions")

JITTER: Final = 0.1
"""By up to this part, a pause is longer than it was asked for, so that workers that start together do not stay in step."""


class Entry(NamedTuple):
    """Something that is done again and again.

    Attributes:
        name: names it in the log.
        seconds: about how long after its end it is done again.
        work: does it once; returns after how many seconds it wants to be done again; ``None``: after the usual ones.
        bound: how many seconds it may take; then it is cancelled.
        always: whether it is done also while the queue cannot be used: a lock or a missing right may concern one table.
    """

    name: str
    seconds: float
    work: Callable[[], Awaitable[float | None]]
    bound: float
    always: bool = False


class Housekeeper:
    """Does entries again and again.

    Args:
        entries: what is done.
        outage_log: that of the database.
        reach: tries whether the database is there; raises `StorageUnavailable` while it is not.
        chance: returns random numbers from 0 to 1.
    """

    def __init__(
        self,
        entries: Sequence[Entry],
        outage_log: OutageLog,
        reach: Callable[[], Awaitable[None]],
        chance: Callable[[], float] = random.random,
    ) -> None:
        self._entries = entries
        self._outage_log = outage_log
        self._reach = reach
        self._chance = chance
        self._failures: Counter[str] = Counter()
        self._is_away = False

    async def run(self) -> None:
        """Do everything at once, and then what is due, until cancelled; what is being done then is cancelled and waited for."""
        clock = asyncio.get_running_loop().time
        due = dict.fromkeys(self._entries, clock())
        doing: dict[asyncio.Task[float], Entry | None] = {}
        try:
            while True:
                if self._is_away and None not in doing.values():
                    doing[asyncio.create_task(self._wait_for_database())] = None
                may = {each: at for each, at in due.items() if each.always or not self._is_away}
                for entry in [each for each, at in may.items() if at <= clock()]:
                    del due[entry], may[entry]
                    doing[asyncio.create_task(self._do(entry), name=f"flowactions {entry.name}")] = entry
                pause = max(0.0, min(may.values()) - clock()) if may else None
                if doing:
                    done, _ = await asyncio.wait(doing, timeout=pause, return_when=asyncio.FIRST_COMPLETED)
                    for task in done:
                        wait = task.result() * (1 + JITTER * self._chance())
                        if (ended := doing.pop(task)) is not None:
                            due[ended] = clock() + together(wait)
                else:
                    await asyncio.sleep(pause or 0.0)
        finally:
            for task in doing:
                task.cancel()
            if doing:
                await asyncio.wait(doing)
            for entry in self._entries:
                self._outage_log.ended(entry.name)

    async def _wait_for_database(self) -> float:
        failures = 0
        while self._is_away:
            failures += 1
            await asyncio.sleep(outage_delay(failures, FAILURE_SECONDS, self._chance()))
            with suppress(StorageUnavailable):
                await self._reach()
                self._is_away = False
        return 0.0

    async def _do(self, entry: Entry) -> float:
        """Do an entry once; return the seconds until it is due again."""
        limit = asyncio.timeout(entry.bound)
        try:
            async with limit:
                pause = await entry.work()
        except StorageUnavailable as exc:
            self._outage_log.failed(entry.name, exc)
            self._is_away = True
            return min(entry.seconds, FAILURE_SECONDS)
        except (Exception, asyncio.CancelledError):
            if is_being_cancelled():
                raise
            self._failures[entry.name] += 1
            delay = restart_delay(self._failures[entry.name])
            how = f"was cancelled after {entry.bound} s" if limit.expired() else "failed unexpectedly"
            log.exception("%s %s; again in %s s", entry.name, how, delay, extra={"event": "housekeeper.failed"})
            return delay
        del self._failures[entry.name]
        self._outage_log.worked(entry.name)
        return entry.seconds if pause is None else pause
