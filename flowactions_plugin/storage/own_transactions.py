"""The plugin's own transactions, and lending one to the host."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager

from sqlalchemy.ext.asyncio import AsyncConnection

from flowactions_plugin.storage.engine import Engines
from flowactions_plugin.storage.shielding import shielded
from flowactions_plugin.storage.sqlite import Deadline, Writer, begin_immediate, waiting_until
from flowactions_plugin.storage.transactions import Joined
from flowactions_plugin.storage.waiting import committing


class OwnTransactions:
    """Begins and commits transactions of one database.

    Args:
        engines: give the connections.
        is_sqlite: whether there is one writer at a time.
    """

    def __init__(self, engines: Engines, *, is_sqlite: bool) -> None:
        self._engines = engines
        self._is_sqlite = is_sqlite
        self._after_commit: dict[int, list[Callable[[], None]]] = {}
        self._lent_to_host: set[int] = set()
        self.writer = Writer()

    @asynccontextmanager
    async def begin(self, deadline: Deadline, *, as_host: bool = False) -> AsyncIterator[AsyncConnection]:
        """Open a transaction that commits when the block ends, and make the calls that follow the commit.

        Args:
            deadline: until when SQLite waits for its lock.
            as_host: see `Engines.connect`.
        """
        calls: list[Callable[[], None]] = []
        async with AsyncExitStack() as stack:
            if self._is_sqlite:
                await stack.enter_async_context(self.writer.turn(deadline))
            opened = await stack.enter_async_context(self._engines.connect(as_host=as_host))
            await self._begin(opened, deadline)
            self._after_commit[id(opened)] = calls
            try:
                yield opened
            finally:
                del self._after_commit[id(opened)]
            with committing():
                await opened.commit()
        for call in calls:
            call()

    async def _begin(self, connection: AsyncConnection, deadline: Deadline) -> None:
        if not self._is_sqlite:
            await connection.begin()
            return
        async with waiting_until(connection, deadline):
            await connection.begin()
            # When the caller is cancelled, the driver's thread continues to wait for the lock, and nothing would
            # release it.
            await shielded(begin_immediate(connection))

    @asynccontextmanager
    async def lend_to_host(self, transaction: AsyncConnection) -> AsyncIterator[None]:
        """Treat a transaction as the host's while the block runs, within a SAVEPOINT."""
        await transaction.exec_driver_sql("SAVEPOINT flowactions_lent")
        self._lent_to_host.add(id(transaction))
        try:
            yield
        finally:
            self._lent_to_host.discard(id(transaction))
        await transaction.exec_driver_sql("RELEASE SAVEPOINT flowactions_lent")

    def includes(self, transaction: object) -> bool:
        """Return whether the plugin began a transaction, or its SAVEPOINT, and may use it without another one."""
        given = id(transaction)
        return isinstance(transaction, Joined) or (
            given in self._after_commit and given not in self._lent_to_host
        )

    def calls_after(self, transaction: AsyncConnection) -> list[Callable[[], None]] | None:
        """Return the calls that follow the commit of an own transaction; ``None`` for any other."""
        return self._after_commit.get(id(transaction))
