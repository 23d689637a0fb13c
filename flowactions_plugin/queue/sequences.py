"""Sequences: deliveries that are sent one after another (decision 77).

Two deliveries are in one sequence if organization, endpoint and key are equal. Of a sequence, at most one row is due or in flight; the
others are *behind*: their next attempt is at `BEHIND_MS`, so no claim, look or scan sees them, and the claim knows nothing of order.

- A row of a sequence is always written behind, also if it is alone: its enqueue looks at no other row and takes no lock.
- After the commit of whatever may have let a row go on (an enqueue, an outcome, a person's change), a transaction of its own
  *releases*: it makes the first row due that is behind, unless one is due or in flight already.
- What a kill or a lost call leaves over, a look finds: `Sequences.look` goes through all sequences of which rows wait.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Collection, Iterable
from contextlib import suppress
from typing import Any, Final

from sqlalchemy.engine import Connection, Row

from flowactions_plugin.errors import StorageUnavailable
from flowactions_plugin.queue.delivery_telemetry import log_dead
from flowactions_plugin.queue.lanes import SINCE_MARGIN_MS, Due, number_of, path_of
from flowactions_plugin.queue.rules import CHAT_PACE_SECONDS, WAIT_LIMIT_SECONDS
from flowactions_plugin.queue.standing import MOST_REMEMBERED
from flowactions_plugin.queue.statements import statement
from flowactions_plugin.storage.database import Database
from flowactions_plugin.storage.dialect import Dialect

log = logging.getLogger("flowactions.outbox")

MOST_RELEASED: Final = 500
"""How many sequences a transaction locks at the most, and a look examines: the server's table of locks is for all."""

LOOK_SECONDS: Final = 1.0
LOOK_SHARE: Final = 0.02
"""The part of the time that looks take at the most."""

CLOSE_SECONDS: Final = 1.0
"""How long a process that stops waits for what it releases. The rest is found by a look."""

TOO_LONG: Final = "it has waited too long for the delivery before it"
"""The reason of a row that has been behind for longer than rows wait for a host."""

FIRST_SEQUENCE: Final = -(1 << 63)
"""Before all others, a look begins."""


def sequence_of(organization_id: str, destination: str, url: str, key: str) -> int:
    """Return the sequence of a delivery, a signed integer of 64 bits: of its organization, endpoint and key.

    Args:
        organization_id: whose it is.
        destination: scheme, host and port of its URL.
        url: the whole URL.
        key: what its order is about, for example a user.
    """
    return number_of(organization_id, destination, path_of(url), key)


class Sequences:
    """Releases the rows of sequences, in one database.

    Args:
        database: where the queue is.
        on_due: called with each lane in which a row has become due.
        most: how many sequences a look examines.
    """

    def __init__(self, database: Database, on_due: Callable[[Due], object], most: int = MOST_RELEASED) -> None:
        self._database = database
        self._on_due = on_due
        self._most = most
        self._waiting: set[int] = set()
        self._posted: dict[int, float] = {}
        self._releasing: asyncio.Task[None] | None = None
        self._after = FIRST_SEQUENCE

    def ended(self, sequences: Iterable[int]) -> None:
        """Release the next rows of sequences soon: a change that may let them go on was committed."""
        self._waiting.update(sequences)
        if self._waiting and self._releasing is None:
            self._releasing = asyncio.create_task(self._release_all())

    def posted(self, sequence: int | None) -> None:
        """Record that a message of a sequence was posted: the next one is due `CHAT_PACE_SECONDS` later."""
        if len(self._posted) >= MOST_REMEMBERED:
            self._posted.clear()  # then the provider limits them
        if sequence is not None:
            self._posted[sequence] = time.monotonic()

    async def settled(self) -> None:
        """Wait until everything was released that could be."""
        while self._releasing is not None:
            await asyncio.wait({self._releasing})

    async def aclose(self) -> None:
        """Wait a moment for what is being released."""
        if (releasing := self._releasing) is not None:
            await asyncio.wait({releasing}, timeout=CLOSE_SECONDS)
            releasing.cancel()
            await asyncio.wait({releasing})

    async def _release_all(self) -> None:
        try:
            while self._waiting:
                taken = [self._waiting.pop() for _ in range(min(len(self._waiting), MOST_RELEASED))]
                with suppress(StorageUnavailable):  # a look finds them
                    await self.release(taken)
        except Exception:
            log.exception(
                "deliveries that are sent one after another could not go on; a look tries it again",
                extra={"event": "sequences.not_released"},
            )
        finally:
            self._releasing = None

    async def release(self, sequences: Collection[int]) -> int:
        """Make the first waiting row due of each sequence of which none is due or in flight; return how many there were.

        Args:
            sequences: `MOST_RELEASED` at the most.

        Raises:
            StorageUnavailable: the database failed, or others hold a lock for longer than a moment; nothing was changed.
        """
        latest = time.monotonic() - CHAT_PACE_SECONDS
        paced = {each for each in sequences if self._posted.get(each, latest) > latest}
        found = await release(self._database, set(sequences) - paced)
        for due in found:
            self._on_due(due)
        later = await release(self._database, paced, CHAT_PACE_SECONDS)
        for due in later:
            asyncio.get_running_loop().call_later(CHAT_PACE_SECONDS, self._on_due, due)
        return len(found) + len(later)

    async def look(self) -> float:
        """Release what nothing else has released, and end what has waited too long; return the seconds until the next look.

        Raises:
            StorageUnavailable: the database failed.
        """
        began, database = time.monotonic(), self._database
        looking = database.built(statement, "waiting_sequences")
        found = await database.rows(looking, {"after": self._after, "most": self._most})
        more = len(found) == self._most
        self._after = found[-1].sequence if more else FIRST_SEQUENCE
        if free := [row.sequence for row in found if not row.is_held_up]:
            await self.release(free)
        if waiting := [row.sequence for row in found if row.is_held_up]:
            await self._give_up(waiting)
        pause = (time.monotonic() - began) / LOOK_SHARE
        return pause if more else max(pause, LOOK_SECONDS)

    async def _give_up(self, sequences: Collection[int]) -> None:
        """End the first waiting row of each sequence that has waited for longer than rows wait for a host."""
        giving_up = self._database.built(statement, "give_up_behind")
        given = {"sequences": _given(sequences), "longest": WAIT_LIMIT_SECONDS * 1000, "reason": TOO_LONG}

        def write(connection: Connection) -> list[Row[Any]]:
            return list(connection.execute(giving_up, given))

        for row in await self._database.in_transaction(write):
            log_dead(row.id, row.destination, TOO_LONG)


async def release(database: Database, sequences: Collection[int], seconds: float = 0.0) -> list[Due]:
    """Do what `Sequences.release` does; return the lanes of the rows, which are due in so many seconds.

    Raises:
        StorageUnavailable: as there.
    """
    if not sequences:
        return []
    releasing = database.built(statement, "release")
    locking = database.built(statement, "lock_sequences") if database.sql.is_server else None
    given = {"sequences": _given(sequences)}
    delayed = {**given, "delay": int(seconds * 1000)}

    def write(connection: Connection) -> list[Due]:
        if locking is not None:
            connection.execute(locking, given)
        return [
            Due(row.lane, row.organization_id, row.destination, max(0, row.next_attempt_at - SINCE_MARGIN_MS))
            for row in connection.execute(releasing, delayed)
        ]

    return await database.in_transaction(write, several=True)


def _given(sequences: Collection[int]) -> str:
    return Dialect.json_rows([{"sequence": each} for each in sequences])
