"""Lanes.

Revision ID: 0011
Revises: 0010
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0011"
down_revision = "0010"
branch_labels = None
depends_on = None

LIVE = sa.text("status IN ('pending', 'retrying')")


def upgrade() -> None:
    """Add the column and its index."""
    op.add_column("flowactions_outbox", sa.Column("lane", sa.BigInteger, nullable=False, server_default="0"))
    op.drop_index("ix_flowactions_outbox_organization_due", "flowactions_outbox")
    op.create_index(
        "ix_flowactions_outbox_lane",
        "flowactions_outbox",
        ["lane", "next_attempt_at", "id"],
        sqlite_where=LIVE,
        postgresql_where=LIVE,
    )
    op.execute("DELETE FROM flowactions_pauses WHERE resumed_at IS NOT NULL")
    op.drop_column("flowactions_pauses", "resumed_at")
    quarantined = sa.text("status IN ('pending', 'retrying') AND takeovers >= 3")
    op.drop_index("ix_flowactions_outbox_quarantined", "flowactions_outbox")
    op.create_index(
        "ix_flowactions_outbox_quarantined",
        "flowactions_outbox",
        ["next_attempt_at", "id"],
        sqlite_where=quarantined,
        postgresql_where=quarantined,
    )
