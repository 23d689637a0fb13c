"""Where a host under test keeps its tables: a SQLite file, or a database of its own on a PostgreSQL server."""

from __future__ import annotations

import secrets
import sqlite3
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import parse_qs, quote, urlsplit, urlunsplit

import asyncpg

from flowactions_conformance.kit.outcomes import DriverFault, NothingKnown

CONNECT_SECONDS = 120.0
"""Only a server that hangs takes longer."""


class Place(NamedTuple):
    """The databases of one host.

    Attributes:
        plugin: for ``FLOWACTIONS_DATABASE_URL``.
        host: for `Env.database_url`.
    """

    plugin: str
    host: str


class Databases:
    """Makes databases, and drops them in the end.

    Args:
        server: the URL of a PostgreSQL whose user may create databases; ``None``: SQLite files.

    Attributes:
        version: name and version of the database; of a server once it was looked at.
    """

    def __init__(self, server: str | None) -> None:
        self._server = server
        self._made: list[str] = []
        self._list: Path | None = None
        self.version = f"SQLite {sqlite3.sqlite_version}"

    def list_in(self, path: Path) -> None:
        """Write the name of each database that is made into a file, for a run that comes after a kill."""
        self._list = path

    @property
    def _mark(self) -> str:
        """The server, without user and password."""
        parts = urlsplit(self._server or "")
        return quote(f"{parts.hostname or parse_qs(parts.query).get('host')}:{parts.port}")

    async def drop_of(self, server: str, name: str) -> bool:
        """Drop a database that a killed run has made; return whether it was on this run's server.

        Args:
            server: as it is listed.
            name: of the database.

        Raises:
            DriverFault: the server refuses.
        """
        if self._server is None or server != self._mark:
            return False
        await self._run(f'DROP DATABASE IF EXISTS "{name}" WITH (FORCE)')
        return True

    async def look(self) -> None:
        """Ask a server for its version.

        Raises:
            DriverFault: it refuses.
        """
        if self._server is not None:
            self.version = f"PostgreSQL {await self._run('SHOW server_version')}"

    @property
    def kind(self) -> str:
        """``sqlite`` or ``postgresql``."""
        return "sqlite" if self._server is None else "postgresql"

    async def new(self, folder: Path) -> Place:
        """Make a place for a new host.

        Args:
            folder: the host's.

        Raises:
            DriverFault: the PostgreSQL server refuses.
        """
        if self._server is None:
            return Place(
                plugin=f"sqlite:///{folder / 'flowactions.db'}",
                host=f"sqlite+aiosqlite:///{folder / 'host.db'}",
            )
        name = f"flowactions_kit_{secrets.token_hex(6)}"
        if self._list is not None:
            with self._list.open("a", encoding="utf-8") as file:
                file.write(f"{self._mark} {name}\n")
        await self._run(f'CREATE DATABASE "{name}"')
        self._made.append(name)
        parts = urlsplit(self._server)
        url = urlunsplit(parts._replace(scheme="postgresql", path=f"/{name}"))
        return Place(plugin=url, host=urlunsplit(parts._replace(scheme="postgresql+asyncpg", path=f"/{name}")))

    async def drop_all(self) -> None:
        """Drop the databases that were made, whoever is still connected."""
        while self._made:
            await self._run(f'DROP DATABASE IF EXISTS "{self._made.pop()}" WITH (FORCE)')

    async def _run(self, statement: str) -> Any:
        parts = urlsplit(self._server or "")
        try:
            connection = await asyncpg.connect(
                urlunsplit(parts._replace(scheme="postgresql")), timeout=CONNECT_SECONDS
            )
            try:
                return await connection.fetchval(statement)
            finally:
                await connection.close()
        except TimeoutError as exc:
            raise NothingKnown("nothing is known: the PostgreSQL server that was given did not answer") from exc
        except (OSError, asyncpg.PostgresError) as exc:
            # Without the URL, which may hold a password.
            raise DriverFault(
                f"the PostgreSQL server that was given refuses: {type(exc).__name__}: {exc}"
            ) from exc
