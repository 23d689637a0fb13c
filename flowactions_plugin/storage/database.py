"""One database: its engine, the tables, transactions, and the SQL that differs between SQLite and PostgreSQL."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from pathlib import Path
from typing import Final, Self, TypeAlias, TypeVar

from sqlalchemy import (
    Column,
    Engine,
    create_engine,
    delete,
    event,
    func,
    select,
)
from sqlalchemy.engine import Connection as SyncConnection
from sqlalchemy.engine import make_url
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, create_async_engine

from flowactions_hookspecs import HostInvalid
from flowactions_plugin.clock import Clock, system_clock
from flowactions_plugin.errors import SchemaOutdated, StorageUnavailable
from flowactions_plugin.storage import migrations
from flowactions_plugin.storage.dialect import Dialect
from flowactions_plugin.storage.outages import Outages, code_of
from flowactions_plugin.storage.postgresql import listen, own_engine
from flowactions_plugin.storage.sqlite import (
    WAIT_SECONDS,
    Deadline,
    Writer,
    begin_immediate,
    prepare_connection,
    set_busy_timeout,
    shorten_wait,
    switch_to_wal,
    waiting_until,
)
from flowactions_plugin.storage.transactions import HostTransactions, Joined, to_the_end
from flowactions_plugin.storage.urls import is_in_memory, sqlite_path

log = logging.getLogger("flowactions.storage")

T = TypeVar("T")

Connection: TypeAlias = AsyncConnection
"""An open connection, for modules that pass one on without speaking SQL."""

STATEMENT_SECONDS: Final = 30
"""How long PostgreSQL may take over a statement: a server that fell silent is noticed by that."""

SCHEMA_LOCK: Final = int.from_bytes(b"flowact", "big")
"""PostgreSQL's advisory lock for making and changing tables."""

NOT_ALLOWED: Final = "42501"
"""SQLSTATE: insufficient privilege."""

FATAL_AT_START: Final = ("42", "SQLITE_CANTOPEN", "SQLITE_NOTADB")
"""Codes of errors with which a host does not start: the database answers, and waiting changes nothing."""


class Database(Dialect):
    """One database, shared with the host or the plugin's own; an async context manager.

    Args:
        url: opened when ``engine`` is ``None``; parsed by `parse_database_url`.
        engine: the host's engine, or what returns it when the database is opened; its life stays the host's.
        clock: the time for SQLite and for ids. PostgreSQL's own clock decides there what is due, so that
            workers on several machines agree.
        statement_seconds: how long PostgreSQL may take over a statement; ``None``: as long as it takes.

    Raises:
        HostInvalid: the host's engine is of a database in memory.
    """

    def __init__(
        self,
        url: str,
        engine: AsyncEngine | Callable[[], AsyncEngine | None] | None = None,
        clock: Clock = system_clock,
        *,
        statement_seconds: float | None = STATEMENT_SECONDS,
    ) -> None:
        self._given = engine if callable(engine) else lambda: engine
        self._own_url = url
        super().__init__("", clock)
        self._bind()
        self._direct: Engine | None = None
        self._thread: ThreadPoolExecutor | None = None
        self._statement_seconds = statement_seconds
        self._writer = Writer()
        self._prepared = False
        self._after_commit: dict[int, list[Callable[[], None]]] = {}
        self._lent: set[int] = set()

    def _bind(self) -> None:
        """Reads which database it is.

        Raises:
            HostInvalid: the host's engine is of a database in memory.
        """
        self._shared = self._given()
        self._url = make_url(self._own_url) if self._shared is None else self._shared.url
        self.dialect = self._url.get_backend_name()
        if self.dialect == "sqlite" and is_in_memory(self._url):
            raise HostInvalid(
                "Host.database is an SQLite database in memory, whose only connection all would have to share: "
                "give it a file"
            )
        self._engine: AsyncEngine | None = self._shared
        self._outages = Outages(self._url)
        self._host = HostTransactions(self._shared)

    @property
    def directory(self) -> Path:
        """Where the database file lies; the working directory when there is no file."""
        path = sqlite_path(self._url) if self.dialect == "sqlite" else None
        return Path.cwd() if path is None else path.parent

    async def __aenter__(self) -> Self:
        """Open the engine and see to the tables, as `open` does, for a host."""
        return await self.open(required=False)

    async def open(self, *, required: bool) -> Self:
        """Open the engine and see to the tables; closed by leaving the context.

        A database without tables gets them. Tables of an earlier release are brought up to date where the
        database is embedded (SQLite); on PostgreSQL, where others may be at work on them, `migrate` does it.

        Args:
            required: whether it has to answer. A database that does not answer yet is no reason for a host not to
                start: it is logged, and the tables are seen to at the first use that finds it.

        Raises:
            SchemaOutdated: PostgreSQL's tables are of an earlier release, or not there and not to be made.
            StorageMisplaced: there is no directory for an SQLite file.
            StorageUnavailable: it answers, but not with what is needed, or it does not answer and has to.
        """
        self._bind()
        self._writer = Writer()
        self._prepared = False
        try:
            with self._outages.translated():
                self._open_engines()
                await self._prepare(Deadline())
        except StorageUnavailable as exc:
            refused = isinstance(exc, SchemaOutdated) or (exc.code or "").startswith(FATAL_AT_START)
            if required or refused or self._engine is None:
                await self.__aexit__()
                raise
            log.error("starting without the database, which does not answer: %s", exc)  # noqa: TRY400
        except BaseException:
            await self.__aexit__()
            raise
        return self

    def _open_engines(self) -> None:
        self._engine = self._shared or self._own_engine(self._statement_seconds)
        if self._shared is None and self.dialect == "sqlite":
            self._direct = create_engine(self._url.set(drivername="sqlite+pysqlite"), hide_parameters=True)
            event.listen(self._direct, "connect", prepare_connection)
            self._thread = ThreadPoolExecutor(1, "flowactions sqlite")

    async def __aexit__(self, *_exc: object) -> None:
        engine, self._engine = self._engine, None
        self._host.close()
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
            SchemaNewer: the tables are of a later release.
            StorageMisplaced: there is no directory for an SQLite file.
            StorageUnavailable: the database failed; nothing was changed.
        """
        try:
            with self._outages.translated():
                self._engine = self._shared or self._own_engine(None)
                async with self._schema_transaction(Deadline()) as connection:
                    before = await connection.run_sync(migrations.known)
                    if not dry:
                        await connection.run_sync(migrations.prepare, "upgrade")
        finally:
            await self.__aexit__()
        return before, migrations.head()

    async def _prepare(self, deadline: Deadline) -> None:
        if self._prepared:
            return
        async with self._schema_transaction(deadline) as connection:
            try:
                await connection.run_sync(
                    migrations.prepare, "upgrade" if self.dialect == "sqlite" else "refuse"
                )
            except DBAPIError as exc:
                if code_of(exc) != NOT_ALLOWED:
                    raise
                raise SchemaOutdated(
                    "the tables cannot be made or read by this database role: run 'flowactions migrate' as one that "
                    "may make them, and give this one the rights on them",
                    code=NOT_ALLOWED,
                ) from exc
        self._prepared = True

    @asynccontextmanager
    async def _schema_transaction(self, deadline: Deadline) -> AsyncIterator[AsyncConnection]:
        if self._engine is not None and self.dialect == "sqlite" and self._shared is None:
            await asyncio.to_thread(switch_to_wal, self._engine, deadline)
        async with self._transaction(deadline) as connection:
            if self.dialect == "postgresql":
                # Processes that start together see to the tables one after the other.
                await connection.execute(select(func.pg_advisory_xact_lock(SCHEMA_LOCK)))
            yield connection

    def _own_engine(self, statement_seconds: float | None) -> AsyncEngine:
        if self.dialect == "postgresql":
            return own_engine(self._url, statement_seconds)
        engine = create_async_engine(self._url, hide_parameters=True, pool_timeout=WAIT_SECONDS)
        event.listen(engine.sync_engine, "connect", prepare_connection)
        return engine

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

    @contextmanager
    def using(self, transaction: AsyncConnection | None) -> Iterator[None]:
        """Keep a host's transaction for the call that came with it, and see first that it can be joined.

        Args:
            transaction: what the host gave; ``None`` is fine.

        Raises:
            TransactionInvalid: it cannot; the message says what it has to be.
        """
        if transaction is None or self._is_ours(transaction):
            yield
            return
        with self._host.reserved(transaction):
            yield

    @asynccontextmanager
    async def read(self, connection: AsyncConnection | None = None) -> AsyncIterator[AsyncConnection]:
        """Open a connection for reading.

        Args:
            connection: one that `read` or `write` gave, or the host's own, to see what its transaction has written.
                The block then runs in a SAVEPOINT: on PostgreSQL a SELECT that fails ends a transaction, too.

        Raises:
            StorageUnavailable: the database failed.
            TransactionInvalid: the host's transaction cannot be joined.
        """
        with self._outages.translated():
            if connection is not None:
                async with self._joined(connection) as joined:
                    yield joined
                return
            await self._prepare(Deadline())
            async with self._connection() as opened:
                yield opened

    @asynccontextmanager
    async def write(self, connection: AsyncConnection | None = None) -> AsyncIterator[AsyncConnection]:
        """Open a transaction that commits when the block ends and rolls back when it raises.

        Args:
            connection: one that `write` gave, or the host's own. The block then joins its transaction, a host's in a
                SAVEPOINT, and whoever has begun that commits.

        Raises:
            StorageUnavailable: the database failed.
            TransactionInvalid: the host's transaction cannot be joined.
        """
        with self._outages.translated():
            if connection is not None:
                async with self._joined(connection) as joined:
                    yield joined
                return
            deadline = Deadline()
            await self._prepare(deadline)
            async with self._transaction(deadline) as opened:
                yield opened

    @asynccontextmanager
    async def lent(self, connection: AsyncConnection) -> AsyncIterator[None]:
        """Let the host write in a transaction of `write` while the block runs.

        A host that gives it back to the plugin meanwhile gets a SAVEPOINT around what that does, as with its own.

        Raises:
            StorageUnavailable: the host has left it in a state in which it cannot be committed.
        """
        with self._outages.translated():
            await connection.exec_driver_sql("SAVEPOINT flowactions_lent")
            self._lent.add(id(connection))
            try:
                yield
            finally:
                self._lent.discard(id(connection))
            await connection.exec_driver_sql("RELEASE SAVEPOINT flowactions_lent")

    async def at_once(self, work: Callable[[SyncConnection], T]) -> T:
        """Run a piece of SQL as a transaction of its own, with as few changes of hands as can be.

        It may run more than one statement on SQLite only: on PostgreSQL each would be its own transaction.

        Args:
            work: gets the connection, and runs in another thread on SQLite.

        Raises:
            StorageUnavailable: the database failed.
        """
        with self._outages.translated():
            deadline = Deadline()
            await self._prepare(deadline)
            if self._thread is not None:
                # All in one hop to the thread; through the asynchronous driver it would be a dozen.
                async with self._writer.turn(deadline):
                    running = asyncio.get_running_loop().run_in_executor(
                        self._thread, self._run, work, deadline
                    )
                    # The thread goes on when the caller is cancelled, and so does its hold on the database.
                    return await to_the_end(running)
            if self.dialect == "sqlite":
                async with self._transaction(deadline) as opened:
                    return await opened.run_sync(work)
            async with self._connection() as opened:
                await opened.execution_options(isolation_level="AUTOCOMMIT")
                return await opened.run_sync(work)

    def _run(self, work: Callable[[SyncConnection], T], deadline: Deadline) -> T:
        assert self._direct is not None  # noqa: S101  made with the thread
        with self._direct.connect() as connection:
            try:
                usual = shorten_wait(connection, deadline.left)
                connection.exec_driver_sql("BEGIN IMMEDIATE")
                done = work(connection)
                connection.commit()
                if usual is not None:
                    set_busy_timeout(connection, usual)
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
        with self._outages.translated():
            async with self._connection() as opened:
                await listen(opened, channel, heard)

    def after_commit(self, connection: AsyncConnection, call: Callable[[], None]) -> None:
        """Have something called when the transaction of a connection has committed, and never when it rolls back.

        Args:
            connection: given by `write`, or the host's own. The host's commit is heard of just before it is
                made, so the call follows it after a moment, and without a guarantee.
            call: quick, and does not raise.
        """
        waiting = self._after_commit.get(id(connection))
        if waiting is not None:
            waiting.append(call)
        else:
            self._host.after_commit(connection, call)

    def _is_ours(self, connection: object) -> bool:
        given = id(connection)
        return isinstance(connection, Joined) or (given in self._after_commit and given not in self._lent)

    @asynccontextmanager
    async def _joined(self, connection: AsyncConnection) -> AsyncIterator[AsyncConnection]:
        if self._is_ours(connection):
            yield connection
            return
        self._host.check(connection)
        own = self._after_commit.get(id(connection))
        async with self._host.joined(connection, own) as joined:
            yield joined

    @asynccontextmanager
    async def _transaction(self, deadline: Deadline) -> AsyncIterator[AsyncConnection]:
        calls: list[Callable[[], None]] = []
        async with AsyncExitStack() as stack:
            if self.dialect == "sqlite":
                await stack.enter_async_context(self._writer.turn(deadline))
            opened = await stack.enter_async_context(self._connection())
            await self._begin(opened, deadline)
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

    async def _begin(self, connection: AsyncConnection, deadline: Deadline) -> None:
        if self.dialect != "sqlite":
            await connection.begin()
            return
        async with waiting_until(connection, deadline):
            await connection.begin()
            # The driver's thread goes on waiting for the lock when the caller is cancelled, and would have nobody left
            # to tell when it has it.
            await to_the_end(begin_immediate(connection))
