"""One database: its transactions, joined ones of the host included."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from pathlib import Path
from typing import Final, Self, TypeAlias, TypeVar

from sqlalchemy import Column, delete, func, select
from sqlalchemy.engine import Connection as SyncConnection
from sqlalchemy.engine import make_url
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from flowactions_hookspecs import HostInvalid
from flowactions_plugin.clock import Clock, system_clock
from flowactions_plugin.errors import SchemaOutdated, StorageUnavailable
from flowactions_plugin.storage import postgresql
from flowactions_plugin.storage.dialect import Dialect
from flowactions_plugin.storage.engine import Engines
from flowactions_plugin.storage.guarding import GuardedTransactions
from flowactions_plugin.storage.outages import Outages
from flowactions_plugin.storage.own_transactions import OwnTransactions
from flowactions_plugin.storage.sqlite import Deadline
from flowactions_plugin.storage.tables import lock_schema, prepare_tables, upgrade_tables
from flowactions_plugin.storage.transactions import HostTransactions
from flowactions_plugin.storage.urls import is_in_memory, sqlite_path

log = logging.getLogger("flowactions.storage")

T = TypeVar("T")

Transaction: TypeAlias = AsyncConnection
"""An open transaction, for modules that pass one on and run no SQL themselves."""


STATEMENT_SECONDS: Final = 30
"""How long a statement may take on PostgreSQL. A server that no longer answers is detected by this."""

FATAL_AT_START: Final = ("42", "SQLITE_CANTOPEN", "SQLITE_NOTADB")
"""Codes of errors with which a host does not start: the database answers, and waiting changes nothing."""


class Database(Dialect):
    """One database, shared with the host or the plugin's own; an async context manager.

    Args:
        url: opened when ``engine`` is ``None``; parsed by `parse_database_url`.
        engine: the host's engine, or what returns it when the database is opened; the host closes it.
        clock: the time on SQLite, and for ids. On PostgreSQL the server's clock decides what is due, so that workers
            on several machines agree.
        statement_seconds: how long a statement may take on PostgreSQL; ``None``: without limit.

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
        self._statement_seconds = statement_seconds
        super().__init__("", clock)
        self._bind()

    def _bind(self) -> None:
        """Read which database it is: a host may set its engine as late as its own startup.

        Raises:
            HostInvalid: the host's engine is of a database in memory.
        """
        engine = self._given()
        self._url = make_url(self._own_url) if engine is None else engine.url
        self.dialect = self._url.get_backend_name()
        if self.dialect == "sqlite" and is_in_memory(self._url):
            raise HostInvalid(
                "Host.database is an SQLite database in memory, whose only connection all would have to share: "
                "give it a file"
            )
        self._engines = Engines(self._url, engine)
        self._outages = Outages(self._url)
        self._host = HostTransactions(engine)
        self._own = OwnTransactions(self._engines, is_sqlite=self.dialect == "sqlite")
        self._guards = GuardedTransactions()
        self._prepared = False

    @property
    def directory(self) -> Path:
        """The directory of the database file; the working directory when there is no file."""
        path = sqlite_path(self._url) if self.dialect == "sqlite" else None
        return Path.cwd() if path is None else path.parent

    async def __aenter__(self) -> Self:
        """Open the database for a host, as `open` does."""
        return await self.open(required=False)

    async def open(self, *, required: bool) -> Self:
        """Open the engine and prepare the tables; closed by leaving the context.

        Missing tables are created. Tables of an earlier release are upgraded on SQLite. On PostgreSQL, where other
        processes may use them, `migrate` does it.

        Args:
            required: whether a database that does not answer is an error. For a host it is not: the error is logged,
                and the tables are prepared at the first use that reaches the database.

        Raises:
            SchemaOutdated: PostgreSQL's tables are of an earlier release, or are missing and cannot be created.
            StorageMisplaced: the directory of an SQLite file does not exist.
            StorageUnavailable: the database refuses, or it is required and does not answer.
        """
        self._bind()
        try:
            with self._outages.translated():
                self._engines.open(self._statement_seconds)
                await self._prepare(Deadline())
        except StorageUnavailable as exc:
            refused = isinstance(exc, SchemaOutdated) or (exc.code or "").startswith(FATAL_AT_START)
            if required or refused or self._engines.current is None:
                await self.__aexit__()
                raise
            log.error("starting without the database, which does not answer: %s", exc)  # noqa: TRY400
        except BaseException:
            await self.__aexit__()
            raise
        return self

    async def __aexit__(self, *_exc: object) -> None:
        self._host.close()
        await self._engines.close()

    async def migrate(self, *, dry: bool = False) -> tuple[str | None, str]:
        """Bring the tables to this release's revision; not while the database is open.

        Args:
            dry: change nothing.

        Returns:
            The revision before, ``None`` for a database without tables, and this release's.

        Raises:
            SchemaNewer: the tables are of a later release.
            StorageMisplaced: the directory of an SQLite file does not exist.
            StorageUnavailable: the database failed; nothing was changed.
        """
        try:
            with self._outages.translated():
                self._engines.open(None)
                async with self._schema_transaction(Deadline()) as transaction:
                    revisions = await upgrade_tables(transaction, dry=dry)
        finally:
            await self.__aexit__()
        return revisions

    async def _prepare(self, deadline: Deadline) -> None:
        if self._prepared:
            return
        async with self._schema_transaction(deadline) as transaction:
            await prepare_tables(transaction)
        self._prepared = True

    @asynccontextmanager
    async def _schema_transaction(self, deadline: Deadline) -> AsyncIterator[AsyncConnection]:
        await self._engines.switch_to_wal(deadline)
        async with self._own.begin(deadline) as transaction:
            await lock_schema(transaction)
            yield transaction

    async def prune(self, moment: Column[int], older_than_ms: int, limit: int) -> int:
        """Delete the rows whose time is longer ago than this, oldest first, by an index.

        Args:
            moment: a column of times.
            older_than_ms: the age, in milliseconds.
            limit: about how many rows at most, so that the transaction is short. Rows of one millisecond are deleted
                together.

        Returns:
            The number of deleted rows.

        Raises:
            StorageUnavailable: the database failed.
        """
        old = select(moment).where(moment < self.now() - older_than_ms).order_by(moment).limit(limit)
        # Read without a lock: usually there is nothing to delete, and SQLite has only one writer.
        async with self.read() as connection:
            times = (await connection.execute(old)).scalars().all()
        if not times:
            return 0
        async with self.write() as transaction:
            return (await transaction.execute(delete(moment.table).where(moment <= times[-1]))).rowcount

    @contextmanager
    def using(self, transaction: AsyncConnection | None) -> Iterator[None]:
        """Check a host's transaction, and reserve it for the call that came with it.

        Args:
            transaction: what the host gave; ``None`` is allowed.

        Raises:
            TransactionInvalid: it cannot be joined; the message says what it has to be.
        """
        if transaction is None or self._own.includes(self._guards.origin(transaction)):
            yield
            return
        with self._host.reserved(transaction):
            yield

    @asynccontextmanager
    async def read(self, transaction: AsyncConnection | None = None) -> AsyncIterator[AsyncConnection]:
        """Open a connection for reading.

        Args:
            transaction: one that `write` gave, or the host's, to see what it has written. The block then runs in a
                SAVEPOINT: on PostgreSQL a failed SELECT ends a transaction, too.

        Raises:
            StorageUnavailable: the database failed.
            TransactionInvalid: the host's transaction cannot be joined.
        """
        with self._outages.translated():
            if transaction is not None:
                async with self._joined(transaction) as joined:
                    yield joined
                return
            await self._prepare(Deadline())
            async with self._engines.connect() as connection:
                yield connection

    @asynccontextmanager
    async def write(
        self, transaction: AsyncConnection | None = None, deadline: Deadline | None = None
    ) -> AsyncIterator[AsyncConnection]:
        """Open a transaction that commits when the block ends and rolls back when it raises.

        Args:
            transaction: one that `write` gave, or the host's. The block then joins it, a host's in a SAVEPOINT, and
                whoever began it commits it.
            deadline: until when SQLite's lock is waited for by a transaction of its own; ``None``: `WAIT_SECONDS` from
                now.

        Raises:
            StorageUnavailable: the database failed.
            TransactionInvalid: the host's transaction cannot be joined.
        """
        with self._outages.translated():
            if transaction is not None:
                async with self._joined(transaction) as joined:
                    yield joined
                return
            deadline = deadline or Deadline()
            await self._prepare(deadline)
            async with self._own.begin(deadline) as opened:
                yield opened

    @asynccontextmanager
    async def lent(self, transaction: AsyncConnection) -> AsyncIterator[None]:
        """Let the host write in a transaction of `write` while the block runs.

        When the host passes it back to the plugin meanwhile, the plugin's statements run in a SAVEPOINT, as in a
        transaction of the host's own.

        Raises:
            StorageUnavailable: the host has left it in a state in which it cannot be committed.
        """
        with self._outages.translated():
            async with self._own.lent(transaction):
                yield

    def guarded(self, transaction: AsyncConnection) -> AbstractAsyncContextManager[AsyncConnection]:
        """Give a transaction of `write` to another plugin, which cannot end it; see `GuardedTransactions.guarded`."""
        return self._guards.guarded(transaction)

    async def in_transaction(self, work: Callable[[SyncConnection], T], deadline: Deadline | None = None) -> T:
        """Run the work as a transaction of its own, with as few thread switches and round trips as possible.

        On PostgreSQL the work may execute one statement only, because each would be its own transaction. Several rows
        that are given to one ``execute`` are one statement.

        Args:
            work: executes statements; called in another thread on SQLite.
            deadline: until when SQLite's lock is waited for; ``None``: `WAIT_SECONDS` from now.

        Raises:
            StorageUnavailable: the database failed.
        """
        with self._outages.translated():
            deadline = deadline or Deadline()
            await self._prepare(deadline)
            thread = self._engines.thread
            if thread is not None:
                async with self._own.writer.turn(deadline):
                    return await thread.run(work, deadline)
            if self.dialect == "sqlite":
                async with self._own.begin(deadline) as transaction:
                    return await transaction.run_sync(work)
            async with self._engines.connect() as connection:
                await connection.execution_options(isolation_level="AUTOCOMMIT")
                return await connection.run_sync(work)

    async def limit_lock_waits(self, transaction: AsyncConnection, milliseconds: int) -> None:
        """Have statements of a transaction of `write` fail that wait longer for a lock; SQLite has no such locks.

        Raises:
            StorageUnavailable: the database failed.
        """
        if self.dialect == "postgresql":
            await transaction.execute(select(func.set_config("lock_timeout", str(milliseconds), True)))

    async def notify(self, channel: str) -> None:
        """Notify the listeners of a channel of PostgreSQL.

        Raises:
            StorageUnavailable: the database failed.
        """
        await self.in_transaction(lambda connection: connection.execute(select(func.pg_notify(channel, ""))))

    async def listen(self, channel: str, on_notify: Callable[[], None]) -> None:
        """Listen on a channel of PostgreSQL, on a separate connection, until that is lost.

        Args:
            channel: its name.
            on_notify: called at each notification.

        Raises:
            StorageUnavailable: the database failed.
        """
        with self._outages.translated():
            async with self._engines.connect() as connection:
                await postgresql.listen(connection, channel, on_notify)

    def after_commit(self, transaction: AsyncConnection, call: Callable[[], None]) -> None:
        """Call something when a transaction has committed, and never when it is rolled back.

        Args:
            transaction: given by `write`, or the host's. A host's commit is known only just before it is made, so the
                call follows a moment later and is not guaranteed.
            call: quick, and does not raise.
        """
        transaction = self._guards.origin(transaction)
        calls = self._own.calls_after(transaction)
        if calls is not None:
            calls.append(call)
        else:
            self._host.after_commit(transaction, call)

    @asynccontextmanager
    async def _joined(self, transaction: AsyncConnection) -> AsyncIterator[AsyncConnection]:
        transaction = self._guards.origin(transaction)
        if self._own.includes(transaction):
            yield transaction
            return
        self._host.check(transaction)
        own_calls = self._own.calls_after(transaction)
        async with self._host.joined(transaction, own_calls) as joined:
            yield joined
