"""The connections to one database: the host's engine or the plugin's own, and those for single short statements."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, suppress
from typing import Any, Final, NamedTuple, TypeVar

from sqlalchemy import create_engine, event
from sqlalchemy.engine import URL
from sqlalchemy.engine import Connection as SyncConnection
from sqlalchemy.exc import DBAPIError, SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, create_async_engine

from flowactions_plugin.errors import StorageUnavailable
from flowactions_plugin.storage import postgresql
from flowactions_plugin.storage.postgresql import IDLE_SECONDS, is_about_schemas, note_search_path
from flowactions_plugin.storage.sqlite import (
    WAIT_SECONDS,
    Deadline,
    prepare_connection,
    restore_wait,
    shorten_wait,
    switch_to_wal,
)
from flowactions_plugin.storage.waiting import shielded

T = TypeVar("T")

READ_COMMITTED: Final = "READ COMMITTED"
"""The isolation of the plugin's own transactions, for which its statements are written."""

MOST_KEPT: Final = 4
"""How many connections are kept at the most: for claims, those beside them, outcomes, enqueues. The pool has the rest."""


class Engines:
    """Opens, uses and closes the engines of one database.

    Args:
        url: the database's.
        shared: the host's engine, which is not closed here; ``None``: the plugin creates its own.

    Attributes:
        current: the engine in use; ``None`` while the database is closed.
        shared: as given.
        thread: runs short transactions on the plugin's own SQLite database; ``None`` elsewhere.
    """

    def __init__(self, url: URL, shared: AsyncEngine | None) -> None:
        self._url = url
        self.shared = shared
        self._own_sqlite = shared is None and url.get_backend_name() == "sqlite"
        self.current: AsyncEngine | None = shared
        self.thread: SQLiteThread | None = None
        self._autocommit: AutocommitConnections | None = None
        self._conflicted = False

    @property
    def reads_committed(self) -> bool:
        """Whether statements in autocommit mode run as READ COMMITTED: not where the database has another default."""
        known = None if self.current is None else getattr(self.current.dialect, "default_isolation_level", None)
        return not self._conflicted and known in {None, READ_COMMITTED}

    def note_conflict(self) -> None:
        """Record that a statement in autocommit mode was not READ COMMITTED: the default was changed meanwhile."""
        self._conflicted = True

    def open(self, statement_seconds: float | None) -> None:
        """Create the engines. No connection is opened yet.

        Args:
            statement_seconds: how long a statement may take on PostgreSQL; ``None``: without limit.

        Raises:
            OSError: a file that the URL names cannot be read.
        """
        if self._url.get_backend_name() == "sqlite":
            # What is stored stays out of the log: the driver logs each statement with its values at debug level.
            # Whoever wants these lines sets the level of its logger before, or after.
            driver = logging.getLogger("aiosqlite")
            if driver.level == logging.NOTSET:
                driver.setLevel(logging.INFO)
        if self.shared is not None:
            self.current = self.shared
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
        if self.shared is None and engine is not None:
            await engine.dispose()
        if self.thread is not None:
            self.thread.close()
            self.thread = None

    @property
    def hosts_schemas(self) -> Any:
        """The ``schema_translate_map`` that the host's engine has for the host's own tables; ``None``: none."""
        options = {} if self.current is None else self.current.sync_engine.get_execution_options()
        return options.get("schema_translate_map")

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
            async with self._naming_schemas(), self._autocommit.connect() as connection:
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
        async with self._naming_schemas(), self.current.connect() as connection:
            # No round trip: BEGIN says so. The pool puts back what the host has set.
            is_isolated = connection.dialect.name == "postgresql" and not as_host
            own: dict[str, Any] = {"isolation_level": READ_COMMITTED} if is_isolated else {}
            if self.hosts_schemas is not None:
                own["schema_translate_map"] = None
            if own:
                await connection.execution_options(**own)
            try:
                yield connection
            except DBAPIError:
                # A failed statement of SQLite's leaves a cursor behind. The thread that collects it waits until the
                # connection is idle, which does not happen while it waits for a lock.
                if self._own_sqlite:
                    # Two closings at once would wait for a thread that has ended: a cancelled caller waits for this one.
                    await shielded(_roll_back_and_close(connection))
                raise

    @asynccontextmanager
    async def _naming_schemas(self) -> AsyncIterator[None]:
        """Note on an error about missing tables in which schemas the server looks."""
        try:
            yield
        except DBAPIError as exc:
            if self.current is not None and is_about_schemas(exc):
                with suppress(SQLAlchemyError):
                    # On another connection: a rollback has undone what the host had set on that one.
                    async with self.current.connect() as another:
                        await note_search_path(another, exc)
            raise


async def _roll_back_and_close(connection: AsyncConnection) -> None:
    """Close a connection whose cursor is left behind: SQLite keeps such a one open, with the lock of its transaction."""
    with suppress(Exception):
        await connection.rollback()
    await connection.invalidate()


class _Kept(NamedTuple):
    """A connection, what its driver calls one, and when it was used last."""

    connection: AsyncConnection
    driver: Any
    used_at: float


class AutocommitConnections:
    """Connections to PostgreSQL that run one statement after the other, each as a transaction of its own.

    They are kept for the next statement: to check one out of the pool and back in costs more than a small statement.

    Args:
        engine: the plugin's own: a host's pool is not held back from the host.
    """

    def __init__(self, engine: AsyncEngine) -> None:
        self._engine = engine
        self._kept: list[_Kept] = []
        self._closed = False

    @asynccontextmanager
    async def connect(self) -> AsyncIterator[AsyncConnection]:
        """Open a connection for the block; each of its statements is a transaction.

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


class SQLiteThread:
    """Runs a whole transaction in one thread with the synchronous driver.

    That takes one thread switch. With the asynchronous driver, each statement takes one.
    """

    def __init__(self, url: URL) -> None:
        self.engine = create_engine(url.set(drivername="sqlite+pysqlite"), hide_parameters=True)
        event.listen(self.engine, "connect", prepare_connection)
        self._executor = ThreadPoolExecutor(1, "flowactions sqlite")

    async def run(self, work: Callable[[SyncConnection], T], deadline: Deadline) -> T:
        """Run the work as one transaction, in the thread.

        A cancelled caller waits until the transaction has ended, because the thread holds the lock until then.

        Raises:
            DBAPIError: the database failed.
        """
        loop = asyncio.get_running_loop()
        return await shielded(loop.run_in_executor(self._executor, self._run, work, deadline))

    async def read(self, work: Callable[[SyncConnection], T]) -> T:
        """Run a query in the thread, after what it is doing, and without a lock.

        Raises:
            DBAPIError: the database failed.
        """
        loop = asyncio.get_running_loop()
        return await shielded(loop.run_in_executor(self._executor, self._read, work))

    def close(self) -> None:
        """Close the connections. A transaction that is running ends by itself."""
        self._executor.shutdown(wait=False)
        self.engine.dispose()

    def _run(self, work: Callable[[SyncConnection], T], deadline: Deadline) -> T:
        with self.engine.connect() as connection:
            try:
                shorten_wait(connection, deadline.left)
                connection.exec_driver_sql("BEGIN IMMEDIATE")
                done = work(connection)
                connection.commit()
            except DBAPIError:
                with suppress(Exception):
                    connection.rollback()  # a cursor that is left behind would keep its lock
                connection.invalidate()
                raise
            finally:
                if not connection.invalidated:
                    restore_wait(connection)
        return done

    def _read(self, work: Callable[[SyncConnection], T]) -> T:
        with self.engine.connect() as connection:
            return work(connection)
