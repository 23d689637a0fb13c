"""The tables and their revisions (Alembic), which have a version table of their own beside a host's migrations.

Tables are created, checked and upgraded when a database is opened, or by ``flowactions migrate``. Until the first release there
is one revision: a change of the tables edits it and gives it the next number, and tables of an earlier number are refused.

Alembic is imported when there is a revision to run. Which revision tables have, and which one this release works with, is
told without it: every process looks when it opens the database, and few find something to do.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from functools import cache
from pathlib import Path
from typing import Final

from sqlalchemy import Connection, column, func, inspect, select, table
from sqlalchemy.ext.asyncio import AsyncConnection

from flowactions_plugin.errors import SchemaNewer, SchemaOutdated, StorageUnavailable

log = logging.getLogger("flowactions.storage")

FOLDER: Final = Path(__file__).parent

VERSION_TABLE: Final = "flowactions_version"

SCHEMA_LOCK: Final = int.from_bytes(b"flowact", "big")
"""Key of PostgreSQL's advisory lock for creating and changing tables."""

UNTRANSLATABLE: Final = "22P05"
"""SQLSTATE of a database that cannot store all characters."""

_ALEMBIC: Final = threading.Lock()
"""Alembic keeps the database that it works on in globals: hosts whose tables change at once, in threads too, take turns."""


@cache
def revisions() -> tuple[str, ...]:
    """Return all revisions, the oldest first: their files are named after them, ``0101_tables.py``."""
    files = (FOLDER / "versions").glob("[0-9]*_*.py")
    return tuple(sorted(file.name.partition("_")[0] for file in files))


def head() -> str:
    """Return the revision that this release works with."""
    return revisions()[-1]


def current(connection: Connection) -> str | None:
    """Return the revision of a database's tables, ``None`` when it has none of the plugin's."""
    if not inspect(connection).has_table(VERSION_TABLE):
        return None
    stored: str | None = connection.scalar(select(column("version_num")).select_from(table(VERSION_TABLE)))
    return stored


async def prepare_tables(transaction: AsyncConnection, *, by_host: bool, dry: bool = False) -> str | None:
    """Create or upgrade tables that need it, in a transaction that the caller commits; return their revision before.

    No other process creates or changes tables until the transaction ends.

    Args:
        transaction: on SQLite, one that may write. A host whose tables are there waits for no other one.
        by_host: whether a host's start does it. It upgrades SQLite's tables only, which one process is expected to use,
            and works with tables of a later release.
        dry: change nothing.

    Raises:
        SchemaNewer: the tables are of a later release.
        SchemaOutdated: they are of an earlier release, or of a state before the first one.
        StorageUnavailable: the database cannot store all characters.
    """
    is_server = transaction.dialect.name == "postgresql"
    if is_server:
        locking = select(func.pg_advisory_xact_lock(SCHEMA_LOCK), func.current_setting("server_encoding"))
        encoding = (await transaction.execute(locking)).one()[1]
        if encoding != "UTF8":
            raise StorageUnavailable(
                f"the database is in {encoding}, which cannot store every character: use one that was made by CREATE "
                "DATABASE … ENCODING 'UTF8' TEMPLATE template0",
                code=UNTRANSLATABLE,
            )
    revision = await transaction.run_sync(current)
    if not _must_upgrade(revision, by_host, is_server) or dry:
        return revision
    # Not a lock of asyncio's, which belongs to one event loop.
    while not _ALEMBIC.acquire(blocking=False):  # noqa: ASYNC110  an Event would belong to one event loop, too
        await asyncio.sleep(0.02)
    try:
        await transaction.run_sync(upgrade, revision)
    finally:
        _ALEMBIC.release()
    return revision


def upgrade(connection: Connection, revision: str | None) -> None:
    """Upgrade tables of a revision to `head` in the caller's transaction, one call at a time in a process (§8)."""
    from alembic import command  # noqa: PLC0415
    from alembic.config import Config  # noqa: PLC0415

    config, its_log = Config(), logging.getLogger("alembic")
    config.set_main_option("script_location", str(FOLDER).replace("%", "%%"))
    config.attributes["connection"] = connection
    level = its_log.level
    if level == logging.NOTSET:
        its_log.setLevel(logging.WARNING)  # it has a dozen lines for a first start, before any line of the host
    try:
        command.upgrade(config, "head")
    finally:
        its_log.setLevel(level)
    if revision is None:
        log.info("created the tables (revision %s)", head(), extra={"event": "tables.created"})
    else:
        log.info(
            "upgraded the tables from revision %s to %s", revision, head(), extra={"event": "tables.upgraded"}
        )


def outdated(found: str | None, wanted: str) -> str:
    """Return what is wrong with tables of another revision (``None``: there are none) than this release's, for people."""
    if found is None:
        return "no tables yet: the worker or 'flowactions migrate' makes them"
    if found not in revisions():
        return (
            f"the tables are at revision {found}, an earlier state that no release carries on: begin a new database, or drop "
            "the tables named flowactions_… and all that they hold"
        )
    return f"the tables are at revision {found} and this release needs {wanted}: run 'flowactions migrate'"


def _must_upgrade(revision: str | None, by_host: bool, is_server: bool) -> bool:
    """Return whether tables are missing, or of an earlier release; a host upgrades none on a server."""
    wanted = head()
    if revision is None or revision == wanted:
        return revision is None
    if revision > wanted:
        if not by_host:
            raise SchemaNewer(
                f"the tables are at revision {revision}, which is newer than this release's {wanted}: "
                "run 'flowactions migrate' of the release that the tables are of, or of a later one"
            )
        log.warning(
            "the tables are at revision %s, which is newer than this release's %s; upgrade this process soon",
            revision,
            wanted,
            extra={"event": "tables.newer"},
        )
        return False
    if revision not in revisions() or (by_host and is_server):
        raise SchemaOutdated(outdated(revision, wanted))
    return True
