"""The plugin's SQL in a host's transaction: within a SAVEPOINT, so that the transaction stays usable whatever fails."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager, suppress
from typing import Any, Final, TypeVar, cast

from sqlalchemy import event
from sqlalchemy.engine import Connection as SyncConnection
from sqlalchemy.engine import ExceptionContext
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from flowactions_hookspecs import TransactionInvalid
from flowactions_plugin.storage.commits import AfterCommit
from flowactions_plugin.storage.outages import code_of
from flowactions_plugin.storage.shielding import shielded
from flowactions_plugin.storage.sqlite import AUTOCOMMIT, Deadline, begin_immediate, waiting_until
from flowactions_plugin.storage.urls import same_database

log = logging.getLogger("flowactions.storage")

T = TypeVar("T")

SAVEPOINT: Final = "flowactions"
"""One within the other may have the same name: the innermost is meant."""

ABORTED: Final = "25P02"
"""SQLSTATE: an earlier statement failed, and nothing is taken until a rollback."""


IN_USE: Final = "another call of the plugin uses this transaction: wait for it first"


class Joined:
    """A host's connection within the plugin's SAVEPOINT. It stands in for an `AsyncConnection` to execute statements.

    Args:
        connection: the host's.

    Attributes:
        calls: what is called when the host has committed, unless the SAVEPOINT is rolled back.
    """

    def __init__(self, connection: AsyncConnection) -> None:
        self._connection = connection
        self._in_thread = connection.dialect.name == "sqlite"
        self.calls: list[Callable[[], None]] = []

    async def execute(self, statement: Any, parameters: Any = None) -> Any:
        """Execute a statement, as `AsyncConnection.execute` does."""
        executing = self._connection.execute(statement, parameters)
        # SQLite's runs in a thread and goes on when nobody waits for it. PostgreSQL's driver has the server end it.
        return await (shielded(executing) if self._in_thread else executing)


class HostTransactions:
    """Joins transactions of a host.

    Args:
        engine: the host's, whose database they have to be of; ``None`` when it shares none.
    """

    def __init__(self, engine: AsyncEngine | None) -> None:
        self._engine = engine
        self._after_commit = AfterCommit()
        self._in_use: set[SyncConnection] = set()
        self._reserved: set[SyncConnection] = set()
        self._listening: list[AsyncEngine] = []

    def close(self) -> None:
        """Leave the hosts' engines as they were."""
        for engine in self._listening:
            event.remove(engine.sync_engine, "handle_error", self._keep)
        self._listening.clear()

    def check(self, connection: object) -> None:
        """See that this is a transaction that the plugin can write in.

        Raises:
            TransactionInvalid: it is not; the message says what it has to be.
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
        """Keep a transaction for one call, also between its statements.

        Raises:
            TransactionInvalid: as `check`, and when another call uses it.
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

        Either way the transaction is left as usable as it was. Where that cannot be had, for the connection or the
        transaction was lost, the connection is invalidated: the host's next statement or commit then raises, and it
        does not commit the half of what it wrote.

        Args:
            connection: the host's, or one of the plugin's that was lent to it.
            own_calls: of that one, the calls that follow its commit.

        Raises:
            TransactionInvalid: it is in AUTOCOMMIT mode, or no connection at all any more.
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
        """Have something called after the host has committed; never when it rolls back."""
        if isinstance(connection, Joined):
            connection.calls.append(call)
        else:
            self._after_commit.add(connection, call)

    def _listen(self, engine: AsyncEngine) -> None:
        if not event.contains(engine.sync_engine, "handle_error", self._keep):
            event.listen(engine.sync_engine, "handle_error", self._keep)
            self._listening.append(engine)

    def _keep(self, context: ExceptionContext) -> None:
        """Keep SQLAlchemy from giving a host's connection up when a statement of ours was cancelled or took too long.

        The driver has had the server end the statement, and the SAVEPOINT is rolled back.
        """
        is_exit = isinstance(context.original_exception, (asyncio.CancelledError, TimeoutError))
        if is_exit and context.connection in self._in_use:
            context.is_disconnect = False


class _Savepoint:
    """An async context manager. Its own statements run to their end also when the caller is cancelled."""

    def __init__(self, connection: AsyncConnection) -> None:
        self._connection = connection
        self._is_set = False

    async def __aenter__(self) -> None:
        try:
            await shielded(self._set())
        except asyncio.CancelledError:
            await self._end(keep=False)
            raise

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        await self._end(keep=kind is None)

    async def _end(self, *, keep: bool) -> None:
        if self._is_set:
            await shielded(self._release() if keep else self._roll_back())

    async def _set(self) -> None:
        connection = self._connection
        if connection.dialect.name == "sqlite":
            await self._begin_sqlite()
        elif _is_autocommit(connection):
            raise TransactionInvalid(AUTOCOMMIT)
        try:
            await connection.exec_driver_sql(f"SAVEPOINT {SAVEPOINT}")
        except DBAPIError as exc:
            # PostgreSQL has ended the transaction with that, unless it was at an end before.
            if connection.dialect.name != "sqlite" and code_of(exc) != ABORTED:
                await _give_up(connection)
            raise
        self._is_set = True

    async def _begin_sqlite(self) -> None:
        """See to it that SQLite's transaction has begun.

        The driver begins it late, and RELEASE of a SAVEPOINT that is not in one commits.
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
        except BaseException:
            await self._roll_back()
            raise

    async def _roll_back(self) -> None:
        connection = self._connection
        if connection.closed or connection.invalidated:
            return
        try:
            await connection.exec_driver_sql(f"ROLLBACK TO SAVEPOINT {SAVEPOINT}")
            await connection.exec_driver_sql(f"RELEASE SAVEPOINT {SAVEPOINT}")
        except Exception as exc:  # noqa: BLE001  whatever it is, the transaction is not what it was
            log.error("a host's transaction is lost, and its commit will fail: %s", type(exc).__name__)  # noqa: TRY400
            await _give_up(connection)


async def _give_up(connection: AsyncConnection) -> None:
    with suppress(Exception):
        await connection.invalidate()


def _is_autocommit(connection: AsyncConnection) -> bool:
    options: Any = connection.sync_connection.get_execution_options() if connection.sync_connection else {}
    level = options.get("isolation_level") or getattr(connection.dialect, "_on_connect_isolation_level", None)
    return bool(level == "AUTOCOMMIT")


def _is_session(connection: object) -> bool:
    return any(kind.__name__ in {"AsyncSession", "async_scoped_session"} for kind in type(connection).__mro__)
