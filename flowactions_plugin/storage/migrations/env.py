"""What Alembic executes to run revisions."""

from __future__ import annotations

from flowactions_plugin.storage import migrations
from flowactions_plugin.storage.schema import metadata

migrations.run(metadata)
