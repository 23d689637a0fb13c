"""The engine, transactions, and what differs between SQLite and PostgreSQL."""

from __future__ import annotations

import asyncio
import logging
import math
import sqlite3
import time
from collections.abc import AsyncIterator, Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack, asynccontextmanager, closing, contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Final, Self, TypeAlias, TypeVar

import asyncpg
import msgspec
from sqlalchemy import (
    BigInteger,
    Column,
    ColumnElement,
    Engine,
    FromClause,
    Table,
    Text,
    bindparam,
    cast,
    column,
    create_engine,
    delete,
    event,
    extract,
    func,
    select,
)
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.engine import Connection as SyncConnection
from sqlalchemy.engine import make_url
from sqlalchemy.exc import (
    DataError,
    DBAPIError,
    DisconnectionError,
    IntegrityError,
    NotSupportedError,
)
from sqlalchemy.exc import TimeoutError as PoolTimeoutError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, create_async_engine

from flowactions_plugin.clock import Clock, system_clock
from flowactions_plugin.errors import SchemaOutdated, StorageUnavailable
from flowactions_plugin.storage import migrations

log = logging.getLogger("flowactions.storage")

T = TypeVar("T")

Connection: TypeAlias = AsyncConnection
"""An open connection, for modules that pass one on without speaking SQL."""

BUSY_TIMEOUT_MS: Final = 30_000
"""How long a connection of ours waits for SQLite's one writer."""

HOST_COMMIT_SECONDS: Final = 0.02
"""How long a host's commit is given to be through."""

WAL_PAUSE_MS: Final = 50

CONNECT_SECONDS: Final = 10
"""How long a connection to PostgreSQL may take to open."""

STATEMENT_SECONDS: Final = 30
"""How long PostgreSQL may take over a statement: a server that fell silent is noticed by that."""

IDLE_SECONDS: Final = 1
"""How long a connection to PostgreSQL may lie idle and be used again without a look."""

SCHEMA_LOCK: Final = int.from_bytes(b"flowact", "big")
"""PostgreSQL's advisory lock for making and changing tables."""

MISTAKE_CLASSES: Final = ("22", "23")
"""SQLSTATE classes that say that a value is wrong (data, constraint), not that the database is away."""


class Database:
    """One database, shared with the host or the plugin's own; an async context manager.

    Args:
        url: opened when ``engine`` is ``None``.
        engine: the host's engine; its life stays the host's.
        clock: the time for SQLite and for ids. PostgreSQL's own clock decides there what is due, so that
            workers on several machines agree.
        statement_seconds: how long PostgreSQL may take over a statement; ``None``: as long as it takes.
    """

    def __init__(
        self,
        url: str,
        engine: AsyncEngine | None = None,
        clock: Clock = system_clock,
        *,
        statement_seconds: float | None = STATEMENT_SECONDS,
    ) -> None:
        self._shared = engine
        self._url = make_url(url)
        self._engine = engine
        self._direct: Engine | None = None
        self._thread: ThreadPoolExecutor | None = None
        self.clock = clock
        self._statement_seconds = statement_seconds
        self._writer = asyncio.Lock()
        self._prepared = False
        self._now = bindparam("now", callable_=lambda: int(self.clock() * 1000), type_=BigInteger)
        self._after_commit: dict[int, list[Callable[[], None]]] = {}
        self.dialect = (engine.url if engine is not None else self._url).get_backend_name()

    @property
    def directory(self) -> Path:
        """Where the database file lies; the working directory when there is no file."""
        url = self._shared.url if self._shared is not None else self._url
        if self.dialect == "sqlite" and url.database and url.database != ":memory:":
            return Path(url.database).absolute().parent
        return Path.cwd()

    async def __aenter__(self) -> Self:
        """Open the engine and see to the tables.

        A database without tables gets them. Tables of an earlier release are brought up to date where the
        database is embedded (SQLite); on PostgreSQL, where others may be at work on them, `migrate` does it.

        A database that does not answer yet is no reason for the host not to start: it is logged, and the
        tables are seen to at the first use that finds it.

        Raises:
            SchemaOutdated: PostgreSQL's tables are of an earlier release.
        """
        self._writer = asyncio.Lock()
        self._prepared = False
        self._engine = self._shared
        if self._shared is None:
            self._engine = self._own_engine(self._statement_seconds)
            if self.dialect == "sqlite":
                self._direct = create_engine(self._url.set(drivername="sqlite+pysqlite"))
                event.listen(self._direct, "connect", _prepare_sqlite)
                self._thread = ThreadPoolExecutor(1, "flowactions sqlite")
        try:
            with _translated():
                await self._prepare()
        except SchemaOutdated:
            await self.__aexit__()
            raise
        except StorageUnavailable as exc:
            log.error("starting without the database, which does not answer: %s", exc)  # noqa: TRY400
        except BaseException:
            await self.__aexit__()
            raise
        return self

    async def __aexit__(self, *_exc: object) -> None:
        engine, self._engine = self._engine, None
        if self._shared is None and engine is not None:
            # Whoever comes now is told that it is closed, and does not open a pool that nobody would close.
            await engine.dispose()
        if self._direct is not None and self._thread is not None:
            self._thread.shutdown(wait=False)
            self._direct.dispose()
            self._direct = self._thread = None

    async def migrate(self, *, dry: bool = False) -> tuple[str | None, str]:
        """Bring the tables to this release's revision; not while the database is open.

        Args:
            dry: only look.

        Returns:
            The revision before, ``None`` for a database without tables, and this release's.

        Raises:
            StorageUnavailable: the database failed; nothing was changed.
        """
        self._engine = self._shared or self._own_engine(None)
        try:
            with _translated():
                async with self._schema_transaction() as connection:
                    before = await connection.run_sync(migrations.current)
                    if not dry:
                        await connection.run_sync(migrations.prepare, "upgrade")
        finally:
            await self.__aexit__()
        return before, migrations.head()

    async def _prepare(self) -> None:
        if self._prepared:
            return
        async with self._schema_transaction() as connection:
            await connection.run_sync(migrations.prepare, "upgrade" if self.dialect == "sqlite" else "refuse")
        self._prepared = True

    @asynccontextmanager
    async def _schema_transaction(self) -> AsyncIterator[AsyncConnection]:
        if self._engine is not None and self.dialect == "sqlite" and self._shared is None:
            await asyncio.to_thread(_switch_to_wal, self._engine)
        async with self._transaction() as connection:
            if self.dialect == "postgresql":
                # Processes that start together see to the tables one after the other.
                await connection.execute(select(func.pg_advisory_xact_lock(SCHEMA_LOCK)))
            yield connection

    def _own_engine(self, statement_seconds: float | None) -> AsyncEngine:
        if self.dialect == "sqlite":
            engine = create_async_engine(self._url)
            event.listen(engine.sync_engine, "connect", _prepare_sqlite)
            return engine
        engine = create_async_engine(
            self._url, connect_args={"timeout": CONNECT_SECONDS, "command_timeout": statement_seconds}
        )
        event.listen(engine.sync_engine, "checkin", _note_use)
        event.listen(engine.sync_engine, "checkout", partial(_look_at, engine.sync_engine.dialect))
        return engine

    def now(self) -> ColumnElement[int]:
        """Give the present, Unix milliseconds, as an SQL expression by the clock that this database goes by."""
        if self.dialect == "postgresql":
            # Stable within a statement, so an index on a time can be searched with it.
            return cast(func.floor(extract("epoch", func.statement_timestamp()) * 1000), BigInteger)
        return self._now

    def insert_unless_there(self, table: Table) -> postgresql.Insert | sqlite.Insert:
        """Start an INSERT that does nothing for a row whose unique key is taken."""
        if self.dialect == "postgresql":
            return postgresql.insert(table).on_conflict_do_nothing()
        return sqlite.insert(table).on_conflict_do_nothing()

    def insert_or_replace(
        self,
        table: Table,
        values: Mapping[str, Any],
        where: ColumnElement[bool] | None = None,
        keep: Collection[str] = (),
    ) -> postgresql.Insert | sqlite.Insert:
        """Make an INSERT that takes the place of the row that has its primary key.

        Args:
            table: into which.
            values: of all columns.
            where: what must hold of the present row for that; otherwise it stays, and none is returned.
            keep: columns of the present row that stay.
        """
        key = [column.name for column in table.primary_key]
        rest = {name: value for name, value in values.items() if name not in key and name not in keep}
        kind = postgresql.insert if self.dialect == "postgresql" else sqlite.insert
        return kind(table).values(values).on_conflict_do_update(index_elements=key, set_=rest, where=where)

    async def prune(self, moment: Column[int], older_than_ms: int, limit: int) -> int:
        """Remove rows whose moment is longer ago than this, oldest first, by an index on it.

        Args:
            moment: a column of times.
            older_than_ms: how long ago.
            limit: about how many at the most, so that nobody waits for the transaction; those of one millisecond go
                together.

        Returns:
            How many there were.

        Raises:
            StorageUnavailable: the database failed.
        """
        old = select(moment).where(moment < self.now() - older_than_ms).order_by(moment).limit(limit)
        # Looked for without a lock: mostly there is nothing, and SQLite has one writer only.
        async with self.read() as connection:
            times = (await connection.execute(old)).scalars().all()
        if not times:
            return 0
        async with self.write() as connection:
            return (await connection.execute(delete(moment.table).where(moment <= times[-1]))).rowcount

    def table_of(self, name: str, **columns: type[Any]) -> FromClause:
        """Make a table of rows that come with the statement, so that one statement serves any number of them.

        Args:
            name: of the table, and of the parameter that gives its rows, written by `rows`.
            columns: each column's SQLAlchemy type.
        """
        given = bindparam(name, type_=Text)
        if self.dialect == "postgresql":
            made = func.json_to_recordset(cast(given, postgresql.JSON)).table_valued(
                *(column(key, kind) for key, kind in columns.items())
            )
            return made.render_derived(name=name, with_types=True)
        each = func.json_each(given).table_valued("value")
        values = (
            cast(func.json_extract(each.c.value, f"$.{key}"), kind).label(key) for key, kind in columns.items()
        )
        return select(*values).subquery(name)

    @staticmethod
    def rows(rows: Sequence[Mapping[str, Any]]) -> str:
        """Write JSON-ready rows as the parameter of a `table_of`."""
        return msgspec.json.encode(rows).decode()

    @asynccontextmanager
    async def read(self, connection: AsyncConnection | None = None) -> AsyncIterator[AsyncConnection]:
        """Open a connection for reading.

        Args:
            connection: the host's own open connection, to see what its transaction has written.

        Raises:
            StorageUnavailable: the database failed.
        """
        with _translated():
            if connection is not None:
                yield connection
                return
            await self._prepare()
            async with self._connection() as opened:
                yield opened

    @asynccontextmanager
    async def write(self, connection: AsyncConnection | None = None) -> AsyncIterator[AsyncConnection]:
        """Open a transaction that commits when the block ends and rolls back when it raises.

        Args:
            connection: the host's own open connection. The block then joins the host's transaction, and the
                host commits.

        Raises:
            StorageUnavailable: the database failed.
        """
        with _translated():
            if connection is not None:
                yield connection
                return
            await self._prepare()
            async with self._transaction() as opened:
                yield opened

    async def at_once(self, work: Callable[[SyncConnection], T]) -> T:
        """Run a piece of SQL as a transaction of its own, with as few changes of hands as can be.

        It may run more than one statement on SQLite only: on PostgreSQL each would be its own transaction.

        Args:
            work: gets the connection, and runs in another thread on SQLite.

        Raises:
            StorageUnavailable: the database failed.
        """
        with _translated():
            await self._prepare()
            if self._thread is not None:
                # All in one hop to the thread; through the asynchronous driver it would be a dozen.
                async with self._writer:
                    running = asyncio.get_running_loop().run_in_executor(self._thread, self._run, work)
                    try:
                        return await asyncio.shield(running)
                    except asyncio.CancelledError:
                        # The thread goes on, and so does its hold on the database.
                        await asyncio.wait({running})
                        raise
            if self.dialect == "sqlite":
                async with self._transaction() as opened:
                    return await opened.run_sync(work)
            async with self._connection() as opened:
                await opened.execution_options(isolation_level="AUTOCOMMIT")
                return await opened.run_sync(work)

    def _run(self, work: Callable[[SyncConnection], T]) -> T:
        assert self._direct is not None  # noqa: S101  made with the thread
        with self._direct.connect() as connection:
            try:
                connection.exec_driver_sql("BEGIN IMMEDIATE")
                done = work(connection)
                connection.commit()
            except DBAPIError:
                connection.invalidate()
                raise
        return done

    async def notify(self, channel: str) -> None:
        """Tell whoever listens on a channel of PostgreSQL.

        Raises:
            StorageUnavailable: the database failed.
        """
        await self.at_once(lambda connection: connection.execute(select(func.pg_notify(channel, ""))))

    async def listen(self, channel: str, heard: Callable[[], None]) -> None:
        """Listen on a channel of PostgreSQL, on a connection of its own, until that is lost.

        Args:
            channel: which.
            heard: called at each notification.

        Raises:
            StorageUnavailable: the database failed.
        """
        with _translated():
            async with self._connection() as opened:
                driver: Any = (await opened.get_raw_connection()).driver_connection
                if not hasattr(driver, "add_termination_listener"):
                    raise StorageUnavailable("the host's database driver cannot listen")
                lost = asyncio.Event()

                def note(*_: object) -> None:
                    heard()

                def end(*_: object) -> None:
                    lost.set()

                driver.add_termination_listener(end)
                await driver.add_listener(channel, note)
                try:
                    await lost.wait()
                finally:
                    # Not to be given to others as it is: it would go on listening.
                    await opened.invalidate()

    def after_commit(self, connection: AsyncConnection, call: Callable[[], None]) -> None:
        """Have something called when the transaction of a connection has committed.

        Args:
            connection: given by `write`, or the host's own. The host's commit is heard of just before it is
                made, so the call follows it after a moment, and without a guarantee.
            call: quick, and does not raise.
        """
        waiting = self._after_commit.get(id(connection))
        if waiting is not None:
            waiting.append(call)
            return
        loop = asyncio.get_running_loop()
        event.listen(
            connection.sync_connection,
            "commit",
            lambda _: loop.call_later(HOST_COMMIT_SECONDS, call),
            once=True,
        )

    @asynccontextmanager
    async def _transaction(self) -> AsyncIterator[AsyncConnection]:
        calls: list[Callable[[], None]] = []
        async with AsyncExitStack() as stack:
            if self.dialect == "sqlite":
                # One writer at a time: waiting here is fair, waiting in SQLite is polling.
                await stack.enter_async_context(self._writer)
            opened = await stack.enter_async_context(self._connection())
            await self._begin(opened)
            self._after_commit[id(opened)] = calls
            try:
                yield opened
            finally:
                del self._after_commit[id(opened)]
            await opened.commit()
        for call in calls:
            call()

    @asynccontextmanager
    async def _connection(self) -> AsyncIterator[AsyncConnection]:
        if self._engine is None:
            raise StorageUnavailable("The database is not open: the lifespan is not running.")
        async with self._engine.connect() as opened:
            try:
                yield opened
            except DBAPIError:
                # A statement of SQLite's that failed leaves a cursor behind. When that is collected, whatever thread
                # collects it waits until the connection is idle: not to be had from one that waits for a lock.
                if self.dialect == "sqlite" and self._shared is None:
                    await opened.invalidate()
                raise

    async def _begin(self, connection: AsyncConnection) -> None:
        await connection.begin()
        if self.dialect != "sqlite":
            return
        driver: Any = (await connection.get_raw_connection()).driver_connection
        # A host's engine may begin transactions by itself.
        if not driver.in_transaction:
            await connection.exec_driver_sql("BEGIN IMMEDIATE")


def _note_use(_connection: Any, record: Any) -> None:
    record.info["used_at"] = time.monotonic()


def _look_at(dialect: Any, connection: Any, record: Any, _proxy: object) -> None:
    """Replace a connection that a restart of the server has cut before a caller meets it.

    A connection that was closed knows it by itself. Only one that was idle for a while is asked, for that takes round
    trips.
    """
    if connection.driver_connection.is_closed():
        raise DisconnectionError
    if time.monotonic() - record.info.get("used_at", math.inf) > IDLE_SECONDS:
        try:
            dialect.do_ping(connection)
        except dialect.loaded_dbapi.Error as exc:
            raise DisconnectionError from exc


def _prepare_sqlite(connection: Any, _record: object) -> None:
    cursor = connection.cursor()
    cursor.execute(f"PRAGMA busy_timeout = {BUSY_TIMEOUT_MS}")
    cursor.close()


def _switch_to_wal(engine: AsyncEngine) -> None:
    """Set the journal's mode, which stays with the file.

    On a new file, processes that do it at once can wait for each other for ever. So none waits for long: it lets go,
    of its connection too, and tries again.
    """
    (path,), given = engine.dialect.create_connect_args(engine.url)
    options: dict[str, Any] = {**given, "timeout": WAL_PAUSE_MS / 1000}
    for left in reversed(range(BUSY_TIMEOUT_MS // WAL_PAUSE_MS)):
        try:
            with closing(sqlite3.connect(path, **options)) as connection:
                connection.execute("PRAGMA journal_mode = WAL")
        except sqlite3.OperationalError as exc:
            if not left:
                raise StorageUnavailable(f"the database failed: OperationalError: {exc}") from exc
        else:
            return


@contextmanager
def _translated() -> Iterator[None]:
    """Turn a failing database into `StorageUnavailable`, and let mistakes in our own SQL be seen as such."""
    try:
        yield
    except (DataError, IntegrityError, NotSupportedError):
        raise
    except (DBAPIError, PoolTimeoutError, OSError, asyncpg.PostgresError, asyncpg.InterfaceError) as exc:
        reason = exc.orig if isinstance(exc, DBAPIError) else exc
        if str(getattr(reason, "sqlstate", "")).startswith(MISTAKE_CLASSES):
            raise
        raise StorageUnavailable(f"the database failed: {type(reason).__name__}: {reason}") from exc
