"""The fleet: each process that delivers writes a row of its own, so that operators see which are alive."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from types import MappingProxyType
from typing import Any, Final, TypeAlias

import msgspec
from sqlalchemy import BigInteger, Insert, insert, literal, null, select, update

from flowactions_plugin.clock import new_id
from flowactions_plugin.queue.lanes import PURGED
from flowactions_plugin.storage.database import Database
from flowactions_plugin.storage.retention import DAY_MS
from flowactions_plugin.storage.schema import workers
from flowactions_plugin.storage.waiting import repeated

BEAT_SECONDS: Final = 10.0
"""How often a process writes that it is alive."""

STALE_MS: Final = 45_000
"""A process that was not seen for so long is stale."""

MOST_OTHERS: Final = 100
"""From how many others a process that begins learns what they limit, at the most."""

WORKERS_KEPT_MS: Final = DAY_MS
"""How long the row of one that is gone is kept."""

Limited: TypeAlias = Mapping[str, Mapping[str, int]]
"""Of organizations, the destinations that a process sends one delivery at a time, and since when (Unix milliseconds)."""


class Fleet:
    """The row of this process.

    Args:
        database: where.
        mode: ``scheduled`` or ``continuous``.
        slots: attempts at once.
        delivery_timeout: seconds that an attempt may take.
    """

    def __init__(self, database: Database, mode: str, slots: int, delivery_timeout: int = 10) -> None:
        self._database = database
        self._mode = mode
        self._slots = slots
        self._delivery_timeout = delivery_timeout
        self.begin()

    def begin(self) -> str:
        """Begin anew, under an id that this returns."""
        self._id = new_id(self._database.clock())
        self._claimed = 0
        self._limited: Limited = {}
        return self._id

    def is_news(self, limited: Limited) -> bool:
        """Return whether this process limits something else than it has written."""
        return limited != self._limited

    async def others(self) -> Sequence[Any]:
        """Return the rows of the other processes that are ``alive``, or were when the last one was.

        Raises:
            StorageUnavailable: the database failed.
        """
        alive = workers.c.stopped_at.is_(None) & (workers.c.last_seen_at > self._database.now() - STALE_MS)
        query = select(workers, alive.label("alive")).where(workers.c.id != self._id)
        rows = await self._database.rows(query.order_by(workers.c.last_seen_at.desc()).limit(MOST_OTHERS))
        return [row for row in rows if row.last_seen_at > rows[0].last_seen_at - STALE_MS]

    @repeated
    async def beat(
        self, in_flight: int, claimed: int, limited: Limited = MappingProxyType({}), slow: int = 0
    ) -> bool:
        """Write that this process is alive. A row that is not there, as at first, is written.

        Args:
            in_flight: attempts that it is making.
            claimed: how many it has claimed since its start.
            limited: what it limits.
            slow: how many of the attempts are of slow lanes.

        Returns:
            Whether an organization was purged: what the process limits was not written then, and has to be forgotten.

        Raises:
            StorageUnavailable: the database failed.
        """
        now = self._database.now()
        has_claimed = claimed != self._claimed
        seen = (
            update(workers)
            .where(workers.c.id == self._id)
            .values(
                in_flight=in_flight,
                slow=slow,
                last_seen_at=now,
                last_claim_at=now if has_claimed else workers.c.last_claim_at,
                stopped_at=None,
            )
        )
        written = select(workers.c.limited).where(workers.c.id == self._id).with_for_update()
        async with self._database.write() as transaction:
            if is_purged := await transaction.scalar(written) == PURGED:
                limited = {}
            text = msgspec.json.encode(limited).decode() if limited else None
            if is_purged or self.is_news(limited):
                # It may be large, and is mostly as it was.
                seen = seen.values(limited=text)
            # The time is read when nothing is waited for any more before the statement.
            if (await transaction.execute(seen.values(clock_ahead_ms=self._ahead_ms()))).rowcount == 0:
                started = self._started(in_flight, has_claimed=has_claimed)
                await transaction.execute(started.values(limited=text, slow=slow))
        self._claimed, self._limited = claimed, limited
        return is_purged

    @repeated
    async def stop(self) -> None:
        """Write that this process has stopped, in order.

        Raises:
            StorageUnavailable: the database failed; the row is stale after a while.
        """
        now = self._database.now()
        stopped = (
            update(workers)
            .where(workers.c.id == self._id)
            .values(in_flight=0, slow=0, last_seen_at=now, stopped_at=now)
        )
        async with self._database.write() as transaction:
            await transaction.execute(stopped)

    def _ahead_ms(self) -> Any:
        """Return by how much this process's clock is ahead of the database's, in SQL; NULL where that is the same clock."""
        if not self._database.sql.is_server:
            return null()
        return literal(int(self._database.clock() * 1000), BigInteger) - self._database.now()

    def _started(self, in_flight: int, *, has_claimed: bool) -> Insert:
        now = self._database.now()
        host_name = socket.gethostname()
        return insert(workers).values(
            id=self._id,
            name=f"{host_name}:{os.getpid()}",
            version=_version(),
            host_name=host_name,
            pid=os.getpid(),
            mode=self._mode,
            slots=self._slots,
            delivery_timeout=self._delivery_timeout,
            in_flight=in_flight,
            started_at=now,
            last_seen_at=now,
            last_claim_at=now if has_claimed else None,
            clock_ahead_ms=self._ahead_ms(),
        )


def limited_of(written: Any) -> Limited:
    """Return what a worker has written that it limits; nothing, where no worker of this release can have written it."""
    try:
        limited: Limited = msgspec.json.decode(written, type=dict[str, dict[str, int]])
    except (msgspec.DecodeError, UnicodeError, TypeError):
        return {}
    return limited


def _version() -> str:
    try:
        return version("flowactions-plugin")
    except PackageNotFoundError:
        return "unknown"  # a frozen app may have no metadata
