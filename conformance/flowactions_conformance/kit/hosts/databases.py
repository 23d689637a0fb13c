"""Where a host under test keeps its tables: a SQLite file, or a database of its own on a PostgreSQL server."""

from __future__ import annotations

import re
import secrets
import sqlite3
import time
from contextlib import suppress
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit, urlunsplit

import asyncpg

from flowactions_conformance.kit.outcomes import DriverFault, NothingKnown

CONNECT_SECONDS: Final = 120.0
"""Only a server that hangs takes longer."""
NAME: Final = re.compile(r"flowactions_kit_(\d+)_[0-9a-f]{12}")
"""With the time at which it was made."""
KEPT_SECONDS: Final = 86_400
"""From when on a database is taken for one of a run that was killed."""


class Databases:
    """Makes databases, and drops them in the end.

    Args:
        server: the URL of a PostgreSQL whose user may create databases; ``None``: SQLite files.

    Attributes:
        kind: ``sqlite`` or ``postgresql``.
        version: name and version of the database; of a server once it was looked at.
    """

    def __init__(self, server: str | None) -> None:
        self._server = server
        self._made: list[str] = []
        self.kind = "sqlite" if server is None else "postgresql"
        self.version = f"SQLite {sqlite3.sqlite_version}"

    async def look(self) -> None:
        """Ask a server for its version, and drop what killed runs have left there.

        Raises:
            DriverFault: it refuses.
        """
        if self._server is None:
            return
        self.version = f"PostgreSQL {await self._run('SHOW server_version')}"
        for name in await self._run("SELECT array_agg(datname::text) FROM pg_database") or ():
            made = NAME.fullmatch(name)
            if made and int(made[1]) < time.time() - KEPT_SECONDS:
                with suppress(DriverFault):  # somebody uses it
                    await self._run(f'DROP DATABASE "{name}"')

    async def new(self, folder: Path) -> tuple[str, str]:
        """Make a place for a new host.

        Args:
            folder: the host's.

        Returns:
            The URLs for ``FLOWACTIONS_DATABASE_URL`` and for `Env.database_url`.

        Raises:
            DriverFault: the PostgreSQL server refuses.
        """
        if self._server is None:
            return f"sqlite:///{folder / 'flowactions.db'}", f"sqlite+aiosqlite:///{folder / 'host.db'}"
        name = f"flowactions_kit_{time.time():.0f}_{secrets.token_hex(6)}"
        await self._run(f'CREATE DATABASE "{name}"')
        self._made.append(name)
        own = urlsplit(self._server)._replace(path=f"/{name}")
        return urlunsplit(own._replace(scheme="postgresql")), urlunsplit(
            own._replace(scheme="postgresql+asyncpg")
        )

    async def drop_all(self) -> None:
        """Drop the databases that were made, whoever is still connected."""
        while self._made:
            await self._run(f'DROP DATABASE IF EXISTS "{self._made.pop()}" WITH (FORCE)')

    async def _run(self, statement: str) -> Any:
        url = urlunsplit(urlsplit(self._server or "")._replace(scheme="postgresql"))
        try:
            connection = await asyncpg.connect(url, timeout=CONNECT_SECONDS)
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
