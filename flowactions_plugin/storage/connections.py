"""The connections to one database: the host's engine or the plugin's own, and those for single short statements."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, suppress
from typing import Any, Final, TypeVar

from sqlalchemy import create_engine, event, text
from sqlalchemy.engine import URL, ExceptionContext
from sqlalchemy.engine import Connection as SyncConnection
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, create_async_engine
from sqlalchemy.pool import ConnectionPoolEntry

from flowactions_plugin.errors import StorageUnavailable
from flowactions_plugin.storage import postgresql, sqlite
from flowactions_plugin.storage.outages import ADVICE, UNUSABLE_URL, code_of
from flowactions_plugin.storage.sqlite import Deadline, limit_wait, stop_once
from flowactions_plugin.storage.waiting import READ_ONLY, shielded

T = TypeVar("T")

OWN_SCHEMA: Final[Mapping[str, Any]] = {"schema_translate_map": None}
"""That of a host's engine or transaction is for the host's tables."""

MOST_KEPT: Final = 4
"""How many connections are kept at the most: for claims, those beside them, outcomes, enqueues. The pool has the rest, at
least one for LISTEN and one for transactions."""

NO_USER: Final = (
    "the URL names no user, and this system has no name for the user of this process: name the user in the URL"
)

_SET_PATH: Final = text("SELECT set_config('search_path', :path, true)")

TOO_MANY: Final = "53300"
"""SQLSTATE: the server, or the role, has no connection to spare."""


class Engines:
    """Opens, uses and closes the engines of one database.

    Args:
        url: the database's.
        shared: the host's engine, which is not closed here; ``None``: the plugin creates its own.

    Attributes:
        current: the engine in use; ``None`` while the database is closed.
        shared: as given.
        own_options: execution options of the plugin's own transactions, for whose isolation its statements are written.
        thread: runs short transactions on the plugin's own SQLite database; ``None`` elsewhere.
        unlisten: set when LISTEN has to give its connection up.
        failovers: how often all older connections were replaced, because the server took no writes.
        search_path: of the connection on which the tables were found; ``None``: not known.
        sets_path: whether own transactions set it.
    """

    def __init__(self, url: URL, shared: AsyncEngine | None) -> None:
        self._url = url
        self._is_sqlite = url.get_backend_name() == "sqlite"
        self.shared = shared
        self.own_options = (
            OWN_SCHEMA if self._is_sqlite else {**OWN_SCHEMA, "isolation_level": "READ COMMITTED"}
        )
        self.current: AsyncEngine | None = shared
        self.thread: SQLiteThread | None = None
        self.unlisten = asyncio.Event()
        self.failovers = 0
        self.search_path: str | None = None
        self.sets_path = False
        # In autocommit mode: to check one out of the pool and back in costs more than a small statement.
        self._kept: list[AsyncConnection] = []
        self._most_kept = 0  # none while the database is closed
        self._turn = asyncio.Lock()
        self._returned = asyncio.Event()

    @property
    def may_be_single(self) -> bool:
        """Whether a statement by itself runs as READ COMMITTED, and finds the tables: not where the database has another default."""
        known = getattr(self.current and self.current.dialect, "default_isolation_level", None)
        return known in {None, "READ COMMITTED"} and not self.sets_path

    def lacks_tables(self) -> bool:
        """Have own transactions set the search_path from now on, and return whether those that found no tables may find them then.

        Somebody gives connections back, to the host's pool or to a pooler, with another one.
        """
        self.sets_path = self.search_path is not None
        return self.sets_path

    async def set_path(self, connection: AsyncConnection) -> None:
        """Set the search_path of an own transaction, until it ends, if that is needed."""
        if self.sets_path:
            await connection.execute(_SET_PATH, {"path": self.search_path})

    def open(self, statement_seconds: float | None, connections: int) -> None:
        """Create the engines. No connection is opened yet.

        Args:
            statement_seconds: how long a statement may take on PostgreSQL; ``None``: without limit.
            connections: how many connections to PostgreSQL are opened at the most.

        Raises:
            OSError: a file that the URL names cannot be read.
        """
        if self._is_sqlite and (driver := logging.getLogger("aiosqlite")).level == logging.NOTSET:
            # It logs each statement with its values at debug level. Whoever wants these lines sets the level of its logger.
            driver.setLevel(logging.INFO)
        if self.shared is not None:
            self.current = self.shared
        elif self._is_sqlite:
            self.current = create_async_engine(
                self._url,
                hide_parameters=True,
                pool_timeout=sqlite.WAIT_SECONDS,
                connect_args=sqlite.driver_arguments(),
            )
            event.listen(self.current.sync_engine, "connect", stop_once)
            self.thread = SQLiteThread(self._url)
            event.listen(self.current.sync_engine, "checkin", self._close_late)
        else:
            self.current = postgresql.own_engine(self._url, statement_seconds, connections)
            event.listen(self.current.sync_engine, "checkin", self._close_late)
            event.listen(self.current.sync_engine, "handle_error", self._leave_read_only)
            self._most_kept = min(MOST_KEPT, connections - 2)

    async def close(self) -> None:
        """Close the plugin's own engines and stop using the host's."""
        # First, so that a later caller gets an error and does not open a pool that is never closed.
        engine, self.current, self._most_kept = self.current, None, 0
        await self._give_all_back()
        if self.shared is None and engine is not None:
            await engine.dispose()
        if self.thread is not None:
            self.thread.close()
            self.thread = None

    def _close_late(self, _connection: object, record: ConnectionPoolEntry) -> None:
        """Close a connection that comes back after the database was closed: its pool would keep it."""
        if self.current is None:
            record.invalidate()

    def _leave_read_only(self, context: ExceptionContext) -> None:
        """Have all own connections replaced after PostgreSQL refused a write as read-only.

        After a failover, the name of the URL leads to another server, while connections that were opened before stay at the former one.
        """
        if code_of(context.original_exception) == READ_ONLY:
            context.is_disconnect = True  # so the pool replaces all connections that are older
            self.failovers += 1
            for kept in self._kept:
                postgresql.mark_unused(kept.sync_connection)
            self.unlisten.set()

    @asynccontextmanager
    async def connect(self, options: Mapping[str, Any] | None = None) -> AsyncIterator[AsyncConnection]:
        """Check a connection out of the pool while the block runs.

        Args:
            options: its execution options; ``None``: `own_options`.

        Raises:
            StorageUnavailable: the database is not open, or no connection became free.
        """
        connection = await self._check_out()
        try:
            # No round trip: BEGIN names the isolation. The pool puts back what the host has set.
            await connection.execution_options(**(self.own_options if options is None else options))
            yield connection
        except DBAPIError:
            # A failed statement of SQLite's leaves a cursor behind. The thread that collects it waits until the
            # connection is idle, which does not happen while it waits for a lock.
            if self.thread is not None:
                # Two closings at once would wait for a thread that has ended: a cancelled caller waits for this one.
                await shielded(connection.invalidate())
            raise
        finally:
            await self._check_in(connection)

    @asynccontextmanager
    async def autocommit(self) -> AsyncIterator[AsyncConnection]:
        """Give a connection to PostgreSQL of which each statement is a transaction to a block; after an error the pool tests it.

        Raises:
            StorageUnavailable: the database is not open, or no connection became free.
        """
        while self._kept and not postgresql.is_fresh(self._kept[-1].sync_connection):
            await self._give_back(self._kept.pop())
        known, failovers = self._kept.pop() if self._kept else None, self.failovers
        connection, is_kept = known or await self._check_out(), False
        try:
            if known is None:
                await connection.execution_options(**{**self.own_options, "isolation_level": "AUTOCOMMIT"})
            yield connection
            has_room = len(self._kept) < self._most_kept and not self._turn.locked()
            is_kept = has_room and failovers == self.failovers  # after a failover the pool replaces it
        finally:
            if is_kept:
                postgresql.mark_used(connection.sync_connection)
                self._kept.append(connection)
                self._returned.set()
            else:
                await self._check_in(connection)

    async def _give_all_back(self) -> None:
        """Return what is kept to the pool."""
        while self._kept:
            await self._give_back(self._kept.pop())

    async def _give_back(self, kept: AsyncConnection) -> None:
        """Return a connection that was kept to the pool, which tests it before its next use if it was idle for long."""
        info, used_at = kept.info, kept.info["used_at"]
        await kept.close()
        info["used_at"] = used_at  # the pool has set it to now

    async def _check_out(self) -> AsyncConnection:
        """Check a connection out. If the server has none to spare, wait for one of this process, the oldest caller first."""
        if not self._turn.locked() and (found := await self._spare()) is not None:
            return found
        is_told = True  # that the server has none to spare: meanwhile it may have stopped answering
        try:
            async with asyncio.timeout(sqlite.WAIT_SECONDS), self._turn:
                while True:
                    self._returned.clear()
                    await self._give_all_back()
                    is_told = False
                    if (found := await self._spare()) is not None:
                        return found
                    is_told = True
                    self.unlisten.set()
                    # Another process may give one back. Not `wait_for`, which on Python 3.11 may swallow a cancellation.
                    with suppress(TimeoutError):
                        async with asyncio.timeout(0.25):
                            await self._returned.wait()
        except TimeoutError:
            if not is_told:
                raise
            raise StorageUnavailable(f"the database failed: {ADVICE[TOO_MANY]}", code=TOO_MANY) from None

    async def _spare(self) -> AsyncConnection | None:
        """Return a connection of the pool or a new one, ``None`` if the server has none to spare."""
        if self.current is None:
            raise StorageUnavailable("The database is not open: the lifespan is not running.")
        try:
            return await self.current.connect()
        except Exception as exc:
            if code_of(exc) == TOO_MANY:
                return None
            if isinstance(
                exc.__cause__ or exc, KeyError
            ):  # of getpass; since Python 3.13 the cause of an OSError
                raise StorageUnavailable(f"the database failed: {NO_USER}", code=UNUSABLE_URL) from exc
            raise

    async def _check_in(self, connection: AsyncConnection) -> None:
        """Return a connection to the pool, and tell callers that wait for one. A caller that is cancelled does not wait."""
        try:
            await asyncio.shield(asyncio.ensure_future(connection.close()))
        finally:
            self._returned.set()


class SQLiteThread:
    """Runs a whole transaction in one thread with the synchronous driver.

    That takes one thread switch. With the asynchronous driver, each statement takes one.
    """

    def __init__(self, url: URL) -> None:
        self.engine = create_engine(
            url.set(drivername="sqlite+pysqlite"), hide_parameters=True, connect_args=sqlite.driver_arguments()
        )
        self._executor = ThreadPoolExecutor(1, "flowactions sqlite")
        try:
            # Now: work for a thread that cannot start would stay in its queue, and run after its caller was told that it failed.
            self._executor.submit(int)
        except RuntimeError as exc:
            raise StorageUnavailable(f"the thread for the SQLite database did not start: {exc}") from exc

    def run(self, work: Callable[[SyncConnection], T], deadline: Deadline | None) -> Awaitable[T]:
        """Run work in the thread, after what it is doing. A cancelled caller waits for its end: the thread has the lock until then.

        Args:
            work: what is run.
            deadline: until when a transaction for it waits for SQLite's lock; ``None``: it only reads, without a lock.

        Raises:
            DBAPIError: the database failed.
        """
        return shielded(asyncio.get_running_loop().run_in_executor(self._executor, self._run, work, deadline))

    def close(self) -> None:
        """Close the connections. A transaction that is running ends by itself."""
        self.engine.pool.dispose()
        self._executor.submit(self.engine.pool.dispose)  # for what is in use
        self._executor.shutdown(wait=False)

    def _run(self, work: Callable[[SyncConnection], T], deadline: Deadline | None) -> T:
        with self.engine.connect() as connection:
            if deadline is None:
                return work(connection)
            try:
                limit_wait(connection, deadline.left)
                connection.exec_driver_sql("BEGIN IMMEDIATE")
                done = work(connection)
                connection.commit()
            except DBAPIError:
                connection.invalidate()  # a statement of it may not have ended
                raise
            finally:
                limit_wait(connection, None)
        return done
