"""Calls functions after a host's commit."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Final, NamedTuple
from weakref import WeakKeyDictionary

from sqlalchemy import event
from sqlalchemy.engine import Connection as SyncConnection
from sqlalchemy.ext.asyncio import AsyncConnection

COMMIT_SECONDS: Final = 0.02
"""How long to wait for a host's commit before checking whether it has finished."""


class AfterCommit:
    """Calls that follow the commits of hosts' open transactions. SQLAlchemy reports a commit just before it is made."""

    def __init__(self) -> None:
        self._connections: WeakKeyDictionary[SyncConnection, _Calls] = WeakKeyDictionary()

    def add(self, connection: AsyncConnection, call: Callable[[], None]) -> None:
        """Call something a moment after the current transaction has committed.

        There is no call when the transaction, or a SAVEPOINT around the writes so far, is rolled back. There may be one
        when the commit itself fails.

        Args:
            connection: the host's.
            call: quick, and does not raise.
        """
        opened = connection.sync_connection
        assert opened is not None  # noqa: S101  a statement was just executed on it
        if opened not in self._connections:
            self._connections[opened] = _Calls(opened, asyncio.get_running_loop())
        self._connections[opened].add(opened, call)


class _Call(NamedTuple):
    """A call that waits for a commit.

    Attributes:
        call: the function.
        nested: whether it was added within a SAVEPOINT of the host.
    """

    call: Callable[[], None]
    nested: bool


class _Calls:
    """The calls of one connection's current transaction.

    SQLAlchemy's listeners cannot be removed while they run, so they stay registered, and the list is emptied.
    """

    def __init__(self, connection: SyncConnection, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._waiting: list[_Call] = []
        event.listen(connection, "commit", self._committing)
        event.listen(connection, "rollback", self._rolled_back)
        event.listen(connection, "rollback_savepoint", self._savepoint_rolled_back)

    def add(self, connection: SyncConnection, call: Callable[[], None]) -> None:
        self._waiting.append(_Call(call, connection.in_nested_transaction()))

    def _committing(self, connection: SyncConnection) -> None:
        calls, self._waiting = self._waiting, []
        if calls:
            transaction: Any = connection.get_transaction()
            self._loop.call_later(COMMIT_SECONDS, self._call, connection, transaction, calls)

    def _call(self, connection: SyncConnection, transaction: Any, calls: list[_Call]) -> None:
        if transaction is not None and transaction.is_active and connection.get_transaction() is transaction:
            self._loop.call_later(COMMIT_SECONDS, self._call, connection, transaction, calls)
            return
        for each in calls:
            each.call()

    def _rolled_back(self, _connection: SyncConnection) -> None:
        self._waiting = []

    def _savepoint_rolled_back(self, _connection: SyncConnection, _name: str, _context: None) -> None:
        # It may be a SAVEPOINT within that one. A missing call only means that a worker polls later.
        self._waiting = [each for each in self._waiting if not each.nested]
