"""Opens one database: which it is, its engines, and its tables."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final, Self

from sqlalchemy import ColumnElement
from sqlalchemy.engine import make_url
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from flowactions_hookspecs import HostInvalid
from flowactions_plugin.clock import Clock, system_clock
from flowactions_plugin.errors import SchemaOutdated, StorageUnavailable
from flowactions_plugin.storage.dialect import Dialect
from flowactions_plugin.storage.engine import Engines
from flowactions_plugin.storage.guarding import GuardedTransactions
from flowactions_plugin.storage.outages import Outages
from flowactions_plugin.storage.own_transactions import OwnTransactions
from flowactions_plugin.storage.postgresql import PostgreSQL
from flowactions_plugin.storage.rounds import OutageLog
from flowactions_plugin.storage.sqlite import Deadline, SQLite
from flowactions_plugin.storage.tables import lock_schema, prepare_tables, upgrade_tables
from flowactions_plugin.storage.transactions import HostTransactions
from flowactions_plugin.storage.urls import is_in_memory, sqlite_path
from flowactions_plugin.storage.waiting import STATEMENT_SECONDS

log = logging.getLogger("flowactions.storage")

FATAL_AT_START: Final = ("42", "SQLITE_CANTOPEN", "SQLITE_NOTADB")
"""Codes of errors with which a host does not start: the database answers, and waiting changes nothing."""


class OpenedDatabase:
    """One database, opened and closed, with its tables; an async context manager.

    Args:
        url: opened when ``engine`` is ``None``; parsed by `parse_database_url`.
        engine: the host's engine, or what returns it when the database is opened; the host closes it.
        clock: the time on SQLite, and for ids. On PostgreSQL the server's clock decides what is due, so that workers
            on several machines agree.
        statement_seconds: how long a statement may take on PostgreSQL; ``None``: without limit.

    Attributes:
        clock: as given.
        dialect: which database it is: ``sqlite`` or ``postgresql``.
        outage_log: logs its outages, for the background parts of its host.
        sql: builds the statements that differ between the databases.

    Raises:
        HostInvalid: the host's engine is of a database in memory.
    """

    def __init__(
        self,
        url: str,
        engine: AsyncEngine | Callable[[], AsyncEngine | None] | None = None,
        clock: Clock = system_clock,
        *,
        statement_seconds: float | None = STATEMENT_SECONDS,
    ) -> None:
        self._given = engine if callable(engine) else lambda: engine
        self._own_url = url
        self._statement_seconds = statement_seconds
        self.clock = clock
        self.outage_log = OutageLog()
        self._bind()

    def _bind(self) -> None:
        """Read which database it is: a host may set its engine as late as its own startup.

        Raises:
            HostInvalid: the host's engine is of a database in memory.
        """
        engine = self._given()
        self._url = make_url(self._own_url) if engine is None else engine.url
        is_sqlite = self._url.get_backend_name() == SQLite.name
        self.sql: Dialect = SQLite(lambda: self.clock()) if is_sqlite else PostgreSQL()  # noqa: PLW0108  it may be set
        self.dialect = self.sql.name
        self._built: dict[tuple[Any, ...], Any] = {}
        if is_sqlite and is_in_memory(self._url):
            raise HostInvalid(
                "Host.database is an SQLite database in memory, whose only connection all would have to share: "
                "give it a file"
            )
        self._engines = Engines(self._url, engine)
        self._outages = Outages(self._url)
        self._host = HostTransactions(engine)
        self._own = OwnTransactions(self._engines, is_sqlite=is_sqlite)
        self._guards = GuardedTransactions()
        self._prepared = False

    def now(self) -> ColumnElement[int]:
        """Return the current time, Unix milliseconds, as an SQL expression: PostgreSQL's own, or the given clock's."""
        return self.sql.now()

    def built(self, build: Callable[..., Any], *given: Any) -> Any:
        """Return what a function builds, for example a statement: it is built once, as that costs more than to run it.

        Args:
            build: called with `sql`, and with what is given.
            given: hashable values that the result depends on.
        """
        name = (build, *given)
        if name not in self._built:
            self._built[name] = build(self.sql, *given)
        return self._built[name]

    @property
    def directory(self) -> Path:
        """The directory of the database file; the working directory when there is no file."""
        path = sqlite_path(self._url) if self.dialect == "sqlite" else None
        return Path.cwd() if path is None else path.parent

    @property
    def missing_file(self) -> Path | None:
        """The SQLite file that opening the database would create; ``None`` when it is there, or on PostgreSQL."""
        path = sqlite_path(self._url) if self.dialect == "sqlite" else None
        return path if path is not None and not path.exists() else None

    async def __aenter__(self) -> Self:
        """Open the database for a host, as `open` does."""
        return await self.open(required=False)

    async def open(self, *, required: bool) -> Self:
        """Open the engine and prepare the tables; closed by leaving the context.

        Missing tables are created. Tables of an earlier release are upgraded on SQLite. On PostgreSQL, where other
        processes may use them, `migrate` does it.

        Args:
            required: whether a database that does not answer is an error. For a host it is not: the error is logged,
                and the tables are prepared at the first use that reaches the database.

        Raises:
            SchemaOutdated: PostgreSQL's tables are of an earlier release, or are missing and cannot be created.
            StorageMisplaced: the directory of an SQLite file does not exist.
            StorageUnavailable: the database refuses, or it is required and does not answer.
        """
        self._bind()
        try:
            with self._outages.translated():
                self._engines.open(self._statement_seconds)
                await self._prepare(Deadline())
        except StorageUnavailable as exc:
            refused = isinstance(exc, SchemaOutdated) or (exc.code or "").startswith(FATAL_AT_START)
            if required or refused or self._engines.current is None:
                await self.__aexit__()
                raise
            log.error(  # noqa: TRY400
                "starting without the database, which does not answer: %s",
                exc,
                extra={"event": "database.unavailable_at_start"},
            )
        except BaseException:
            await self.__aexit__()
            raise
        return self

    async def __aexit__(self, *_exc: object) -> None:
        self._host.close()
        await self._engines.close()

    async def migrate(self, *, dry: bool = False) -> tuple[str | None, str]:
        """Bring the tables to this release's revision; not while the database is open.

        Args:
            dry: change nothing.

        Returns:
            The revision before, ``None`` for a database without tables, and this release's.

        Raises:
            SchemaNewer: the tables are of a later release.
            StorageMisplaced: the directory of an SQLite file does not exist.
            StorageUnavailable: the database failed; nothing was changed.
        """
        try:
            with self._outages.translated():
                self._engines.open(None)
                async with self._schema_transaction(Deadline()) as transaction:
                    revisions = await upgrade_tables(transaction, dry=dry)
        finally:
            await self.__aexit__()
        return revisions

    async def _prepare(self, deadline: Deadline) -> None:
        if self._prepared:
            return
        async with self._schema_transaction(deadline) as transaction:
            await prepare_tables(transaction)
        self._prepared = True

    @asynccontextmanager
    async def _schema_transaction(self, deadline: Deadline) -> AsyncIterator[AsyncConnection]:
        await self._engines.switch_to_wal(deadline)
        async with self._own.begin(deadline) as transaction:
            await lock_schema(transaction)
            yield transaction
