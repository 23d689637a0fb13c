"""The context of a command: the host of ``--host MODULE:NAME`` or the environment's settings, and the database."""

from __future__ import annotations

import getpass
import importlib
import inspect
import logging
import os
import socket
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any, NamedTuple

from flowactions_hookspecs import FlowActionsError, Host
from flowactions_hookspecs.host_check import check_host
from flowactions_plugin.cli.output import summary
from flowactions_plugin.errors import CannotRun, SchemaOutdated
from flowactions_plugin.insights.port import Insights
from flowactions_plugin.operations.port import Operations
from flowactions_plugin.operators.scope import Actor
from flowactions_plugin.settings.model import Settings, read_settings
from flowactions_plugin.storage.database import Database
from flowactions_plugin.storage.migrations import outdated

log = logging.getLogger("flowactions.cli")


class CommandContext(NamedTuple):
    """The host of ``--host``, if one is named; its settings and database, or those of the environment."""

    host: Host | None
    settings: Settings
    database: Database

    @property
    def insights(self) -> Insights:
        """What can be read."""
        return Insights(self.database, self.settings)

    @property
    def operations(self) -> Operations:
        """What can be changed."""
        return Operations(self.database)


@asynccontextmanager
async def context_of(host: str | None) -> AsyncIterator[CommandContext]:
    """Make the host, if one is named, and read the settings. The database is not open yet."""
    async with AsyncExitStack() as stack:
        made = None if host is None else await stack.enter_async_context(opened_host(host))
        settings = read_settings(os.environ if made is None else made.settings, made)
        engine = None if made is None else lambda: made.database
        database = Database(settings.database_url, engine, connections=settings.database_connections)
        yield CommandContext(made, settings, database)


@asynccontextmanager
async def opened(host: str | None) -> AsyncIterator[CommandContext]:
    """Open the database of an operator's command, as `opened_database` does; the host is as of `context_of`."""
    async with context_of(host) as context, opened_database(context.database):
        yield context


@asynccontextmanager
async def opened_database(database: Database) -> AsyncIterator[None]:
    """Open a database for a command. Unlike a host, it neither creates nor upgrades tables.

    Raises:
        CannotRun: there is no such file.
        SchemaNewer: the tables are of a later release.
        SchemaOutdated: the tables are missing, or of an earlier release.
        SettingsInvalid: the directory of an SQLite file does not exist.
        StorageUnavailable: the database does not answer.
    """
    missing = database.missing_file
    if missing is not None and missing.parent.exists():
        raise CannotRun(
            f"no tables yet, the file {missing} does not exist: the worker or 'flowactions migrate' makes them; if you expect "
            "tables, set FLOWACTIONS_DATABASE_URL or name the host with --host"
        )
    before, wanted = await database.migrate(dry=True)
    if before != wanted:
        raise SchemaOutdated(outdated(before, wanted))
    async with database:
        yield


@asynccontextmanager
async def opened_host(location: str) -> AsyncIterator[Host]:
    """Make a host and keep it open for the block.

    Args:
        location: ``package.module:name`` of a `Host`, of a function or coroutine function that returns one, or of one that
            returns an async context manager that does.

    Raises:
        CannotRun: there is no host, or its code fails; the message says where.
        HostInvalid: it is not what the contract asks for.
    """
    async with AsyncExitStack() as stack:
        try:
            made = _imported(location)
            if callable(made) and not isinstance(made, Host):
                made = made()
            if inspect.isawaitable(made):
                made = await made
            if not isinstance(made, Host) and hasattr(made, "__aenter__"):
                made = await stack.enter_async_context(made)
        except FlowActionsError:
            raise
        except (Exception, SystemExit) as exc:
            what = f"the host {location} could not be made"
            log.debug(what, exc_info=True, extra={"event": "command.host_failed"})
            raise CannotRun(f"{what}: {summary(exc)}") from exc
        if not isinstance(made, Host):
            raise CannotRun(f"{location} gives {type(made).__name__}, not a Host")
        yield check_host(made)


def _imported(location: str) -> Any:
    module_name, separator, path = location.partition(":")
    if not separator or not module_name or not path:
        raise CannotRun(f"{location!r} does not say where the host is; write it as 'package.module:name'")
    if "" not in sys.path and os.getcwd() not in sys.path:  # noqa: PTH109  compared with strings
        sys.path.insert(0, os.getcwd())  # noqa: PTH109  so that modules there are found first, as with 'python -m'
    try:
        found: Any = importlib.import_module(module_name)
    except ModuleNotFoundError as exc:
        if exc.name is None or not f"{module_name}.".startswith(f"{exc.name}."):
            raise  # the module exists, and one of its imports does not
        raise CannotRun(f"no module {exc.name!r} can be imported from here") from exc
    for name in path.split("."):
        if not hasattr(found, name):
            raise CannotRun(f"{module_name} has no {path!r}")
        found = getattr(found, name)
    return found


def actor() -> Actor:
    """Return the user of the operating system, and the machine."""
    try:
        user = getpass.getuser()
    except (ImportError, KeyError, OSError):
        user = "unknown"  # a container's user id without a name
    return Actor(user, f"{user}@{socket.gethostname()}", "command")
