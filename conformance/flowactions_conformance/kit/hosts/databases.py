"""Where a host under test keeps its tables: a SQLite file, or a database of its own on a PostgreSQL server."""

from __future__ import annotations

import secrets
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit, urlunsplit

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
    """

    def __init__(self, server: str | None) -> None:
        self._server = server
        self._made: list[str] = []

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
        await self._run(f'CREATE DATABASE "{name}"')
        self._made.append(name)
        parts = urlsplit(self._server)
        url = urlunsplit(parts._replace(scheme="postgresql", path=f"/{name}"))
        return Place(plugin=url, host=urlunsplit(parts._replace(scheme="postgresql+asyncpg", path=f"/{name}")))

    async def drop_all(self) -> None:
        """Drop the databases that were made, whoever is still connected."""
        while self._made:
            await self._run(f'DROP DATABASE IF EXISTS "{self._made.pop()}" WITH (FORCE)')

    async def _run(self, statement: str) -> None:
        parts = urlsplit(self._server or "")
        try:
            connection = await asyncpg.connect(
                urlunsplit(parts._replace(scheme="postgresql")), timeout=CONNECT_SECONDS
            )
            try:
                await connection.execute(statement)
            finally:
                await connection.close()
        except TimeoutError as exc:
            raise NothingKnown("nothing is known: the PostgreSQL server that was given did not answer") from exc
        except (OSError, asyncpg.PostgresError) as exc:
            # Without the URL, which may hold a password.
            raise DriverFault(
                f"the PostgreSQL server that was given refuses: {type(exc).__name__}: {exc}"
            ) from exc
