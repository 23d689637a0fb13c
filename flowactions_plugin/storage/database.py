"""One database: its transactions, joined ones of the host included."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from typing import Literal, TypeAlias, TypeVar

from sqlalchemy import Column, Table, delete, func, select, text
from sqlalchemy.engine import Connection as SyncConnection
from sqlalchemy.ext.asyncio import AsyncConnection

from flowactions_plugin.errors import StorageUnavailable
from flowactions_plugin.storage import postgresql, waiting
from flowactions_plugin.storage.conflicts import CONFLICTS, SERIALIZATION_FAILURE, repeated
from flowactions_plugin.storage.opening import OpenedDatabase
from flowactions_plugin.storage.sqlite import Deadline
from flowactions_plugin.storage.waiting import (
    STATEMENT_SECONDS,
    TRANSACTION_SECONDS,
    answering,
    committing,
)

T = TypeVar("T")

Transaction: TypeAlias = AsyncConnection
"""An open transaction, for modules that pass one on and run no SQL themselves."""


class Database(OpenedDatabase):
    """One database, shared with the host or the plugin's own; an async context manager, made and opened as its base."""

    @repeated
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
            async with answering(self._limit(TRANSACTION_SECONDS)), self._engines.connect() as connection:
                yield connection

    @asynccontextmanager
    async def write(
        self,
        transaction: AsyncConnection | None = None,
        deadline: Deadline | None = None,
        *,
        as_host: bool = False,
    ) -> AsyncIterator[AsyncConnection]:
        """Open a transaction that commits when the block ends and rolls back when it raises.

        Args:
            transaction: one that `write` gave, or the host's. The block then joins it, a host's in a SAVEPOINT, and
                whoever began it commits it.
            deadline: until when SQLite's lock is waited for by a transaction of its own; ``None``: `WAIT_SECONDS` from
                now.
            as_host: whether its isolation is the default of the host's engine, which matters to what the host writes in
                it.

        Raises:
            StorageUnavailable: the database failed.
            TransactionInvalid: the host's transaction cannot be joined.
        """
        if transaction is not None:
            with self._outages.translated():
                async with self._joined(transaction) as joined:
                    yield joined
            return
        deadline = deadline or Deadline()
        with _repeatable(), self._outages.translated():
            await self._prepare(deadline)
            async with (
                answering(self._limit(TRANSACTION_SECONDS)),
                self._own.begin(deadline, as_host=as_host) as opened,
            ):
                yield opened

    @asynccontextmanager
    async def lend_to_host(self, transaction: AsyncConnection) -> AsyncIterator[None]:
        """Let the host write in a transaction of `write` while the block runs.

        When the host passes it back to the plugin meanwhile, the plugin's statements run in a SAVEPOINT, as in a
        transaction of the host's own.

        Raises:
            StorageUnavailable: the host has left it in a state in which it cannot be committed.
        """
        with self._outages.translated():
            async with self._own.lend_to_host(transaction):
                yield

    def guarded(self, transaction: AsyncConnection) -> AbstractAsyncContextManager[AsyncConnection]:
        """Give a transaction of `write` to another plugin, which cannot end it; see `GuardedTransactions.guarded`."""
        return self._guards.guarded(transaction)

    @repeated
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
        deadline = deadline or Deadline()
        with _repeatable(self._engines.note_conflict), self._outages.translated():
            await self._prepare(deadline)
            thread = self._engines.thread
            if thread is not None:
                async with self._own.writer.turn(deadline):
                    return await thread.run(work, deadline)
            async with answering(self._limit(STATEMENT_SECONDS)):
                if self.sql.one_writer or not self._engines.reads_committed:
                    async with self._own.begin(deadline) as transaction:
                        return await transaction.run_sync(work)
                async with self._engines.autocommit() as connection:
                    with committing():
                        return await connection.run_sync(work)

    def answering(self, more: float = 0.0) -> AbstractAsyncContextManager[None]:
        """Limit what a caller waits for within the block on PostgreSQL; on SQLite each wait for the lock is limited.

        Args:
            more: seconds beside those of `ANSWER_SECONDS` in which its statements have to end, the wait for a connection
                included. To cancel them and to roll back takes less than two seconds then.

        Raises:
            StorageUnavailable: the database did not answer in time. A transaction of the plugin's own was rolled back,
                unless ``may_be_written`` says otherwise; a host's stays usable, or its commit fails.
        """
        return answering(waiting.ANSWER_SECONDS + more if self.sql.is_interruptible else None)

    def _limit(self, seconds: float) -> float | None:
        """Return a limit for the host's PostgreSQL: the plugin's own engine has one for each statement."""
        return seconds if self.sql.is_interruptible and self._engines.is_shared else None

    async def limit_lock_waits(self, transaction: AsyncConnection, milliseconds: int) -> None:
        """Have statements of a transaction of `write` fail that wait longer for a lock; SQLite has no such locks.

        Raises:
            StorageUnavailable: the database failed.
        """
        if not self.sql.one_writer:
            await transaction.execute(select(func.set_config("lock_timeout", str(milliseconds), True)))

    async def lock_table(
        self, transaction: AsyncConnection, table: Table, mode: Literal["ROW EXCLUSIVE", "SHARE"]
    ) -> None:
        """Lock a table in a transaction of `write`; on SQLite such a transaction is alone anyway.

        Args:
            transaction: holds the lock until it ends.
            table: what is locked.
            mode: ``SHARE`` waits for transactions that have written to it or hold ``ROW EXCLUSIVE``, and these wait for it.

        Raises:
            StorageUnavailable: the database failed.
        """
        if not self.sql.one_writer:
            await transaction.execute(text(f"LOCK TABLE {table.name} IN {mode} MODE"))

    async def time(self) -> float:
        """Return the time, Unix seconds, that decides what is due: that of PostgreSQL's server, or the given clock's.

        Raises:
            StorageUnavailable: the database failed.
        """
        async with self.read() as connection:
            found = await connection.scalar(select(self.sql.now()))
        return (found or 0) / 1000

    async def notify(self, channel: str, payload: str) -> None:
        """Notify the listeners of a channel of PostgreSQL.

        Args:
            channel: its name.
            payload: what they are told, up to 8000 bytes.

        Raises:
            StorageUnavailable: the database failed.
        """
        notifying = select(func.pg_notify(channel, payload))
        await self.in_transaction(lambda connection: connection.execute(notifying))

    async def listen(self, channel: str, on_notify: Callable[[str], None]) -> None:
        """Listen on a channel of PostgreSQL, on a separate connection, until that is lost.

        Args:
            channel: its name.
            on_notify: called with the payload of each notification.

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


@contextmanager
def _repeatable(note_conflict: Callable[[], None] | None = None) -> Iterator[None]:
    """Mark the error of a transaction of the plugin's own that conflicted with another one."""
    try:
        yield
    except StorageUnavailable as exc:
        exc.repeatable = exc.code in CONFLICTS
        if exc.code == SERIALIZATION_FAILURE and note_conflict is not None:
            note_conflict()
        raise
