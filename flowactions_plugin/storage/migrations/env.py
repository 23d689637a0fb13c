"""What Alembic executes to run the revisions that it has chosen."""

from __future__ import annotations

from alembic import context

from flowactions_plugin.storage.migrations import VERSION_TABLE
from flowactions_plugin.storage.schema import metadata

context.configure(
    connection=context.config.attributes["connection"], target_metadata=metadata, version_table=VERSION_TABLE
)
with context.begin_transaction():
    context.run_migrations()
