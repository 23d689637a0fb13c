"""SQLite: its SQL, one writer at a time, and a limit on waiting for the lock."""

from __future__ import annotations

import asyncio
import sqlite3
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, closing, suppress
from pathlib import Path
from typing import Any, Final

from sqlalchemy import BigInteger, ColumnElement, bindparam
from sqlalchemy.dialects import sqlite
from sqlalchemy.engine import URL
from sqlalchemy.engine import Connection as SyncConnection
from sqlalchemy.ext.asyncio import AsyncConnection

from flowactions_hookspecs import SettingsInvalid, TransactionInvalid
from flowactions_plugin.clock import Clock
from flowactions_plugin.storage.dialect import Dialect
from flowactions_plugin.storage.urls import sqlite_path
from flowactions_plugin.storage.waiting import shielded

WAIT_SECONDS: Final = 10.0
"""How long a caller waits at most for other writers, in this process and in others together."""

WATCH_SECONDS: Final = 0.02
IDLE_WATCH_SECONDS: Final = 0.1
RECENT_SECONDS: Final = 10.0
"""Between two looks for new rows: after some came; when none came for `RECENT_SECONDS`."""

_UNCLAIMED: Final = (
    "SELECT 1 FROM flowactions_outbox WHERE rowid > ? AND claimed_by IS NULL AND status = 'pending' LIMIT 1"
)

AUTOCOMMIT: Final = "a transaction has to be one: this connection is in AUTOCOMMIT mode"

BUSY_TIMEOUT: Final = "flowactions_busy_timeout_ms"
SHORTENED: Final = "flowactions_shortened"
"""Keys in the ``info`` of a pooled connection: its busy timeout, and whether it has another one for now."""


class SQLite(Dialect):
    """SQL for SQLite."""

    name = "sqlite"
    now_text = ":now"
    is_server = False
    made_by = sqlite.dialect
    insert = staticmethod(sqlite.insert)

    def __init__(self, clock: Clock) -> None:
        self._now = bindparam("now", callable_=lambda: int(clock() * 1000), type_=BigInteger)

    def now(self) -> ColumnElement[int]:
        return self._now

    def rows_text(self, name: str, columns: Mapping[str, str]) -> str:
        values = ", ".join(f"value ->> '{column}' AS {column}" for column in columns)
        return f"SELECT {values} FROM json_each(:{name})"  # noqa: S608  names only

    @staticmethod
    def bytes_value(value: bytes) -> str | None:
        try:
            return None if b"\0" in value else value.decode()
        except UnicodeDecodeError:
            return None


class Deadline:
    """The time until which one caller waits: so many seconds from now, or `WAIT_SECONDS`."""

    def __init__(self, seconds: float | None = None) -> None:
        self._at = time.monotonic() + (WAIT_SECONDS if seconds is None else seconds)

    @property
    def left(self) -> float:
        """The remaining seconds; 0 when there are none."""
        return max(0.0, self._at - time.monotonic())


def stop_once(connection: Any, _record: object) -> None:
    """Have a new connection of aiosqlite stop its thread once; a listener for SQLAlchemy's ``connect``.

    SQLAlchemy stops it beside a close that is under way, when their caller is cancelled. That close stops it again, and waits for
    an answer of a thread that has ended: an event loop that ends then would wait for ever.
    """
    driver = connection.driver_connection
    stop: Any = getattr(driver, "stop", None)

    def once() -> Any:
        driver.stop = lambda: None
        return stop()

    if stop is not None:
        driver.stop = once


class OwnConnection(sqlite3.Connection):
    """A connection that releases its lock when it is closed.

    If a call was cancelled or failed, its statement may not have ended. SQLite then keeps the closed connection open, with its
    transaction, until the statement's cursor is garbage-collected.
    """

    def close(self) -> None:
        """Roll back and close."""
        with suppress(sqlite3.Error):
            self.rollback()
        super().close()


def driver_arguments() -> dict[str, Any]:
    """Return what the driver is given for each of the plugin's own connections."""
    return {"timeout": WAIT_SECONDS, "factory": OwnConnection}


@asynccontextmanager
async def waiting_until(connection: AsyncConnection, deadline: Deadline) -> AsyncIterator[None]:
    """Limit the busy timeout of a connection, which may be a host's, while the block runs."""
    try:
        await connection.run_sync(limit_wait, deadline.left)
        yield
    finally:
        if not connection.closed and not connection.invalidated and SHORTENED in connection.info:
            await shielded(connection.run_sync(limit_wait, None))


def limit_wait(connection: SyncConnection, seconds: float | None) -> None:
    """Limit the busy timeout of a connection; ``None``: set it as it was before."""
    if seconds is None:
        if not connection.invalidated and connection.info.pop(SHORTENED, False):
            _pragma(connection, f"PRAGMA busy_timeout = {connection.info[BUSY_TIMEOUT]}")
        return
    usual = connection.info.get(BUSY_TIMEOUT)
    if usual is None:
        # Read once for each pooled connection, through the driver, so that no transaction begins.
        usual = connection.info[BUSY_TIMEOUT] = _pragma(connection, "PRAGMA busy_timeout")
    if usual / 1000 - seconds >= 0.1:  # a smaller difference is not worth a statement
        connection.info[SHORTENED] = True  # first: a caller may be cancelled
        _pragma(connection, f"PRAGMA busy_timeout = {int(seconds * 1000)}")


def _pragma(connection: SyncConnection, statement: str) -> int:
    with closing(connection.connection.cursor()) as cursor:
        cursor.execute(statement)
        row: Any = cursor.fetchone()
    return int(row[0])


async def begin_immediate(connection: AsyncConnection, *, may: bool = True) -> None:
    """Begin SQLite's transaction with SQLAlchemy's, unless the host, its engine or the driver has begun it.

    Raises:
        TransactionInvalid: it has not begun, and ``may`` is false.
    """
    begun = not connection.in_transaction()
    if begun:
        await connection.begin()
    try:
        driver: Any = (await connection.get_raw_connection()).driver_connection
        if not driver.in_transaction:
            if not may:
                raise TransactionInvalid(AUTOCOMMIT)  # noqa: TRY301
            await connection.exec_driver_sql("BEGIN IMMEDIATE")
    except BaseException:
        if begun:
            await connection.rollback()
        raise


def switch_to_wal(url: URL, deadline: Deadline) -> None:
    """Set the journal mode of the plugin's own file, in which it is stored.

    On a new file, processes that do this at the same time can deadlock. So each waits only briefly for the lock, closes
    its connection, and tries again.

    Raises:
        SettingsInvalid: the directory does not exist.
        sqlite3.Error: the file cannot be used, or others kept it locked.
    """
    file = sqlite_path(url)
    if file is not None and not file.parent.is_dir():
        raise SettingsInvalid(
            f"the directory {file.parent} of the SQLite database {file.name} does not exist: make it, or have "
            "FLOWACTIONS_DATABASE_URL name another"
        )
    (path,), options = url.get_dialect()().create_connect_args(url)
    while True:
        try:
            with closing(sqlite3.connect(path, **{**options, "timeout": 0.05})) as connection:
                connection.execute("PRAGMA journal_mode = WAL")
                return
        except sqlite3.OperationalError as exc:
            if not deadline.left or not exc.sqlite_errorname.startswith(("SQLITE_BUSY", "SQLITE_LOCKED")):
                raise


async def watch_inserts(path: Path, on_insert: Callable[[], None]) -> None:
    """Call when any process has inserted rows of the outbox that no claim holds, and once at the beginning if there are rows.

    It goes on until it is cancelled. A look reads a counter that each commit changes, in a few microseconds. It is made in
    the event loop, as it waits for no lock.

    Raises:
        sqlite3.Error: the file cannot be opened or read.
    """
    clock = asyncio.get_running_loop().time
    version, newest, recent_until = None, 0, 0.0
    with closing(sqlite3.connect(f"{path.as_uri()}?mode=rw", uri=True, timeout=0)) as connection:
        while True:
            with suppress(sqlite3.OperationalError):  # it is locked: the next look will see
                seen = connection.execute("PRAGMA data_version").fetchone()
                if seen != version:
                    last = connection.execute("SELECT max(rowid) FROM flowactions_outbox").fetchone()[0] or 0
                    # The first look searches nothing: it would read the whole table where no row is pending.
                    if last > newest and (
                        version is None or connection.execute(_UNCLAIMED, (newest,)).fetchone()
                    ):
                        recent_until = clock() + RECENT_SECONDS
                        on_insert()
                    version, newest = seen, last
            await asyncio.sleep(WATCH_SECONDS if clock() < recent_until else IDLE_WATCH_SECONDS)
