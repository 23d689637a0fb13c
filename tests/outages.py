"""Databases as tests about them open them, take them away for real, and give them back."""

from __future__ import annotations

import asyncio
import secrets
import sqlite3
import ssl
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, closing, contextmanager, suppress
from typing import Any
from unittest import mock
from uuid import uuid4

import asyncpg
from sqlalchemy import delete, event, insert, text
from sqlalchemy.engine import Engine, make_url
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine

from flowactions_plugin.clock import timer
from flowactions_plugin.errors import StorageUnavailable
from flowactions_plugin.settings.model import read_settings
from flowactions_plugin.storage.database import Database
from flowactions_plugin.storage.outages import Refused
from flowactions_plugin.storage.schema import inbound_events
from tests.loopback import listening
from tests.waiting import SAFETY_SECONDS

SSL_REQUEST = bytes.fromhex("0000000804d2162f")


def parsed(url: str) -> str:
    """Give a database URL as the setting gives it."""
    return read_settings({"FLOWACTIONS_DATABASE_URL": url}).database_url


def a_database(url: str, **options: Any) -> Database:
    """Make a database of the plugin's own."""
    return Database(parsed(url), **options)


async def execute(url: str, *statements: str) -> None:
    """Execute statements as an administrator does, each by itself."""
    if url.startswith("sqlite"):
        # In a thread: it may wait for a transaction of the event loop.
        await asyncio.to_thread(_execute_sqlite, str(make_url(url).database), *statements)
        return
    plain = make_url(url).set(drivername="postgresql").render_as_string(hide_password=False)
    connection = await asyncpg.connect(plain)
    try:
        for each in statements:
            await connection.execute(each)
    finally:
        await connection.close()


def _execute_sqlite(path: str, *statements: str) -> None:
    with closing(sqlite3.connect(path, timeout=SAFETY_SECONDS)) as connection:
        for each in statements:
            connection.execute(each)
        connection.commit()


async def waiting_for_locks(database: Database) -> int:
    """Count the sessions of a PostgreSQL database that wait for a lock."""
    waiting = (
        "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()"
    )
    async with database.read() as connection:
        return int((await connection.execute(text(waiting))).scalar_one())


@asynccontextmanager
async def a_role(url: str, *grants: str, password: str | None = None, limit: int = -1) -> AsyncIterator[str]:
    """Give the URL for a role with rights on what is granted, and with so many connections; it is removed in the end."""
    role = f"role_{uuid4().hex}"
    secret = f" PASSWORD '{password}'" if password else ""
    rights = (f'GRANT {each} TO "{role}"' for each in grants)
    await execute(url, f'CREATE ROLE "{role}" LOGIN CONNECTION LIMIT {limit}{secret}', *rights)
    try:
        yield make_url(url).set(username=role, password=password).render_as_string(hide_password=False)
    finally:
        await execute(
            url,
            f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = '{role}'",  # noqa: S608
            f'DROP OWNED BY "{role}"',
            f'DROP ROLE "{role}"',
        )


class Door:
    """A port that leads to PostgreSQL while it is open.

    Args:
        url: the server's.
        context: with it, the port speaks TLS as a server with ssl=on does, for one that was built without it.

    Attributes:
        is_open: whether bytes get through; they are swallowed if not, as by a network that was unplugged.
        plain: how many connections came without TLS.
        encrypted: how many with it.
    """

    def __init__(self, url: str, context: ssl.SSLContext | None = None, *, is_open: bool = True) -> None:
        parts = make_url(url)
        self._host, self._port = str(parts.query.get("host") or parts.host), parts.port or 5432
        self._context = context
        self._url = parts
        self.is_open = is_open
        self.plain = self.encrypted = 0

    @asynccontextmanager
    async def url(self, query: str = "") -> AsyncIterator[str]:
        """Give the URL through the door."""
        async with listening(self._enter) as port:
            through = self._url.set(host="127.0.0.1", port=port, query={})
            yield f"{through.render_as_string(hide_password=False)}{query and '?'}{query}"

    async def _enter(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if not self.is_open:
            return
        first = await reader.readexactly(8)
        if first == SSL_REQUEST and self._context is not None:
            writer.write(b"S")
            await writer.drain()
            with suppress(OSError):
                await writer.start_tls(self._context)
                self.encrypted += 1
            first = b""
        else:
            self.plain += 1
        if self._host.startswith("/"):
            inner = await asyncio.open_unix_connection(f"{self._host}/.s.PGSQL.{self._port}")
        else:
            inner = await asyncio.open_connection(self._host, self._port)
        inner[1].write(first)
        try:
            await asyncio.gather(self._pour(reader, inner[1]), self._pour(inner[0], writer))
        finally:
            inner[1].close()

    async def _pour(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError):
            while data := await reader.read(65536):
                if self.is_open:
                    writer.write(data)
                    await writer.drain()
        writer.close()


class Outage:
    """Something that takes a database away and gives it back."""

    def __init__(self, url: str, kind: str) -> None:
        self.url = url
        self.kind = kind
        self.path = url.removeprefix("sqlite:///")
        self.broken = False

    @property
    def is_broken(self) -> bool:
        """Whether connections are broken now."""
        return self.broken

    def engine(self) -> AsyncEngine | None:
        """Give the engine to share with the plugin, where the outage is one of the connection."""
        if self.kind not in {"disk full", "read-only file"}:
            return None
        engine = create_async_engine(f"sqlite+aiosqlite:///{self.path}")
        self.take_from(engine.sync_engine)
        return engine

    def take_from(self, engine: Engine) -> None:
        """Make the connections of an engine break and work again, where the outage is one of the connection."""

        def as_it_is_now(connection: Any, *_: object) -> None:
            cursor = connection.cursor()
            if self.kind == "disk full":
                # No page more than there is.
                cursor.execute(f"PRAGMA max_page_count = {1 if self.is_broken else 10**6}")
            else:
                cursor.execute(f"PRAGMA query_only = {int(self.is_broken)}")
            cursor.close()

        event.listen(engine, "checkout", as_it_is_now)

    @asynccontextmanager
    async def lasting(self) -> AsyncIterator[None]:
        self.broken = True
        if self.kind == "locked":
            with (
                # Short while somebody holds the lock, and not after: then it is the machine that decides who waits.
                mock.patch("flowactions_plugin.storage.sqlite.WAIT_SECONDS", 0.1),
                closing(sqlite3.connect(self.path, isolation_level=None, check_same_thread=False)) as other,
            ):
                # Beside the event loop, which has to go on for whoever holds the lock now.
                await asyncio.to_thread(other.execute, "BEGIN IMMEDIATE")
                yield
        elif self.kind in {"refused", "read-only server"}:
            name = make_url(self.url).database
            begin, end = {
                "refused": (f'ALTER DATABASE "{name}" ALLOW_CONNECTIONS false', "true"),
                "read-only server": (f'ALTER DATABASE "{name}" SET default_transaction_read_only = on', "off"),
            }[self.kind]
            await self._administer(begin)
            yield
            await self._administer(begin.rsplit(" ", 1)[0] + f" {end}")
        else:
            yield
        self.broken = False

    async def _administer(self, statement: str) -> None:
        """Change something about the database, and cut everybody's connections to it, until all of them are gone."""
        url = make_url(self.url)
        other = url.set(drivername="postgresql", database="postgres")
        connection = await asyncpg.connect(other.render_as_string(hide_password=False))
        try:
            await connection.execute(statement)
            # A session that begins now may have read the former setting, and is not shown yet: this waits until it is.
            with suppress(asyncpg.DuplicateDatabaseError):
                await connection.execute(f'ALTER DATABASE "{url.database}" RENAME TO "{url.database}"')
            await connection.execute(
                "SELECT pg_terminate_backend(pid, 60000) FROM pg_stat_activity WHERE datname = $1", url.database
            )
        finally:
            await connection.close()


@contextmanager
def patient_databases() -> Iterator[None]:
    """Have no database be away that only answers slowly."""
    with (
        mock.patch("flowactions_plugin.storage.waiting.ANSWER_SECONDS", SAFETY_SECONDS),
        mock.patch("flowactions_plugin.storage.waiting.RECOVERY_SECONDS", SAFETY_SECONDS),
        mock.patch("flowactions_plugin.storage.sqlite.WAIT_SECONDS", SAFETY_SECONDS),
        mock.patch("flowactions_plugin.nodes.running.WRITE_SECONDS", SAFETY_SECONDS),
        mock.patch("flowactions_plugin.nodes.running.LONE_WRITE_SECONDS", SAFETY_SECONDS),
        mock.patch("flowactions_plugin.inbound.store.RECORD_SECONDS", SAFETY_SECONDS),
    ):
        yield


async def write(database: Database) -> None:
    """Write something that needs new pages of a file, whether the database takes it or not."""
    for _ in range(3):  # sessions that the server has ended are found by using them
        with suppress(StorageUnavailable):
            async with database.write() as transaction:
                row = {"provider": "auth", "event_id": secrets.token_hex(8 << 10), "received_at": 0}
                await transaction.execute(insert(inbound_events).values(**row))
                await transaction.execute(delete(inbound_events).where(inbound_events.c.received_at == 0))
            return


def refuse(database: Database, words: str | None) -> None:
    """Have the last write of this process refused; ``None``: it was not."""
    database._outages.refused = None if words is None else Refused(words, timer())
