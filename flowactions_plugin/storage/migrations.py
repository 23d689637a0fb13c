"""Which revision the tables have, and who may create or upgrade them.

That is done when a database is opened, or by ``flowactions migrate``. The revision is in a table of its own, beside a host's
migrations. Tables of a number before the first release's are refused.
"""

from __future__ import annotations

import logging
from typing import Final

from sqlalchemy import Column, Connection, MetaData, String, Table, delete, func, insert, inspect, select
from sqlalchemy.ext.asyncio import AsyncConnection

from flowactions_plugin.errors import SchemaNewer, SchemaOutdated, StorageUnavailable
from flowactions_plugin.storage.revisions import REVISIONS

log = logging.getLogger("flowactions.storage")

VERSION: Final = Table("flowactions_version", MetaData(), Column("version_num", String(32), primary_key=True))

SCHEMA_LOCK: Final = int.from_bytes(b"flowact", "big")
"""Key of PostgreSQL's advisory lock for creating and changing tables."""

UNTRANSLATABLE: Final = "22P05"
"""SQLSTATE of a database that cannot store all characters."""


def head() -> str:
    """Return the revision that this release works with."""
    return list(REVISIONS)[-1]


def current(connection: Connection) -> str | None:
    """Return the revision of a database's tables, ``None`` when it has none of the plugin's."""
    return connection.scalar(select(VERSION)) if inspect(connection).has_table(VERSION.name) else None


async def lock_schema(transaction: AsyncConnection) -> None:
    """Wait until no other process creates or changes tables, until the transaction ends.

    Raises:
        StorageUnavailable: the database cannot store all characters.
    """
    if transaction.dialect.name != "postgresql":
        return
    locking = select(func.pg_advisory_xact_lock(SCHEMA_LOCK), func.current_setting("server_encoding"))
    encoding = (await transaction.execute(locking)).one()[1]
    if encoding != "UTF8":
        raise StorageUnavailable(
            f"the database is in {encoding}, which cannot store every character: use one that was made by CREATE "
            "DATABASE … ENCODING 'UTF8' TEMPLATE template0",
            code=UNTRANSLATABLE,
        )


def prepare_tables(connection: Connection, *, by_host: bool) -> bool:
    """Create or upgrade tables that need it, in a transaction that the caller commits; return whether there were none (§9).

    Args:
        connection: of a transaction as `lock_schema` has left it.
        by_host: whether a host's start does it. It upgrades SQLite's tables only, which one process is expected to use,
            and works with tables of a later release.

    Raises:
        SchemaNewer: the tables are of a later release.
        SchemaOutdated: they are of an earlier release, or of a state before the first one.
    """
    revision, wanted = current(connection), head()
    if revision == wanted:
        return False
    if revision is not None and revision > wanted:
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
    is_known = revision is None or revision in REVISIONS
    if not is_known or (revision is not None and by_host and connection.dialect.name != "sqlite"):
        raise SchemaOutdated(outdated(revision, wanted))
    for number, upgrade in REVISIONS.items():
        if number > (revision or ""):
            upgrade(connection)
    VERSION.create(connection, checkfirst=True)
    connection.execute(delete(VERSION))
    connection.execute(insert(VERSION).values(version_num=wanted))
    if revision is None:
        log.info("created the tables (revision %s)", wanted, extra={"event": "tables.created"})
    else:
        log.info(
            "upgraded the tables from revision %s to %s", revision, wanted, extra={"event": "tables.upgraded"}
        )
    return revision is None


def outdated(found: str | None, wanted: str) -> str:
    """Return what is wrong with tables of another revision (``None``: there are none) than this release's, for people."""
    if found is None:
        return "no tables yet: the worker or 'flowactions migrate' makes them"
    if found not in REVISIONS:
        return (
            f"the tables are at revision {found}, an earlier state that no release carries on: begin a new database, or drop "
            "the tables named flowactions_… and all that they hold"
        )
    return f"the tables are at revision {found} and this release needs {wanted}: run 'flowactions migrate'"
