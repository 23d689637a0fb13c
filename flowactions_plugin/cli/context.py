"""Opens the database that a command works on: the host's of ``--host``, or that of the environment's settings."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import NamedTuple

from flowactions_hookspecs import Host
from flowactions_plugin.cli.hosts import opened_host
from flowactions_plugin.errors import CannotRun, SchemaOutdated
from flowactions_plugin.settings.model import Settings, read_settings
from flowactions_plugin.storage.database import Database


class CommandContext(NamedTuple):
    """What a command works on.

    Attributes:
        host: of ``--host``.
        settings: the host's, or the environment's.
        database: the host's, or that of the settings; not open yet.
    """

    host: Host | None
    settings: Settings
    database: Database


@asynccontextmanager
async def context_of(host: str | None) -> AsyncIterator[CommandContext]:
    """Make the host, if one is named, and read the settings."""
    if host is None:
        settings = read_settings(os.environ)
        yield CommandContext(None, settings, Database(settings.database_url))
        return
    async with opened_host(host) as made:
        settings = read_settings(made.settings)
        yield CommandContext(made, settings, Database(settings.database_url, lambda: made.database))


@asynccontextmanager
async def opened(host: str | None) -> AsyncIterator[CommandContext]:
    """Open the database of an operator's command. Unlike a host, it neither creates nor upgrades tables.

    Raises:
        CannotRun: there is no such file.
        SchemaNewer: the tables are of a later release.
        SchemaOutdated: the tables are missing, or of an earlier release.
        StorageUnavailable: the database does not answer.
    """
    async with AsyncExitStack() as stack:
        context = await stack.enter_async_context(context_of(host))
        missing = context.database.missing_file
        if missing is not None:
            raise CannotRun(
                f"there is no database {missing}: set FLOWACTIONS_DATABASE_URL, or name the host with --host"
            )
        before, wanted = await context.database.migrate(dry=True)
        if before != wanted:
            raise SchemaOutdated(
                f"the tables are at revision {before or 'none'} and this release needs {wanted}: "
                "run 'flowactions migrate'"
            )
        stack.push_async_exit(context.database)
        await context.database.open(required=True)
        yield context
