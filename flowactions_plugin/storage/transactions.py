"""The transactions of one database: the plugin's own, and the host's, in which the plugin writes within a SAVEPOINT.

A failure of the plugin's leaves a host's transaction usable. Either kind can be given to another plugin, which cannot end it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager, nullcontext, suppress
from typing import Any, Final, TypeAlias, TypeVar, cast
from weakref import WeakKeyDictionary

from sqlalchemy import event
from sqlalchemy.engine import Connection as SyncConnection
from sqlalchemy.engine import ExceptionContext
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, AsyncTransaction

from flowactions_hookspecs import TransactionInvalid
from flowactions_plugin.errors import TransactionEnded
from flowactions_plugin.storage import waiting
from flowactions_plugin.storage.connections import OWN_SCHEMA, Engines
from flowactions_plugin.storage.dialect import Dialect
from flowactions_plugin.storage.outages import code_of, is_outage
from flowactions_plugin.storage.postgresql import note_search_path
from flowactions_plugin.storage.sqlite import (
    AUTOCOMMIT,
    Deadline,
    Writer,
    begin_immediate,
    begin_joined,
    waiting_until,
)
from flowactions_plugin.storage.urls import same_database
from flowactions_plugin.storage.waiting import committing, shielded

log = logging.getLogger("flowactions.storage")

T = TypeVar("T")

Call: TypeAlias = Callable[[], None]
"""Called after a commit: quick, and does not raise."""

SAVEPOINT: Final = "flowactions"
"""Nested SAVEPOINTs may have the same name: a statement applies to the innermost."""

ABORTED: Final = "25P02"
"""SQLSTATE: an earlier statement failed, and no statement is accepted before a rollback."""

IN_USE: Final = "another call of the plugin uses this transaction: wait for it first"

REFUSED: Final = ("close", "commit", "rollback")
"""Methods of a connection that would end its transaction. ``invalidate`` is SQLAlchemy's own when a connection is lost."""

COMMIT_SECONDS: Final = 0.02
"""How long to wait for a host's commit before checking whether it has finished."""


class Joined:
    """A host's transaction within the plugin's SAVEPOINT. It executes statements as an `AsyncConnection` does.

    Attributes:
        connection: the host's.
        calls: called after the host's commit, unless the SAVEPOINT is rolled back.
    """

    def __init__(self, connection: AsyncConnection, sql: Dialect) -> None:
        self.connection = connection
        self._sql = sql
        self.calls: list[Call] = []

    async def execute(self, statement: Any, parameters: Any = None) -> Any:
        """Execute a statement, as `AsyncConnection.execute` does."""
        executing = self.connection.execute(statement, parameters, execution_options=OWN_SCHEMA)
        # A statement that runs in a thread continues after a cancellation. PostgreSQL's driver cancels it on the server.
        return await (executing if self._sql.is_server else shielded(executing))

    async def run_sync(self, work: Callable[..., T], *given: Any) -> T:
        """Run what executes statements, as `AsyncConnection.run_sync` does."""

        def on_own_schema(connection: SyncConnection) -> T:
            hosts = connection.get_execution_options().get("schema_translate_map")
            connection.execution_options(**OWN_SCHEMA)
            try:
                return work(connection, *given)
            finally:
                connection.execution_options(schema_translate_map=hosts)

        running = self.connection.run_sync(on_own_schema)
        return await (running if self._sql.is_server else shielded(running))


class Transactions:
    """The open transactions of one database.

    Args:
        engines: give the connections of the plugin's own transactions; a host's are of the same database.
        sql: the dialect.

    Attributes:
        writer: the turn of this process's writers, where there is one writer at a time.
    """

    def __init__(self, engines: Engines, sql: Dialect) -> None:
        self.writer = Writer()
        self._engines = engines
        self._sql = sql
        # The plugin's own, by the id of the connection, with the calls that follow the commit.
        self._own: dict[int, list[Call]] = {}
        self._lent_to_host: set[int] = set()
        # What was given to another plugin, by the id of the connection.
        self._given: dict[int, AsyncConnection] = {}
        self._in_use: set[SyncConnection] = set()
        self._reserved: set[SyncConnection] = set()
        self._after_commit: WeakKeyDictionary[SyncConnection, _AfterCommit] = WeakKeyDictionary()
        self._listening: list[AsyncEngine] = []

    def close(self) -> None:
        """Remove the listeners from the hosts' engines."""
        for engine in self._listening:
            event.remove(engine.sync_engine, "handle_error", self._keep)
        self._listening.clear()

    @asynccontextmanager
    async def begin(self, deadline: Deadline, *, as_host: bool = False) -> AsyncIterator[AsyncConnection]:
        """Open one of the plugin's own, which commits when the block ends, and make the calls that follow the commit."""
        calls: list[Call] = []
        async with AsyncExitStack() as stack:
            if self._sql.one_writer:
                await stack.enter_async_context(self.writer.turn(deadline))
            opened = await stack.enter_async_context(self._engines.connect(as_host=as_host))
            if self._sql.one_writer:
                async with waiting_until(opened, deadline):
                    await opened.begin()
                    # When the caller is cancelled, the driver's thread continues to wait for the lock, and nothing would
                    # release it.
                    await shielded(begin_immediate(opened))
            else:
                await opened.begin()
            self._own[id(opened)] = calls
            try:
                yield opened
            finally:
                del self._own[id(opened)]
            with committing():
                await opened.commit()
        for call in calls:
            call()

    @asynccontextmanager
    async def lend_to_host(self, transaction: AsyncConnection) -> AsyncIterator[None]:
        """Treat one of the plugin's own as the host's while the block runs, within a SAVEPOINT."""
        await transaction.exec_driver_sql("SAVEPOINT flowactions_lent")
        self._lent_to_host.add(id(transaction))
        hosts = transaction.engine.sync_engine.get_execution_options().get("schema_translate_map")
        await transaction.execution_options(schema_translate_map=hosts)
        try:
            yield
        finally:
            self._lent_to_host.discard(id(transaction))
            await transaction.execution_options(**OWN_SCHEMA)
        await transaction.exec_driver_sql("RELEASE SAVEPOINT flowactions_lent")

    @contextmanager
    def reserved(self, transaction: AsyncConnection) -> Iterator[None]:
        """Reserve a host's transaction for one call, also between its statements.

        Raises:
            TransactionInvalid: it cannot be joined, or another call uses it.
        """
        if self._is_own(self._origin(transaction)):
            yield
            return
        reserved = self._check(transaction)
        if reserved in self._reserved:
            raise TransactionInvalid(IN_USE)
        self._reserved.add(reserved)
        try:
            yield
        finally:
            self._reserved.discard(reserved)

    @asynccontextmanager
    async def joined(self, transaction: AsyncConnection) -> AsyncIterator[AsyncConnection]:
        """Give a transaction to a block: one of the plugin's own as it is, a host's within a SAVEPOINT.

        The SAVEPOINT is released when the block ends and rolled back when it raises. In both cases the transaction stays
        usable. When the connection or the transaction was lost, the connection is invalidated: the host's next statement
        or commit raises, so that no part of its writes is committed.

        Raises:
            TransactionInvalid: it cannot be joined; the message says what is required.
        """
        transaction = self._origin(transaction)
        if self._is_own(transaction):
            yield transaction
            return
        in_use = self._check(transaction)
        self._listen(transaction.engine)
        self._in_use.add(in_use)
        joined = Joined(transaction, self._sql)
        try:
            async with AsyncExitStack() as stack:
                if self._sql.one_writer:
                    await stack.enter_async_context(waiting_until(transaction, Deadline()))
                async with _Savepoint(transaction, self._sql):
                    yield cast("AsyncConnection", joined)
        except DBAPIError as exc:
            await note_search_path(exc, nullcontext(transaction))
            raise
        finally:
            self._in_use.discard(in_use)
        for call in joined.calls:
            self.after_commit(transaction, call)

    def after_commit(self, transaction: AsyncConnection, call: Call) -> None:
        """Call something after the commit of a transaction: of a host's, a moment later.

        There is no call when the transaction, or a SAVEPOINT around the writes so far, is rolled back. There may be one
        when a host's commit itself fails.
        """
        origin: object = self._origin(transaction)
        calls = origin.calls if isinstance(origin, Joined) else self._own.get(id(origin))
        if calls is not None:
            calls.append(call)
            return
        opened = transaction.sync_connection
        assert opened is not None  # noqa: S101  a statement was just executed on it
        if opened not in self._after_commit:
            self._after_commit[opened] = _AfterCommit(opened, asyncio.get_running_loop())
        self._after_commit[opened].add(opened, call)

    @asynccontextmanager
    async def guarded(self, transaction: AsyncConnection | Joined) -> AsyncIterator[AsyncConnection]:
        """Give the connection itself, in a SAVEPOINT of SQLAlchemy's, so that sessions can be bound to it, too.

        Args:
            transaction: one of the plugin's own, or a host's within the plugin's SAVEPOINT.

        Raises:
            TransactionEnded: the block has committed, rolled back or closed it, or has tried to, or has left a failed
                statement or an open SAVEPOINT behind. What the block has written is rolled back.
        """
        connection = transaction.connection if isinstance(transaction, Joined) else transaction
        opened = connection.sync_connection
        assert opened is not None  # noqa: S101  a statement was just executed on it
        outer = opened.get_nested_transaction()
        savepoint = connection.begin_nested()
        self._given[id(connection)] = cast("AsyncConnection", transaction)
        try:
            await shielded(savepoint.start(), _patience(self._sql))
            with _refusing(opened):
                yield connection
            await self._release(savepoint, connection)
        except BaseException:
            await shielded(self._roll_back(connection, outer))
            raise
        finally:
            del self._given[id(connection)]

    def _origin(self, transaction: AsyncConnection) -> AsyncConnection:
        """Return the transaction behind one that was given away and comes back; any other as it is."""
        return self._given.get(id(transaction), transaction)

    def _is_own(self, transaction: object) -> bool:
        """Return whether the plugin began a transaction, or its SAVEPOINT, and may use it without another one."""
        given = id(transaction)
        return isinstance(transaction, Joined) or (given in self._own and given not in self._lent_to_host)

    def _check(self, connection: object) -> SyncConnection:
        """Return the connection of a host's transaction, in which the plugin can write now.

        Raises:
            TransactionInvalid: it cannot; the message says what is required.
        """
        engine = self._engines.shared
        if engine is None:
            raise TransactionInvalid(
                "a transaction can be joined only in the host's own database: set Host.database to its engine"
            )
        if not isinstance(connection, AsyncConnection):
            hint = "; of an AsyncSession, give 'await session.connection()'" if _is_session(connection) else ""
            kind = type(connection).__name__
            raise TransactionInvalid(f"a transaction has to be an SQLAlchemy AsyncConnection, not {kind}{hint}")
        opened = connection.sync_connection
        if opened is None or connection.closed or connection.invalidated:
            raise TransactionInvalid(
                "a transaction has to be an open connection; this one is closed or was lost"
            )
        is_of_pool = connection.sync_engine.pool is engine.sync_engine.pool
        if not is_of_pool and not same_database(connection.engine.url, engine.url):
            raise TransactionInvalid(
                "a transaction has to be of Host.database's database; this one is of another"
            )
        if opened in self._in_use:
            raise TransactionInvalid(IN_USE)
        return opened

    def _listen(self, engine: AsyncEngine) -> None:
        if not event.contains(engine.sync_engine, "handle_error", self._keep):
            event.listen(engine.sync_engine, "handle_error", self._keep)
            self._listening.append(engine)

    def _keep(self, context: ExceptionContext) -> None:
        """Prevent SQLAlchemy from closing a host's connection when a statement was cancelled or took too long.

        The driver has cancelled the statement on the server, and the SAVEPOINT is rolled back.
        """
        is_exit = isinstance(context.original_exception, (asyncio.CancelledError, TimeoutError))
        if is_exit and context.connection in self._in_use:
            context.is_disconnect = False

    async def _release(self, savepoint: AsyncTransaction, connection: AsyncConnection) -> None:
        innermost = connection.get_nested_transaction()
        if innermost is None or innermost.sync_transaction is not savepoint.sync_transaction:
            raise TransactionEnded
        try:
            await shielded(savepoint.commit(), _patience(self._sql))
        except DBAPIError as exc:
            if connection.invalidated or is_outage(exc):
                raise
            # A statement failed before, and the write went on.
            raise TransactionEnded(f"{TransactionEnded()} A statement of the write failed.") from exc

    async def _roll_back(self, connection: AsyncConnection, outer: Any) -> None:
        """Roll back all SAVEPOINTs that were opened within the block."""
        # When this fails, so does the rollback of the transaction around it, which then deals with the connection.
        with suppress(Exception):
            try:
                async with asyncio.timeout(_patience(self._sql)):
                    while not connection.closed and not connection.invalidated:
                        innermost = connection.get_nested_transaction()
                        if innermost is None or innermost.sync_transaction is outer:
                            return
                        await innermost.rollback()
            except TimeoutError:
                await _give_up(connection)


class _Savepoint:
    """A SAVEPOINT as an async context manager. A cancellation does not interrupt its own statements."""

    def __init__(self, connection: AsyncConnection, sql: Dialect) -> None:
        self._connection = connection
        self._sql = sql
        self._is_set = False
        self._patience = _patience(sql)

    async def __aenter__(self) -> None:
        try:
            await shielded(self._set(), self._patience)
        except asyncio.CancelledError:
            await self._end(keep=False)
            raise

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        await self._end(keep=kind is None)

    async def _end(self, *, keep: bool) -> None:
        if self._is_set:
            await shielded(self._release() if keep else self._roll_back(), self._patience)

    async def _set(self) -> None:
        connection = self._connection
        if self._sql.one_writer:
            await begin_joined(connection, may=not _is_autocommit(connection))
        elif _is_autocommit(connection):
            raise TransactionInvalid(AUTOCOMMIT)
        try:
            await connection.exec_driver_sql(f"SAVEPOINT {SAVEPOINT}")
        except BaseException as exc:
            # On PostgreSQL this error aborts the transaction, unless it was aborted already.
            if not self._sql.one_writer and code_of(exc) != ABORTED:
                await _give_up(connection)
            raise
        self._is_set = True

    async def _release(self) -> None:
        try:
            await self._connection.exec_driver_sql(f"RELEASE SAVEPOINT {SAVEPOINT}")
        except asyncio.CancelledError:
            await _give_up(self._connection)
            raise
        except BaseException:
            await self._roll_back()
            raise

    async def _roll_back(self) -> None:
        connection = self._connection
        if connection.closed or connection.invalidated:
            return
        try:
            async with asyncio.timeout(self._patience):
                await connection.exec_driver_sql(f"ROLLBACK TO SAVEPOINT {SAVEPOINT}")
                await connection.exec_driver_sql(f"RELEASE SAVEPOINT {SAVEPOINT}")
        except Exception as exc:  # noqa: BLE001  after any error, the transaction cannot be used
            log.error(  # noqa: TRY400
                "a host's transaction is lost, and its commit will fail: %s",
                type(exc).__name__,
                extra={"event": "transaction.lost"},
            )
            await _give_up(connection)


class _AfterCommit:
    """The calls after the commit of one connection's current transaction. SQLAlchemy reports a commit just before it is made.

    SQLAlchemy's listeners cannot be removed while they run, so they stay registered, and the list is emptied.
    """

    def __init__(self, connection: SyncConnection, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        # With each call: whether it was added within a SAVEPOINT of the host.
        self._waiting: list[tuple[Call, bool]] = []
        event.listen(connection, "commit", self._committing)
        event.listen(connection, "rollback", self._rolled_back)
        event.listen(connection, "rollback_savepoint", self._savepoint_rolled_back)

    def add(self, connection: SyncConnection, call: Call) -> None:
        self._waiting.append((call, connection.in_nested_transaction()))

    def _committing(self, connection: SyncConnection) -> None:
        calls, self._waiting = self._waiting, []
        if calls:
            transaction: Any = connection.get_transaction()
            self._loop.call_later(COMMIT_SECONDS, self._call, connection, transaction, calls)

    def _call(self, connection: SyncConnection, transaction: Any, calls: list[tuple[Call, bool]]) -> None:
        if transaction is not None and transaction.is_active and connection.get_transaction() is transaction:
            self._loop.call_later(COMMIT_SECONDS, self._call, connection, transaction, calls)
            return
        for call, _ in calls:
            call()

    def _rolled_back(self, _connection: SyncConnection) -> None:
        self._waiting = []

    def _savepoint_rolled_back(self, _connection: SyncConnection, _name: str, _context: None) -> None:
        # It may be a SAVEPOINT within that one. A missing call only means that a worker polls later.
        self._waiting = [(call, is_nested) for call, is_nested in self._waiting if not is_nested]


@contextmanager
def _refusing(connection: SyncConnection) -> Iterator[None]:
    """Have a connection refuse to end its transaction, through whatever object it is asked to."""

    def refuse(*_: object, **__: object) -> None:
        raise TransactionEnded

    own: dict[str, Any] = vars(connection)
    own.update(dict.fromkeys(REFUSED, refuse))
    try:
        yield
    finally:
        for name in REFUSED:
            del own[name]


async def _give_up(connection: AsyncConnection) -> None:
    """Invalidate a host's connection whose transaction cannot be repaired; the server may be gone, so nothing is waited for."""
    with suppress(Exception):
        driver: Any = (await connection.get_raw_connection()).driver_connection
        if connection.dialect.name != "sqlite" and hasattr(driver, "terminate"):
            driver.terminate()
    with suppress(Exception):
        await shielded(connection.invalidate())


def _patience(sql: Dialect) -> float | None:
    """Return how long a statement may take that ends a SAVEPOINT: no limit would end one that runs in a thread."""
    return waiting.RECOVERY_SECONDS if sql.is_server else None


def _is_autocommit(connection: AsyncConnection) -> bool:
    options: Any = connection.sync_connection.get_execution_options() if connection.sync_connection else {}
    level = options.get("isolation_level") or getattr(connection.dialect, "_on_connect_isolation_level", None)
    return bool(level == "AUTOCOMMIT")


def _is_session(connection: object) -> bool:
    return any(kind.__name__ in {"AsyncSession", "async_scoped_session"} for kind in type(connection).__mro__)
