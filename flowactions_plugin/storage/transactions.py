"""Runs the plugin's SQL in a host's transaction: in a SAVEPOINT, so that a failure leaves the transaction usable."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager, suppress
from typing import Any, Final, TypeVar, cast

from sqlalchemy import event
from sqlalchemy.engine import Connection as SyncConnection
from sqlalchemy.engine import ExceptionContext
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from flowactions_hookspecs import TransactionInvalid
from flowactions_plugin.storage.commits import AfterCommit
from flowactions_plugin.storage.outages import code_of
from flowactions_plugin.storage.shielding import shielded
from flowactions_plugin.storage.sqlite import AUTOCOMMIT, Deadline, begin_immediate, waiting_until
from flowactions_plugin.storage.urls import same_database
from flowactions_plugin.storage.waiting import recovery_seconds

log = logging.getLogger("flowactions.storage")

T = TypeVar("T")

SAVEPOINT: Final = "flowactions"
"""Nested SAVEPOINTs may have the same name: a statement applies to the innermost."""

ABORTED: Final = "25P02"
"""SQLSTATE: an earlier statement failed, and no statement is accepted before a rollback."""

IN_USE: Final = "another call of the plugin uses this transaction: wait for it first"


class Joined:
    """A host's transaction within the plugin's SAVEPOINT. It executes statements as an `AsyncConnection` does.

    Args:
        connection: the host's.

    Attributes:
        connection: the host's.
        calls: called after the host's commit, unless the SAVEPOINT is rolled back.
    """

    def __init__(self, connection: AsyncConnection) -> None:
        self.connection = connection
        self._in_thread = connection.dialect.name == "sqlite"
        self.calls: list[Callable[[], None]] = []

    async def execute(self, statement: Any, parameters: Any = None) -> Any:
        """Execute a statement, as `AsyncConnection.execute` does."""
        executing = self.connection.execute(statement, parameters)
        # On SQLite the statement runs in a thread and continues after a cancellation. PostgreSQL's driver cancels it on
        # the server.
        return await (shielded(executing) if self._in_thread else executing)


class HostTransactions:
    """Joins transactions of a host.

    Args:
        engine: the host's; transactions must be of its database. ``None`` when the host shares none.
    """

    def __init__(self, engine: AsyncEngine | None) -> None:
        self._engine = engine
        self._after_commit = AfterCommit()
        self._in_use: set[SyncConnection] = set()
        self._reserved: set[SyncConnection] = set()
        self._listening: list[AsyncEngine] = []

    def close(self) -> None:
        """Remove the listeners from the hosts' engines."""
        for engine in self._listening:
            event.remove(engine.sync_engine, "handle_error", self._keep)
        self._listening.clear()

    def check(self, connection: object) -> None:
        """Check that the plugin can write in this transaction.

        Raises:
            TransactionInvalid: it cannot; the message says what is required.
        """
        if self._engine is None:
            raise TransactionInvalid(
                "a transaction can be joined only in the host's own database: set Host.database to its engine"
            )
        if not isinstance(connection, AsyncConnection):
            hint = "; of an AsyncSession, give 'await session.connection()'" if _is_session(connection) else ""
            kind = type(connection).__name__
            raise TransactionInvalid(f"a transaction has to be an SQLAlchemy AsyncConnection, not {kind}{hint}")
        if connection.sync_connection is None or connection.closed or connection.invalidated:
            raise TransactionInvalid(
                "a transaction has to be an open connection; this one is closed or was lost"
            )
        ours = self._engine.sync_engine
        if connection.sync_engine.pool is not ours.pool and not same_database(
            connection.engine.url, self._engine.url
        ):
            raise TransactionInvalid(
                "a transaction has to be of Host.database's database; this one is of another"
            )

    @contextmanager
    def reserved(self, connection: AsyncConnection) -> Iterator[None]:
        """Reserve a transaction for one call, also between its statements.

        Raises:
            TransactionInvalid: as `check` does, or another call uses the transaction.
        """
        self.check(connection)
        reserved = cast("SyncConnection", connection.sync_connection)
        if reserved in self._in_use | self._reserved:
            raise TransactionInvalid(IN_USE)
        self._reserved.add(reserved)
        try:
            yield
        finally:
            self._reserved.discard(reserved)

    @asynccontextmanager
    async def joined(
        self, connection: AsyncConnection, own_calls: list[Callable[[], None]] | None = None
    ) -> AsyncIterator[AsyncConnection]:
        """Open a SAVEPOINT that is released when the block ends and rolled back when it raises.

        In both cases the transaction stays usable. When the connection or the transaction was lost, the connection is
        invalidated: the host's next statement or commit raises, so that no part of its writes is committed.

        Args:
            connection: the host's, or one of the plugin's that was lent to the host.
            own_calls: the calls that follow the commit of a lent one.

        Raises:
            TransactionInvalid: it is in AUTOCOMMIT mode, or its connection is closed.
        """
        in_use = connection.sync_connection
        if in_use is None or in_use in self._in_use:
            raise TransactionInvalid(IN_USE)
        self._listen(connection.engine)
        self._in_use.add(in_use)
        joined = Joined(connection)
        try:
            async with AsyncExitStack() as stack:
                if connection.dialect.name == "sqlite":
                    await stack.enter_async_context(waiting_until(connection, Deadline()))
                async with _Savepoint(connection):
                    yield cast("AsyncConnection", joined)
        finally:
            self._in_use.discard(in_use)
        for call in joined.calls:
            if own_calls is None:
                self._after_commit.add(connection, call)
            else:
                own_calls.append(call)

    def after_commit(self, connection: AsyncConnection, call: Callable[[], None]) -> None:
        """Call something after the host's commit, and never after a rollback."""
        if isinstance(connection, Joined):
            connection.calls.append(call)
        else:
            self._after_commit.add(connection, call)

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


class _Savepoint:
    """A SAVEPOINT as an async context manager. A cancellation does not interrupt its own statements."""

    def __init__(self, connection: AsyncConnection) -> None:
        self._connection = connection
        self._is_set = False
        self._patience = recovery_seconds(connection.dialect.name)

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
        if connection.dialect.name == "sqlite":
            await self._begin_sqlite()
        elif _is_autocommit(connection):
            raise TransactionInvalid(AUTOCOMMIT)
        try:
            await connection.exec_driver_sql(f"SAVEPOINT {SAVEPOINT}")
        except BaseException as exc:
            # On PostgreSQL this error aborts the transaction, unless it was aborted already.
            if connection.dialect.name != "sqlite" and code_of(exc) != ABORTED:
                await give_up(connection)
            raise
        self._is_set = True

    async def _begin_sqlite(self) -> None:
        """Begin SQLite's transaction.

        The driver delays BEGIN until the first write, and without it RELEASE of the SAVEPOINT commits.
        """
        connection = self._connection
        begun = not connection.in_transaction()
        if begun:
            await connection.begin()
        try:
            await begin_immediate(connection, may=not _is_autocommit(connection))
        except BaseException:
            if begun:
                await connection.rollback()
            raise

    async def _release(self) -> None:
        try:
            await self._connection.exec_driver_sql(f"RELEASE SAVEPOINT {SAVEPOINT}")
        except asyncio.CancelledError:
            await give_up(self._connection)
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
            await give_up(connection)


async def give_up(connection: AsyncConnection) -> None:
    """Invalidate a host's connection whose transaction cannot be repaired; the server may be gone, so nothing is waited for."""
    with suppress(Exception):
        driver: Any = (await connection.get_raw_connection()).driver_connection
        if connection.dialect.name != "sqlite" and hasattr(driver, "terminate"):
            driver.terminate()
    with suppress(Exception):
        await shielded(connection.invalidate())


def _is_autocommit(connection: AsyncConnection) -> bool:
    options: Any = connection.sync_connection.get_execution_options() if connection.sync_connection else {}
    level = options.get("isolation_level") or getattr(connection.dialect, "_on_connect_isolation_level", None)
    return bool(level == "AUTOCOMMIT")


def _is_session(connection: object) -> bool:
    return any(kind.__name__ in {"AsyncSession", "async_scoped_session"} for kind in type(connection).__mro__)
