"""The engines of one database: the host's, or the plugin's own."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

from sqlalchemy import event
from sqlalchemy.engine import URL
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, create_async_engine

from flowactions_plugin.errors import StorageUnavailable
from flowactions_plugin.storage import postgresql
from flowactions_plugin.storage.autocommit import AutocommitConnections
from flowactions_plugin.storage.shielding import shielded
from flowactions_plugin.storage.sqlite import WAIT_SECONDS, Deadline, prepare_connection, switch_to_wal
from flowactions_plugin.storage.sqlite_thread import SQLiteThread

READ_COMMITTED: Final = "READ COMMITTED"
"""The isolation of the plugin's own transactions, for which its statements are written."""


class Engines:
    """Opens, uses and closes the engines of one database.

    Args:
        url: the database's.
        shared: the host's engine, which is not closed here; ``None``: the plugin creates its own.

    Attributes:
        thread: runs short transactions on the plugin's own SQLite database; ``None`` elsewhere.
    """

    def __init__(self, url: URL, shared: AsyncEngine | None) -> None:
        self._url = url
        self._shared = shared
        self._own_sqlite = shared is None and url.get_backend_name() == "sqlite"
        self.current: AsyncEngine | None = shared
        self.thread: SQLiteThread | None = None
        self._autocommit: AutocommitConnections | None = None
        self._conflicted = False

    @property
    def is_shared(self) -> bool:
        """Whether it is the host's engine."""
        return self._shared is not None

    @property
    def reads_committed(self) -> bool:
        """Whether statements in autocommit mode run as READ COMMITTED: not where the database has another default."""
        known = None if self.current is None else getattr(self.current.dialect, "default_isolation_level", None)
        return not self._conflicted and known in {None, READ_COMMITTED}

    def note_conflict(self) -> None:
        """Take that a statement in autocommit mode was not READ COMMITTED: the default was changed meanwhile."""
        self._conflicted = True

    def open(self, statement_seconds: float | None) -> None:
        """Create the engines. No connection is opened yet.

        Args:
            statement_seconds: how long a statement may take on PostgreSQL; ``None``: without limit.

        Raises:
            OSError: a file that the URL names cannot be read.
        """
        if self._url.get_backend_name() == "sqlite":
            hide_values()
        if self._shared is not None:
            self.current = self._shared
        elif self._own_sqlite:
            self.current = create_async_engine(self._url, hide_parameters=True, pool_timeout=WAIT_SECONDS)
            event.listen(self.current.sync_engine, "connect", prepare_connection)
            self.thread = SQLiteThread(self._url)
        else:
            self.current = postgresql.own_engine(self._url, statement_seconds)
            self._autocommit = AutocommitConnections(self.current)

    async def close(self) -> None:
        """Close the plugin's own engines and stop using the host's."""
        # First, so that a later caller gets an error and does not open a pool that is never closed.
        engine, self.current = self.current, None
        kept, self._autocommit = self._autocommit, None
        if kept is not None:
            await kept.close()
        if self._shared is None and engine is not None:
            await engine.dispose()
        if self.thread is not None:
            self.thread.close()
            self.thread = None

    async def switch_to_wal(self, deadline: Deadline) -> None:
        """Set the journal mode of the plugin's own SQLite file.

        Raises:
            StorageMisplaced: the directory does not exist.
            sqlite3.Error: the file cannot be used, or others kept it locked.
        """
        if self._own_sqlite and self.current is not None:
            await asyncio.to_thread(switch_to_wal, self.current, deadline)

    @asynccontextmanager
    async def autocommit(self) -> AsyncIterator[AsyncConnection]:
        """Open a connection to PostgreSQL of which each statement is a transaction, while the block runs.

        Raises:
            StorageUnavailable: the database is not open.
        """
        if self._autocommit is not None and self.current is not None:
            async with self._autocommit.connect() as connection:
                yield connection
            return
        async with self.connect() as connection:
            await connection.execution_options(isolation_level="AUTOCOMMIT")
            yield connection

    @asynccontextmanager
    async def connect(self, *, as_host: bool = False) -> AsyncIterator[AsyncConnection]:
        """Check a connection out of the pool while the block runs.

        Args:
            as_host: whether its transactions have the default isolation of the host's engine.

        Raises:
            StorageUnavailable: the database is not open.
        """
        if self.current is None:
            raise StorageUnavailable("The database is not open: the lifespan is not running.")
        async with self.current.connect() as connection:
            if connection.dialect.name == "postgresql" and not as_host:
                # No round trip: BEGIN says so. The pool puts back what the host has set.
                await connection.execution_options(isolation_level=READ_COMMITTED)
            try:
                yield connection
            except DBAPIError:
                # A failed statement of SQLite's leaves a cursor behind. The thread that collects it waits until the
                # connection is idle, which does not happen while it waits for a lock.
                if self._own_sqlite:
                    # Two closings at once would wait for a thread that has ended: a cancelled caller waits for this one.
                    await shielded(connection.invalidate())
                raise


def hide_values() -> None:
    """Keep what is stored out of the log: the driver of SQLite logs each statement with its values at debug level.

    Whoever wants these lines sets the level of its logger before, or after.
    """
    driver = logging.getLogger("aiosqlite")
    if driver.level == logging.NOTSET:
        driver.setLevel(logging.INFO)
