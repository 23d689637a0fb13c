"""What SQLite needs that PostgreSQL does not: one writer at a time, and an end to waiting for it."""

from __future__ import annotations

import asyncio
import sqlite3
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import Any, Final

from sqlalchemy.engine import Connection as SyncConnection
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from flowactions_hookspecs import TransactionInvalid
from flowactions_plugin.errors import StorageMisplaced, StorageUnavailable
from flowactions_plugin.storage.urls import sqlite_path

WAIT_SECONDS: Final = 10.0
"""How long a caller waits for the one writer at the most, for others in this process and in other ones together."""

PRAGMA_WORTH_SECONDS: Final = 0.1
"""A wait that is shortened by less than this is not worth a statement."""

WAL_PAUSE_MS: Final = 50

AUTOCOMMIT: Final = "a transaction has to be one: this connection is in AUTOCOMMIT mode"

BUSY_TIMEOUT_KEY: Final = "flowactions_busy_timeout_ms"
"""Where a pooled connection keeps how long it waits for a lock."""


class Deadline:
    """Until when one caller waits: `WAIT_SECONDS` from now."""

    def __init__(self) -> None:
        self._at = time.monotonic() + WAIT_SECONDS

    @property
    def left(self) -> float:
        """Seconds that are left, 0 when none are."""
        return max(0.0, self._at - time.monotonic())


class Writer:
    """This process's turns at writing: waiting here is fair, waiting in SQLite is polling."""

    def __init__(self) -> None:
        self._lock = asyncio.Lock()

    @asynccontextmanager
    async def turn(self, deadline: Deadline) -> AsyncIterator[None]:
        """Wait for a turn, and keep it until the block ends.

        Raises:
            StorageUnavailable: others have held the database until the deadline.
        """
        try:
            async with asyncio.timeout(deadline.left):
                await self._lock.acquire()
        except TimeoutError:
            raise StorageUnavailable(
                f"the database failed: it is locked: others were writing for {WAIT_SECONDS:g} s",
                code="SQLITE_BUSY",
            ) from None
        try:
            yield
        finally:
            self._lock.release()


def prepare_connection(connection: Any, record: Any) -> None:
    """Set how long a new connection of our own waits for a lock; a listener for SQLAlchemy's ``connect``."""
    timeout = int(WAIT_SECONDS * 1000)
    cursor = connection.cursor()
    cursor.execute(f"PRAGMA busy_timeout = {timeout}")
    cursor.close()
    record.info[BUSY_TIMEOUT_KEY] = timeout


@asynccontextmanager
async def waiting_until(connection: AsyncConnection, deadline: Deadline) -> AsyncIterator[None]:
    """Have a connection, which may be a host's, wait for locks no longer than this, as long as the block runs."""
    usual = await connection.run_sync(shorten_wait, deadline.left)
    try:
        yield
    finally:
        if usual is not None and not connection.closed and not connection.invalidated:
            await connection.run_sync(set_busy_timeout, usual)


def shorten_wait(connection: SyncConnection, seconds: float) -> int | None:
    """Shorten the wait of a connection; give what it was, ``None`` when it stays."""
    usual = connection.info.get(BUSY_TIMEOUT_KEY)
    if usual is None:
        # Once for each of a pool's connections: it is asked of the driver, so that no transaction begins.
        usual = connection.info[BUSY_TIMEOUT_KEY] = _pragma(connection, "PRAGMA busy_timeout")
    if usual / 1000 - seconds < PRAGMA_WORTH_SECONDS:
        return None
    set_busy_timeout(connection, int(seconds * 1000))
    return int(usual)


def set_busy_timeout(connection: SyncConnection, milliseconds: int) -> None:
    """Set how long a connection waits for a lock."""
    _pragma(connection, f"PRAGMA busy_timeout = {milliseconds}")


def _pragma(connection: SyncConnection, statement: str) -> int:
    cursor = connection.connection.cursor()
    try:
        cursor.execute(statement)
        row: Any = cursor.fetchone()
    finally:
        cursor.close()
    return int(row[0])


async def begin_immediate(connection: AsyncConnection, *, may: bool = True) -> None:
    """Begin SQLite's transaction where SQLAlchemy's has begun, unless the engine or the driver did so by itself.

    Raises:
        TransactionInvalid: it has not begun and may not.
    """
    driver: Any = (await connection.get_raw_connection()).driver_connection
    if driver.in_transaction:
        return
    if not may:
        raise TransactionInvalid(AUTOCOMMIT)
    await connection.exec_driver_sql("BEGIN IMMEDIATE")


def check_place(path: Path | None) -> None:
    """See that there is a directory for the database's file.

    Raises:
        StorageMisplaced: there is none; the message names it.
    """
    if path is not None and not path.parent.is_dir():
        raise StorageMisplaced(
            f"the directory {path.parent} of the SQLite database {path.name} does not exist: make it, or have "
            "FLOWACTIONS_DATABASE_URL name another"
        )


def switch_to_wal(engine: AsyncEngine, deadline: Deadline) -> None:
    """Set the journal's mode, which stays with the file.

    On a new file, processes that do it at once can wait for each other for ever. So none waits for long: it lets go,
    of its connection too, and tries again.

    Raises:
        StorageMisplaced: there is no such directory.
        sqlite3.Error: the file cannot be used, or others kept it locked.
    """
    check_place(sqlite_path(engine.url))
    (path,), given = engine.dialect.create_connect_args(engine.url)
    options: dict[str, Any] = {**given, "timeout": WAL_PAUSE_MS / 1000}
    while True:
        try:
            with closing(sqlite3.connect(path, **options)) as connection:
                connection.execute("PRAGMA journal_mode = WAL")
        except sqlite3.OperationalError as exc:
            if not deadline.left or not exc.sqlite_errorname.startswith(("SQLITE_BUSY", "SQLITE_LOCKED")):
                raise
        else:
            return
