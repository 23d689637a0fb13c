"""Gives a transaction to another plugin's code, which executes statements in it and cannot end it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from typing import Any, Final, cast

from sqlalchemy.engine import Connection as SyncConnection
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncTransaction

from flowactions_plugin.errors import TransactionEnded
from flowactions_plugin.storage.outages import is_outage
from flowactions_plugin.storage.shielding import shielded
from flowactions_plugin.storage.transactions import Joined, give_up
from flowactions_plugin.storage.waiting import recovery_seconds

REFUSED: Final = ("close", "commit", "rollback")
"""Methods of a connection that would end its transaction. ``invalidate`` is SQLAlchemy's own when a connection is lost."""


class GuardedTransactions:
    """The transactions of one database that are given away at the moment."""

    def __init__(self) -> None:
        self._origins: dict[int, AsyncConnection] = {}

    def origin(self, transaction: AsyncConnection) -> AsyncConnection:
        """Return the transaction behind one that was given away and comes back; any other as it is."""
        return self._origins.get(id(transaction), transaction)

    @asynccontextmanager
    async def guarded(self, transaction: AsyncConnection | Joined) -> AsyncIterator[AsyncConnection]:
        """Yield the connection itself, in a SAVEPOINT of SQLAlchemy's, so that sessions can be bound to it, too.

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
        self._origins[id(connection)] = cast("AsyncConnection", transaction)
        try:
            await shielded(savepoint.start(), recovery_seconds(connection.dialect.name))
            with _refusing(opened):
                yield connection
            await _release(savepoint, connection)
        except BaseException:
            await shielded(_roll_back(connection, outer))
            raise
        finally:
            del self._origins[id(connection)]


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


async def _release(savepoint: AsyncTransaction, connection: AsyncConnection) -> None:
    innermost = connection.get_nested_transaction()
    if innermost is None or innermost.sync_transaction is not savepoint.sync_transaction:
        raise TransactionEnded
    try:
        await shielded(savepoint.commit(), recovery_seconds(connection.dialect.name))
    except DBAPIError as exc:
        if connection.invalidated or is_outage(exc):
            raise
        # A statement failed before, and the write went on.
        raise TransactionEnded(f"{TransactionEnded()} A statement of the write failed.") from exc


async def _roll_back(connection: AsyncConnection, outer: Any) -> None:
    """Roll back all SAVEPOINTs that were opened within the block."""
    # When this fails, so does the rollback of the transaction around it, which then deals with the connection.
    with suppress(Exception):
        try:
            async with asyncio.timeout(recovery_seconds(connection.dialect.name)):
                while not connection.closed and not connection.invalidated:
                    innermost = connection.get_nested_transaction()
                    if innermost is None or innermost.sync_transaction is outer:
                        return
                    await innermost.rollback()
        except TimeoutError:
            await give_up(connection)
