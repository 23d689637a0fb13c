"""One database: how it is opened, and the transactions and statements that callers run on it."""

from __future__ import annotations

import asyncio
import logging
import os
import sqlite3
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path
from typing import Any, Final, Literal, Self, TypeAlias, TypeVar, cast

from sqlalchemy import Column, Row, Select, Table, delete, func, select, text
from sqlalchemy.engine import Connection as SyncConnection
from sqlalchemy.engine import make_url
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine
from sqlalchemy.pool import AssertionPool, StaticPool

from flowactions_hookspecs import HostInvalid
from flowactions_plugin.clock import Clock, system_clock, timer
from flowactions_plugin.errors import SchemaOutdated, StorageUnavailable
from flowactions_plugin.storage import postgresql, sqlite, waiting
from flowactions_plugin.storage.connections import Engines
from flowactions_plugin.storage.dialect import Dialect
from flowactions_plugin.storage.migrations import UNTRANSLATABLE, head, prepare_tables
from flowactions_plugin.storage.outages import POOLED, UNUSABLE_URL, OutageLog, Outages, Refused
from flowactions_plugin.storage.postgresql import Blocker, Snapshot
from flowactions_plugin.storage.sqlite import Deadline, SQLite
from flowactions_plugin.storage.transactions import Transactions
from flowactions_plugin.storage.urls import is_in_memory, sqlite_path
from flowactions_plugin.storage.waiting import (
    STATEMENT_SECONDS,
    TRANSACTION_SECONDS,
    answering,
    committing,
    repeated,
)

log = logging.getLogger("flowactions.storage")

T = TypeVar("T")

Transaction: TypeAlias = AsyncConnection
"""An open transaction, for modules that pass one on and run no SQL themselves."""

Connection: TypeAlias = SyncConnection
"""What executes the statements of one in `Transaction.run_sync`, for the same modules."""

FATAL_AT_START: Final = (UNTRANSLATABLE, "3F", "42", UNUSABLE_URL, "SQLITE_CANTOPEN", "SQLITE_NOTADB")
"""Codes of errors with which a host does not start: the database answers, and waiting changes nothing."""

REFUSED_SECONDS: Final = 30.0
"""For how long a refused write says that the database takes none. While it takes none, a worker tries one more often."""


class Database:
    """One database, shared with the host or the plugin's own; an async context manager, which opens it.

    Where a method uses the database, it raises `StorageUnavailable` when the database fails or does not answer, and where it
    is given a transaction, `TransactionInvalid` when the host's transaction cannot be joined.

    Args:
        url: opened when ``engine`` is ``None``; parsed by `parse_database_url`.
        engine: the host's engine, or what returns it when the database is opened; the host closes it.
        clock: the time on SQLite, and for ids. On PostgreSQL the server's clock decides what is due, so that workers
            on several machines agree.
        statement_seconds: how long a statement may take on PostgreSQL; ``None``: without limit.
        connections: how many connections the plugin's own engine opens to PostgreSQL at the most; 2 or more.

    Attributes:
        clock: as given.
        dialect: which database it is: ``sqlite`` or ``postgresql``.
        now: `Dialect.now` of it.
        outage_log: logs its outages, for the background parts of its host.
        sql: builds the statements that differ between the databases.
        transactions: joins hosts' transactions, and lends its own.
        made_tables: whether opening it has made its tables.
        file: the SQLite file; ``None`` on PostgreSQL.

    Raises:
        HostInvalid: the host's engine is of a database in memory, or has one connection for all.
    """

    def __init__(
        self,
        url: str,
        engine: AsyncEngine | Callable[[], AsyncEngine | None] | None = None,
        clock: Clock = system_clock,
        *,
        statement_seconds: float | None = STATEMENT_SECONDS,
        connections: int = 15,
    ) -> None:
        self._given = engine if callable(engine) else lambda: engine
        self._own_url = url
        self._statement_seconds = statement_seconds
        self._connections = connections
        self.clock = clock
        self.outage_log = OutageLog()
        self._bind()

    def _bind(self) -> None:
        """Read which database it is: a host may set its engine as late as its own startup."""
        engine = self._given()
        self._url = make_url(self._own_url) if engine is None else engine.url
        is_sqlite = self._url.get_backend_name() == SQLite.name
        self.sql: Dialect = SQLite(lambda: self.clock()) if is_sqlite else postgresql.PostgreSQL()  # noqa: PLW0108  it may be set
        self.dialect, self.now = self.sql.name, self.sql.now
        self._built: dict[tuple[Any, ...], Any] = {}
        pool = None if engine is None else engine.sync_engine.pool
        in_memory = is_sqlite and is_in_memory(self._url)
        if in_memory or isinstance(pool, AssertionPool | StaticPool):
            what = "is an SQLite database in memory" if in_memory else f"has a {type(pool).__name__}"
            advice = "give it a file" if in_memory else "make the engine without poolclass"
            raise HostInvalid(f"Host.database {what}, whose only connection all would have to share: {advice}")
        self._engines = Engines(self._url, engine)
        self._outages = Outages(self._url, self._engines.connect, self._engines.lacks_tables)
        self.transactions = Transactions(self._engines, self.sql)
        self._prepared = False
        self.made_tables = False
        self.file = sqlite_path(self._url)
        self._opened_file: os.stat_result | None = None

    def built(self, build: Callable[..., Any], *given: Any) -> Any:
        """Return what a function builds, for example a statement: it is built once, as that costs more than to run it.

        Args:
            build: called with `sql`, and with what is given.
            given: hashable values that the result depends on.
        """
        name = (build, *given)
        if name not in self._built:
            self._built[name] = build(self.sql, *given)
        return self._built[name]

    @property
    def refused(self) -> Refused | None:
        """The last write that the database has refused within `REFUSED_SECONDS`, as it is read-only or full; ``None``: none.

        Whoever writes finds out: a worker does so every few seconds.
        """
        refused = self._outages.refused
        return refused if refused is not None and timer() - refused.at < REFUSED_SECONDS else None

    @property
    def missing_file(self) -> Path | None:
        """The SQLite file that opening the database would create; ``None`` when it is there, or on PostgreSQL."""
        return self.file if self.file is not None and not self.file.exists() else None

    async def __aenter__(self) -> Self:
        """Open the engine and prepare the tables.

        Missing tables are created. Tables of an earlier release are upgraded on SQLite. On PostgreSQL, where other
        processes may use them, `migrate` does it. When the database does not answer, that is logged, and the tables are
        prepared at the first use that reaches it.

        Raises:
            SchemaOutdated: PostgreSQL's tables are of an earlier release, or are missing and cannot be created.
            SettingsInvalid: the directory of an SQLite file does not exist.
            StorageUnavailable: the database refuses.
        """
        self._bind()
        async with AsyncExitStack() as stack:
            stack.push_async_exit(self)
            try:
                async with self._outages.translated():
                    self._engines.open(self._statement_seconds, self._connections)
                    await self._prepare(Deadline())
            except StorageUnavailable as exc:
                refused = isinstance(exc, SchemaOutdated) or (exc.code or "").startswith(FATAL_AT_START)
                if refused or self._engines.current is None:
                    raise
                log.error(  # noqa: TRY400
                    "starting without the database, which does not answer: %s",
                    exc,
                    extra={"event": "database.unavailable_at_start"},
                )
            stack.pop_all()
        return self

    async def __aexit__(self, *_exc: object) -> None:
        await self._engines.close()

    async def migrate(self, *, dry: bool = False) -> tuple[str | None, str]:
        """Bring the tables to this release's revision; not while the database is open.

        Args:
            dry: change nothing.

        Returns:
            The revision before, ``None`` for a database without tables, and this release's.

        Raises:
            SchemaNewer: the tables are of a later release.
            SchemaOutdated: they are of a state before the first release.
            SettingsInvalid: the directory of an SQLite file does not exist.
            StorageUnavailable: the database failed; nothing was changed.
        """
        missing = self.missing_file
        if dry and missing is not None and missing.parent.exists():
            return None, head()  # to connect would make the file
        async with AsyncExitStack() as stack, self._outages.translated():
            stack.push_async_exit(self)
            self._engines.open(None, self._connections)
            return await self._prepare_tables(Deadline(), by_host=False, dry=dry), head()

    @asynccontextmanager
    async def read(self, transaction: AsyncConnection | None = None) -> AsyncIterator[AsyncConnection]:
        """Open a connection for reading.

        Args:
            transaction: one that `write` gave, or the host's, to see what it has written. The block then runs in a
                SAVEPOINT: on PostgreSQL a failed SELECT ends a transaction, too.
        """
        if transaction is not None:
            async with self.write(transaction) as joined:
                yield joined
            return
        async with self._outages.translated(is_own=True):
            await self._prepare(Deadline())
            async with answering(self._limit(TRANSACTION_SECONDS)), self._engines.connect() as connection:
                await self._engines.set_path(connection)
                yield connection

    @asynccontextmanager
    async def write(
        self, transaction: AsyncConnection | None = None, *, as_host: bool = False
    ) -> AsyncIterator[AsyncConnection]:
        """Open a transaction that commits when the block ends and rolls back when it raises.

        Args:
            transaction: one that `write` gave, or the host's. The block then joins it, a host's in a SAVEPOINT, and
                whoever began it commits it.
            as_host: whether it is as the host's own on its engine: its isolation is the engine's default, and the plugin,
                too, joins it in SAVEPOINTs.
        """
        if transaction is not None:
            self._check_file()
            async with self._outages.translated(transaction), self.transactions.joined(transaction) as joined:
                yield joined
            return
        deadline = Deadline()
        async with self._outages.translated(is_own=True):
            await self._prepare(deadline)
            async with (
                answering(self._limit(TRANSACTION_SECONDS)),
                self.transactions.begin(deadline, as_host=as_host) as opened,
            ):
                yield opened

    @repeated
    async def in_transaction(
        self, work: Callable[[SyncConnection], T], deadline: Deadline | None = None, *, several: bool = False
    ) -> T:
        """Run the work as a transaction of its own, with as few thread switches and round trips as possible.

        Several rows that are given to one ``execute`` are one statement. The work is run again when it has conflicted with
        another one.

        Args:
            work: executes statements; called in another thread on SQLite.
            deadline: until when SQLite's lock is waited for; ``None``: `WAIT_SECONDS` from now.
            several: whether it may execute more than one statement: on PostgreSQL each would be its own transaction.
        """
        deadline = deadline or Deadline()
        async with self._outages.translated(is_own=True):
            await self._prepare(deadline)
            if self._engines.thread is not None:
                async with self.transactions.turn(deadline):
                    if self._engines.thread is not None:  # the database was not closed meanwhile
                        return await self._engines.thread.run(work, deadline)
            async with answering(self._limit(STATEMENT_SECONDS)):
                if several or not self.sql.is_server or not self._engines.may_be_single:
                    async with self.transactions.begin(deadline) as transaction:
                        return await transaction.run_sync(work)
                with committing() as commits:
                    async with self._engines.autocommit() as connection:
                        commits()
                        return await connection.run_sync(work)

    async def rows(self, query: Select[Any], given: Mapping[str, Any] | None = None) -> Sequence[Row[Any]]:
        """Return the rows of one query, with as few thread switches and round trips as possible.

        It is for what is asked again and again: on SQLite it may wait until a write is over.

        Args:
            query: a SELECT, best one of `built`.
            given: its parameters.
        """

        def work(connection: SyncConnection) -> Sequence[Row[Any]]:
            return connection.execute(query, given).all()

        if self.sql.is_server:
            return await self.in_transaction(work)
        if self._engines.thread is not None:
            async with self._outages.translated():
                await self._prepare(Deadline())
                return await self._engines.thread.run(work, None)
        async with self.read() as connection:
            return await connection.run_sync(work)

    @repeated
    async def prune(self, moment: Column[int], older_than_ms: int, limit: int) -> int:
        """Delete the rows whose time is longer ago than this, oldest first, by an index; return their number.

        Args:
            moment: a column of times.
            older_than_ms: the age, in milliseconds.
            limit: about how many rows at most, so that the transaction is short. Rows of one millisecond are deleted
                together.
        """
        old = select(moment).where(moment < self.now() - older_than_ms).order_by(moment).limit(limit)
        # Read without a lock: usually there is nothing to delete, and SQLite has only one writer.
        async with self.read() as connection:
            times = (await connection.execute(old)).scalars().all()
        if not times:
            return 0
        async with self.write() as transaction:
            return (await transaction.execute(delete(moment.table).where(moment <= times[-1]))).rowcount

    def answering(self, more: float = 0.0) -> AbstractAsyncContextManager[None]:
        """Limit what a caller waits for within the block on PostgreSQL; on SQLite each wait for the lock is limited.

        Args:
            more: seconds beside those of `ANSWER_SECONDS` in which its statements have to end, the wait for a connection
                included. To cancel them and to roll back takes less than two seconds then.

        Raises:
            StorageUnavailable: the database did not answer in time. A transaction of the plugin's own was rolled back,
                unless ``may_be_written`` says otherwise; a host's stays usable, or its commit fails.
        """
        return answering(waiting.ANSWER_SECONDS + more if self.sql.is_server else None)

    def _limit(self, seconds: float) -> float | None:
        """Return a limit for the host's PostgreSQL: the plugin's own engine has one for each statement."""
        return seconds if self.sql.is_server and self._engines.shared is not None else None

    async def lock_table(
        self, transaction: AsyncConnection, table: Table, mode: Literal["ROW EXCLUSIVE", "SHARE"]
    ) -> None:
        """Lock a table until a transaction of `write` ends; on SQLite such a transaction is alone anyway.

        ``SHARE`` waits for transactions that have written to it or hold ``ROW EXCLUSIVE``, and these wait for it.
        """
        if self.sql.is_server:
            await transaction.execute(text(f"LOCK TABLE {table.name} IN {mode} MODE"))

    async def limit_locks(self, transaction: AsyncConnection, seconds: float) -> None:
        """Limit how long each statement of a transaction of `write` waits for the locks of others, on PostgreSQL."""
        if self.sql.is_server:
            await transaction.execute(text(f"SET LOCAL lock_timeout = {int(seconds * 1000)}"))

    async def time(self) -> float:
        """Return the time, Unix seconds, that decides what is due: that of PostgreSQL's server, or the given clock's."""
        async with self.read() as connection:
            return await connection.run_sync(self.time_on) / 1000

    def time_on(self, connection: SyncConnection) -> int:
        """Return the same time, Unix milliseconds, on a connection of this database."""
        return int(connection.execute(select(self.sql.now())).scalar_one())

    async def misses_statements(self) -> str | None:
        """Return how a statement fails where a pooler gives it another connection of the server's the next time; ``None``: it does not."""
        pid, single = (
            select(func.pg_backend_pid()),
            {**self._engines.own_options, "isolation_level": "AUTOCOMMIT"},
        )
        try:
            async with self._outages.translated(), self.answering(), self._engines.connect(single) as one:
                await one.execute(pid)
                async with self._engines.connect() as other:
                    await other.execute(pid)  # a transaction, which has the server's connection
                    await one.execute(pid)
        except StorageUnavailable as exc:
            return str(exc) if exc.code in POOLED else None
        return None

    async def notify(self, channel: str, payload: str) -> None:
        """Send a payload of up to 8000 bytes to the listeners of a channel of PostgreSQL.

        Listeners hear of it when its transaction has ended. That writes nothing, so it does not wait for the server's disk.
        """
        at_once = func.set_config("synchronous_commit", "off", True)
        notifying = select(at_once, func.pg_notify(channel, payload))
        await self.in_transaction(lambda connection: connection.execute(notifying))

    async def listen(self, channel: str, on_notify: Callable[[str], None]) -> None:
        """Listen for payloads on a channel of PostgreSQL, on a separate connection, until that is lost or another caller needs it."""
        failovers = self._engines.failovers
        async with self._outages.translated(), self._engines.connect() as connection:
            if failovers == self._engines.failovers:  # otherwise the connection may be one from before it
                self._engines.unlisten = asyncio.Event()
                await postgresql.listen(connection, channel, on_notify, self._engines.unlisten)

    async def watch_inserts(self, on_insert: Callable[[], None]) -> None:
        """Call when any process has inserted rows of the outbox into an SQLite file that no claim holds.

        Raises:
            StorageUnavailable: the file cannot be watched.
        """
        try:
            await sqlite.watch_inserts(cast("Path", self.file), on_insert)
        except sqlite3.Error as exc:
            raise StorageUnavailable(f"the file cannot be watched: {exc}") from exc

    def oldest_snapshot(self, connection: SyncConnection) -> Snapshot | None:
        """Return what has kept PostgreSQL from removing old versions of rows for long, if anything."""
        return postgresql.oldest_snapshot(connection) if self.sql.is_server else None

    def blockers(self, connection: SyncConnection) -> list[Blocker]:
        """Return who keeps others from writing to the tables by a lock on PostgreSQL."""
        return postgresql.blockers(connection) if self.sql.is_server else []

    def reads_only(self, connection: SyncConnection) -> bool:
        """Return whether the PostgreSQL server takes no writes: it is a standby, or was made read-only."""
        return self.sql.is_server and bool(connection.execute(postgresql.READ_ONLY).scalar())

    def lacking(self, connection: SyncConnection) -> list[str]:
        """Return the rights on the tables that the role of this process lacks on PostgreSQL."""
        return postgresql.lacking(connection) if self.sql.is_server else []

    def obstacle(self, connection: SyncConnection) -> str | None:
        """Return why writes wait or are refused, in words, as far as PostgreSQL says so."""
        if rights := self.lacking(connection):
            return f"this process's role lacks {', '.join(rights)}"
        return "; ".join(each.words for each in self.blockers(connection)) or None

    async def _prepare(self, deadline: Deadline) -> None:
        """Prepare the tables at the first use that reaches the database."""
        if self._prepared:
            self._check_file()
            return
        try:
            async with self._outages.translated():
                self.made_tables = await self._prepare_tables(deadline, by_host=True) is None
        except StorageUnavailable as exc:
            if exc.code == "42501":
                raise SchemaOutdated(str(exc), code=exc.code) from exc
            raise
        self._opened_file = None if self.file is None else self.file.stat()
        self._prepared = True

    def _check_file(self) -> None:
        """Check that the path of an SQLite database still leads to the file that was opened: a new connection opens another."""
        if self.file is None or self._opened_file is None:
            return
        try:
            same = os.path.samestat(self._opened_file, os.stat(self.file))  # noqa: PTH116  a third of the time of Path.stat
        except OSError:
            same = False
        if not same:
            raise StorageUnavailable(
                f"the database file {self.file} was moved away or replaced while this process was using it: "
                "move it back, or restart this process"
            )

    def _make_file(self) -> None:
        """Make the plugin's own SQLite file if it is missing, so that only its owner may read it, its WAL included."""
        if self.missing_file is None or self._given() is not None or "uri" in self._url.query:
            return
        with suppress(OSError):  # opening it says why
            os.close(os.open(self.missing_file, os.O_CREAT | os.O_RDWR, 0o600))
            log.info("created the database file %s", self.file, extra={"event": "database.created"})

    async def _prepare_tables(self, deadline: Deadline, *, by_host: bool, dry: bool = False) -> str | None:
        self._make_file()
        if self._engines.thread is not None:
            await asyncio.to_thread(sqlite.switch_to_wal, self._url, deadline)
        async with self.transactions.begin(deadline) as transaction:
            before = await prepare_tables(transaction, by_host=by_host, dry=dry)
            if self.sql.is_server:
                found = await transaction.exec_driver_sql("SHOW search_path")
                self._engines.search_path = found.scalar_one()
            return before
