"""The tables' revisions (Alembic), in a separate version table, so that they do not affect a host's migrations (§9).

Revisions only go forward. Processes of the previous release work on the newer tables, unless the release notes say that
all of them must stop (docs/how-to/upgrade.md).

Alembic is imported when there is a revision to run. Which revision tables have, and which one this release works with, is
told without it: every process looks when it opens the database, and few find something to do.
"""

from __future__ import annotations

import logging
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal, TypeAlias

from sqlalchemy import Connection, MetaData, column, inspect, select, table

from flowactions_plugin.errors import SchemaNewer, SchemaOutdated

if TYPE_CHECKING:
    from alembic.config import Config

log = logging.getLogger("flowactions.storage")

VERSION_TABLE: Final = "flowactions_version"

Outdated: TypeAlias = Literal["upgrade", "refuse"]
"""What is done with tables of an earlier release."""

_CONNECTION: Final = "connection"


@cache
def revisions() -> tuple[str, ...]:
    """Return all revisions, the oldest first: their files are named after them, ``0001_first_release.py``."""
    files = (Path(__file__).parent / "versions").glob("[0-9]*_*.py")
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


def known(connection: Connection) -> str | None:
    """Return the revision of a database's tables, as `current` does, before a change of the tables.

    Raises:
        SchemaNewer: this release does not know it.
    """
    revision = current(connection)
    if revision is not None and revision not in revisions():
        raise SchemaNewer(
            f"the tables are at revision {revision}, which is newer than this release's {head()}: "
            "run 'flowactions migrate' of the release that the tables are of, or of a later one"
        )
    return revision


def upgrade(connection: Connection) -> None:
    """Bring the tables to `head`, within the caller's transaction; one call at a time in a process."""
    from alembic import command  # noqa: PLC0415

    revision, config = current(connection), _config()
    config.attributes[_CONNECTION] = connection
    command.upgrade(config, "head")
    log.info(
        "the tables were brought from revision %s to %s",
        revision or "none",
        head(),
        extra={"event": "tables.upgraded"},
    )


def must_upgrade(connection: Connection, outdated: Outdated) -> bool:
    """Return whether tables are missing, or of an earlier release.

    Args:
        connection: in a transaction that prevents other processes from upgrading them.
        outdated: what is done with tables of an earlier release.

    Raises:
        SchemaOutdated: they are of an earlier release, and `outdated` is ``refuse``.
    """
    revision, wanted = current(connection), head()
    if revision == wanted:
        return False
    if revision is not None and revision not in revisions():
        log.warning(
            "the tables are at revision %s, which is newer than this release's %s; upgrade this process soon",
            revision,
            wanted,
            extra={"event": "tables.newer"},
        )
        return False
    if revision is not None and outdated == "refuse":
        raise SchemaOutdated(
            f"the tables are at revision {revision} and this release needs {wanted}: run 'flowactions migrate'"
        )
    return True


def run(metadata: MetaData) -> None:
    """Run the revisions that Alembic has chosen; called by ``env.py``, which Alembic executes."""
    from alembic import context  # noqa: PLC0415  a proxy that works only while Alembic runs

    context.configure(
        connection=context.config.attributes[_CONNECTION], target_metadata=metadata, version_table=VERSION_TABLE
    )
    with context.begin_transaction():
        context.run_migrations()


def _config() -> Config:
    from alembic.config import Config  # noqa: PLC0415

    config = Config()
    config.set_main_option("script_location", str(Path(__file__).parent).replace("%", "%%"))
    return config
