"""No index by agent: each delivery wrote it twice (decision 74).

Processes of revision 0008 go on beside this one.

Revision ID: 0009
Revises: 0008
"""

from __future__ import annotations

from alembic import op

revision = "0009"
down_revision = "0008"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Drop the index, which reads and copies no rows."""
    op.drop_index("ix_flowactions_outbox_organization_agent", "flowactions_outbox")
