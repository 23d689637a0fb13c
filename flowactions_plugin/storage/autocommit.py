"""Connections to PostgreSQL that run one statement after the other, each as a transaction of its own."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Final, NamedTuple

from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from flowactions_plugin.storage.postgresql import IDLE_SECONDS

MOST_KEPT: Final = 4
"""How many connections are kept at the most: for claims, those beside them, outcomes, enqueues. The pool has the rest."""


class _Kept(NamedTuple):
    """A connection, what its driver calls one, and when it was used last."""

    connection: AsyncConnection
    driver: Any
    used_at: float


class AutocommitConnections:
    """Keeps connections for the next statement: to check one out of the pool and back in costs more than a small statement.

    Args:
        engine: the plugin's own: a host's pool is not held back from the host.
    """

    def __init__(self, engine: AsyncEngine) -> None:
        self._engine = engine
        self._kept: list[_Kept] = []
        self._closed = False

    @asynccontextmanager
    async def connect(self) -> AsyncIterator[AsyncConnection]:
        """Give a connection while the block runs, of which each statement is a transaction.

        After an error it returns to the pool, which knows what to do with it.
        """
        kept = await self._take()
        try:
            yield kept.connection
        except BaseException:
            await kept.connection.close()
            raise
        if self._closed:
            await kept.connection.invalidate()  # the pool that it would return to is gone
        if self._closed or len(self._kept) >= MOST_KEPT:
            await kept.connection.close()
        else:
            self._kept.append(kept._replace(used_at=time.monotonic()))

    async def close(self) -> None:
        """Return what is kept to the pool, and keep nothing from now on."""
        self._closed = True
        while self._kept:
            await self._kept.pop().connection.close()

    async def _take(self) -> _Kept:
        """Return the connection that was used last, or another one of the pool's, which tests what was idle for long."""
        now = time.monotonic()
        while self._kept:
            kept = self._kept.pop()
            if now - kept.used_at <= IDLE_SECONDS and not kept.driver.is_closed():
                return kept
            await kept.connection.close()
        connection = await self._engine.connect()
        try:
            await connection.execution_options(isolation_level="AUTOCOMMIT")
            driver = (await connection.get_raw_connection()).driver_connection
        except BaseException:
            await connection.close()
            raise
        return _Kept(connection, driver, now)
