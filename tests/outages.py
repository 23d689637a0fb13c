"""Databases that are taken away for real, and given back."""

from __future__ import annotations

import asyncio
import secrets
import sqlite3
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing, suppress
from typing import Any
from unittest import mock

import asyncpg
from sqlalchemy import delete, event, insert
from sqlalchemy.engine import Engine, make_url
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine

from flowactions_plugin.clock import timer
from flowactions_plugin.errors import StorageUnavailable
from flowactions_plugin.storage.database import Database
from flowactions_plugin.storage.outages import Refused
from flowactions_plugin.storage.schema import inbound_events


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
            await connection.execute(
                "SELECT pg_terminate_backend(pid, 60000) FROM pg_stat_activity WHERE datname = $1", url.database
            )
        finally:
            await connection.close()


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
