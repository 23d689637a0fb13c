"""The transactions of one database: the plugin's own, and the host's, in which the plugin writes within a SAVEPOINT.

A failure of the plugin's leaves a host's transaction usable, or makes the host's commit raise: no part of it is stored.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, nullcontext, suppress
from contextvars import ContextVar
from typing import Any, Final, TypeAlias
from weakref import WeakKeyDictionary

from sqlalchemy import event
from sqlalchemy.engine import Connection as SyncConnection
from sqlalchemy.engine import ExceptionContext, RootTransaction
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncTransaction

from flowactions_hookspecs import TransactionInvalid
from flowactions_plugin.errors import StorageUnavailable, TransactionEnded
from flowactions_plugin.storage import sqlite, waiting
from flowactions_plugin.storage.connections import OWN_SCHEMA, Engines
from flowactions_plugin.storage.dialect import Dialect
from flowactions_plugin.storage.outages import code_of
from flowactions_plugin.storage.sqlite import AUTOCOMMIT, Deadline, begin_immediate, waiting_until
from flowactions_plugin.storage.urls import same_database
from flowactions_plugin.storage.waiting import committing, note_unconfirmed, shielded

log = logging.getLogger("flowactions.storage")

Call: TypeAlias = Callable[[], None]
"""Called after a commit: quick, and does not raise."""

OWN: Final = "flowactions_own"
"""Execution option of the plugin's own transactions, and of a host's within the plugin's SAVEPOINT: it writes in them as they are."""

SAVEPOINT: Final = "SAVEPOINT flowactions"
"""Nested SAVEPOINTs may have the same name: a statement applies to the innermost."""

COMMIT_SECONDS: Final = 0.02
"""How long to wait for a host's commit before checking whether it has finished."""

_used: Final[ContextVar[SyncConnection | None]] = ContextVar("flowactions_used", default=None)
"""The connection of the host's transaction that the current call of the plugin uses: another call may not use it meanwhile."""


class Transactions:
    """The open transactions of one database.

    Args:
        engines: give the connections of the plugin's own transactions; a host's are of the same database.
        sql: the dialect.
    """

    def __init__(self, engines: Engines, sql: Dialect) -> None:
        self._writer = asyncio.Lock()
        self._engines = engines
        self._sql = sql
        self._in_use: set[SyncConnection] = set()
        self._after_commit: WeakKeyDictionary[RootTransaction, list[Call]] = WeakKeyDictionary()

    @property
    def _patience(self) -> float | None:
        """How long a statement may take that ends a SAVEPOINT: no limit would end one that runs in a thread."""
        return waiting.RECOVERY_SECONDS if self._sql.is_server else None

    @asynccontextmanager
    async def turn(self, deadline: Deadline) -> AsyncIterator[None]:
        """Hold the lock of this process's writers on SQLite: waiting here is fair, where SQLite polls.

        Raises:
            StorageUnavailable: others have held the lock until the deadline.
        """
        try:
            async with asyncio.timeout(deadline.left):
                await self._writer.acquire()
        except TimeoutError:
            busy = f"the database failed: it is locked: others were writing for {sqlite.WAIT_SECONDS:g} s"
            raise StorageUnavailable(busy, code="SQLITE_BUSY") from None
        try:
            yield
        finally:
            self._writer.release()

    @asynccontextmanager
    async def begin(self, deadline: Deadline, *, as_host: bool = False) -> AsyncIterator[AsyncConnection]:
        """Open one of the plugin's own, which commits when the block ends, and make the calls that follow the commit.

        Args:
            deadline: until when SQLite's lock is waited for.
            as_host: whether it is as the host's are, where the host gave an engine: the plugin writes in it within a
                SAVEPOINT, too.
        """
        calls: list[Call] = []
        is_hosts = as_host and self._engines.shared is not None
        options = {} if is_hosts else {**self._engines.own_options, OWN: True}
        turn = nullcontext() if self._sql.is_server else self.turn(deadline)
        with committing() as commits:
            async with turn, self._engines.connect(options) as opened:
                if self._sql.is_server:
                    await opened.begin()
                    if not is_hosts:
                        await self._engines.set_path(opened)
                else:
                    async with waiting_until(opened, deadline):
                        # When the caller is cancelled, the driver's thread continues to wait for the lock, and nothing would
                        # release it.
                        await shielded(begin_immediate(opened))
                if (root := _opened(opened).get_transaction()) is not None:
                    self._after_commit[root] = calls
                yield opened
                commits()
                await opened.commit()
        for call in calls:
            call()

    @contextmanager
    def using(self, transaction: AsyncConnection | None) -> Iterator[None]:
        """Check a host's transaction, if it gave one, and reserve it for the call that came with it, also between its statements.

        Raises:
            TransactionInvalid: it cannot be joined, or another call uses it.
        """
        opened = None if transaction is None or self._is_own(transaction) else self._check(transaction)
        if opened is None or opened in self._in_use:
            yield
            return
        self._in_use.add(opened)
        before = _used.set(opened)
        try:
            yield
        finally:
            _used.reset(before)
            self._in_use.discard(opened)

    @asynccontextmanager
    async def joined(self, transaction: AsyncConnection) -> AsyncIterator[AsyncConnection]:
        """Give a transaction to a block: one of the plugin's own as it is, a host's within a SAVEPOINT.

        The SAVEPOINT is released when the block ends and rolled back when it raises. In both cases the transaction stays
        usable. When the connection or the transaction was lost, the connection is invalidated: the host's next statement
        or commit raises, so that no part of its writes is committed.

        Raises:
            TransactionInvalid: it cannot be joined; the message says what is required.
        """
        if self._is_own(transaction):
            yield transaction
            return
        with self.using(transaction):
            opened = _opened(transaction)
            hosts_map = opened.get_execution_options().get("schema_translate_map")
            event.listen(transaction.dialect, "handle_error", _keep)  # once: another time changes nothing
            is_whole = False
            async with nullcontext() if self._sql.is_server else waiting_until(transaction, Deadline()):
                try:
                    await shielded(self._set_savepoint(transaction), self._patience)
                    yield transaction
                    is_whole = True
                    await shielded(self._release(transaction), self._patience)
                except BaseException as exc:
                    if self._is_own(transaction):
                        await shielded(self._roll_back(transaction), self._patience)
                    elif is_whole and not transaction.invalidated:
                        note_unconfirmed(exc)  # it is released, and the host decides
                    raise
                finally:
                    opened.execution_options(schema_translate_map=hosts_map, **{OWN: False})

    def after_commit(self, transaction: AsyncConnection, call: Call) -> None:
        """Call something after the commit of a transaction: of a host's, a moment later.

        There is no call when the transaction is rolled back. There may be one when a SAVEPOINT in it is, or when a host's
        commit itself fails.
        """
        opened = _opened(transaction)
        if (root := opened.get_transaction()) is not None:
            if root not in self._after_commit:
                event.listen(opened, "commit", self._committing)  # of a host's; another time changes nothing
            self._after_commit.setdefault(root, []).append(call)

    def _committing(self, connection: SyncConnection) -> None:
        if (root := connection.get_transaction()) is not None:
            _call(root, self._after_commit.pop(root, []))

    @asynccontextmanager
    async def lent(self, connection: AsyncConnection) -> AsyncIterator[AsyncConnection]:
        """Give a transaction, which the plugin has begun or joined, to code of others, in a SAVEPOINT of SQLAlchemy's.

        Sessions can so be bound to it. When the block raises, whoever began or joined the transaction rolls it back.

        Raises:
            TransactionEnded: the block has ended the transaction, or has tried to, or has left a SAVEPOINT open.
        """
        opened, outer = _opened(connection), connection.get_nested_transaction()
        savepoint = connection.begin_nested()
        event.listen(opened, "commit", _refuse)
        try:
            await shielded(savepoint.start(), self._patience)
            yield connection
            if connection.get_nested_transaction() != savepoint:
                raise TransactionEnded  # noqa: TRY301
            await shielded(savepoint.commit(), self._patience)
        except BaseException:
            await shielded(self._close_nested(connection, outer))
            raise
        finally:
            event.remove(opened, "commit", _refuse)

    def _is_own(self, transaction: object) -> bool:
        """Return whether a transaction is one of the plugin's own, or within its SAVEPOINT.

        Raises:
            TransactionInvalid: another call uses it.
        """
        opened = getattr(transaction, "sync_connection", None)
        if opened in self._in_use and _used.get() is not opened:
            raise TransactionInvalid("another call of the plugin uses this transaction: wait for it first")
        return opened is not None and bool(opened.get_execution_options().get(OWN))

    def _check(self, connection: object) -> SyncConnection:
        """Return the connection of a host's transaction, in which the plugin can write.

        Raises:
            TransactionInvalid: it cannot; the message says what is required.
        """
        if (engine := self._engines.shared) is None:
            wrong = "can be joined only in the host's own database: set Host.database to its engine"
        elif not isinstance(connection, AsyncConnection):
            hint = (
                "; of an AsyncSession, give 'await session.connection()'"
                if hasattr(connection, "connection")
                else ""
            )
            wrong = f"has to be an SQLAlchemy AsyncConnection, not {type(connection).__name__}{hint}"
        elif (opened := connection.sync_connection) is None or connection.closed or connection.invalidated:
            wrong = "has to be an open connection; this one is closed or was lost"
        elif connection.sync_engine.pool is not engine.sync_engine.pool and not same_database(
            connection.engine.url, engine.url
        ):
            wrong = "has to be of Host.database's database; this one is of another"
        else:
            return opened
        raise TransactionInvalid(f"a transaction {wrong}")

    async def _set_savepoint(self, connection: AsyncConnection) -> None:
        options, dialect = _opened(connection).get_execution_options(), connection.dialect
        level = options.get("isolation_level") or getattr(dialect, "_on_connect_isolation_level", None)
        if not self._sql.is_server:
            # The driver delays BEGIN until the first write, and without it RELEASE of the SAVEPOINT commits.
            await begin_immediate(connection, may=level != "AUTOCOMMIT")
        elif level == "AUTOCOMMIT":
            raise TransactionInvalid(AUTOCOMMIT)
        try:
            await connection.exec_driver_sql(SAVEPOINT)
        except BaseException as exc:
            # On PostgreSQL this error aborts the transaction, unless an earlier one did.
            if self._sql.is_server and code_of(exc) != "25P02":
                await _give_up(connection)
            raise
        # A host's map of schemas does not hold for the plugin's tables.
        _opened(connection).execution_options(**OWN_SCHEMA, **{OWN: True})

    async def _release(self, connection: AsyncConnection) -> None:
        try:
            await connection.exec_driver_sql(f"RELEASE {SAVEPOINT}")
        except asyncio.CancelledError:
            await _give_up(connection)
            raise
        _opened(connection).execution_options(**{OWN: False})

    async def _roll_back(self, connection: AsyncConnection) -> None:
        if connection.closed or connection.invalidated:
            return
        try:
            async with asyncio.timeout(self._patience):
                await connection.exec_driver_sql(f"ROLLBACK TO {SAVEPOINT}")
                await connection.exec_driver_sql(f"RELEASE {SAVEPOINT}")
        except Exception as exc:  # noqa: BLE001  after any error, the transaction cannot be used
            log.error(  # noqa: TRY400
                "a host's transaction is lost, and its commit will fail: %s",
                type(exc).__name__,
                extra={"event": "transaction.lost"},
            )
            await _give_up(connection)

    async def _close_nested(self, connection: AsyncConnection, outer: AsyncTransaction | None) -> None:
        """Roll back SQLAlchemy's SAVEPOINTs within another one, so that SQLAlchemy knows of none that is not there."""
        with suppress(SQLAlchemyError, TimeoutError):
            async with asyncio.timeout(self._patience):
                while (last := connection.get_nested_transaction()) is not None and last != outer:
                    await last.rollback()
            root = connection.get_transaction()
            if root is None or root.is_active:
                return
        # The server does not answer, or a commit was refused: SQLAlchemy would put the connection with its transaction back.
        await _give_up(connection)


def _opened(connection: AsyncConnection) -> SyncConnection:
    opened = connection.sync_connection
    assert opened is not None  # noqa: S101  a statement was just executed on it
    return opened


def _call(root: RootTransaction, calls: list[Call]) -> None:
    """Make the calls when the commit has ended: SQLAlchemy reports it just before it is made."""
    if calls and root.is_active:
        asyncio.get_running_loop().call_later(COMMIT_SECONDS, _call, root, calls)
        return
    for call in calls:
        call()


def _keep(context: ExceptionContext) -> None:
    """Prevent SQLAlchemy from closing a host's connection when a statement was cancelled or took too long.

    The driver has cancelled the statement on the server, and the SAVEPOINT is rolled back.
    """
    is_exit = isinstance(context.original_exception, (asyncio.CancelledError, TimeoutError))
    if is_exit and (used := _used.get()) is not None and context.connection is used:
        context.is_disconnect = False


def _refuse(_connection: SyncConnection) -> None:
    raise TransactionEnded


async def _give_up(connection: AsyncConnection) -> None:
    """Invalidate a host's connection whose transaction cannot be repaired; the server may be gone, so nothing is waited for."""
    with suppress(Exception):
        driver: Any = (await connection.get_raw_connection()).driver_connection
        driver.terminate()  # as asyncpg has it
    with suppress(Exception):
        await shielded(connection.invalidate())
