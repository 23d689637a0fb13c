"""The tables' revisions (Alembic), in a separate version table, so that they do not affect a host's migrations (§9).

Revisions only go forward. Processes of the previous release work on the newer tables, unless the release notes say that
all of them must stop (docs/how-to/upgrade.md).
"""

from __future__ import annotations

import logging
from functools import cache
from pathlib import Path
from typing import Final, Literal, TypeAlias

from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, MetaData

from flowactions_plugin.errors import SchemaNewer, SchemaOutdated

log = logging.getLogger("flowactions.storage")

VERSION_TABLE: Final = "flowactions_version"

Outdated: TypeAlias = Literal["upgrade", "refuse"]
"""What `prepare` does with tables of an earlier release."""

_CONNECTION: Final = "connection"


@cache
def head() -> str:
    """Returns the revision that this release works with; found once, for Alembic executes all revisions to find it."""
    revision = _scripts().get_current_head()
    assert revision is not None  # noqa: S101  there is always a first revision
    return revision


def current(connection: Connection) -> str | None:
    """Returns the revision of a database's tables, ``None`` when it has none of the plugin's."""
    context = MigrationContext.configure(connection, opts={"version_table": VERSION_TABLE})
    return context.get_current_revision()


def known(connection: Connection) -> str | None:
    """Returns the revision of a database's tables, as `current` does, before a change of the tables.

    Raises:
        SchemaNewer: this release does not know it.
    """
    revision = current(connection)
    if revision is not None and not _is_known(revision):
        raise SchemaNewer(
            f"the tables are at revision {revision}, which is newer than this release's {head()}: "
            "run 'flowactions migrate' of the release that the tables are of, or of a later one"
        )
    return revision


def upgrade(connection: Connection) -> None:
    """Bring the tables to `head`, within the caller's transaction."""
    config = _config()
    config.attributes[_CONNECTION] = connection
    command.upgrade(config, "head")


def prepare(connection: Connection, outdated: Outdated) -> None:
    """Create missing tables, and upgrade or refuse those of an earlier release.

    Args:
        connection: in a transaction that prevents other processes from doing the same.
        outdated: what to do with tables of an earlier release.

    Raises:
        SchemaOutdated: they are of an earlier release, and `outdated` is ``refuse``.
    """
    revision, wanted = current(connection), head()
    if revision == wanted:
        return
    if revision is not None and not _is_known(revision):
        log.warning(
            "the tables are at revision %s, which is newer than this release's %s; upgrade this process soon",
            revision,
            wanted,
        )
        return
    if revision is not None and outdated == "refuse":
        raise SchemaOutdated(
            f"the tables are at revision {revision} and this release needs {wanted}: run 'flowactions migrate'"
        )
    upgrade(connection)
    log.info("the tables were brought from revision %s to %s", revision or "none", wanted)


def run(metadata: MetaData) -> None:
    """Run the revisions that Alembic has chosen; called by ``env.py``, which Alembic executes."""
    from alembic import context  # noqa: PLC0415  a proxy that works only while Alembic runs

    context.configure(
        connection=context.config.attributes[_CONNECTION],
        target_metadata=metadata,
        version_table=VERSION_TABLE,
    )
    with context.begin_transaction():
        context.run_migrations()


def _is_known(revision: str) -> bool:
    return any(script.revision == revision for script in _scripts().walk_revisions())


def _scripts() -> ScriptDirectory:
    return ScriptDirectory.from_config(_config())


def _config() -> Config:
    config = Config()
    config.set_main_option("script_location", str(Path(__file__).parent).replace("%", "%%"))
    return config
