"""One row for each provider, result and reason of inbound requests that processed no event.

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

TABLE = "flowactions_inbound_requests"


def upgrade() -> None:
    """Make the table anew, and drop the index of events that were received again."""
    op.drop_index("ix_flowactions_inbound_events_repeated", "flowactions_inbound_events")
    op.drop_table(TABLE)
    op.create_table(
        TABLE,
        sa.Column("provider", sa.String(32), nullable=False),
        sa.Column("result", sa.String(16), nullable=False),
        sa.Column("cause", sa.Text(), nullable=False),
        sa.Column("first_at", sa.BigInteger(), nullable=False),
        sa.Column("last_at", sa.BigInteger(), nullable=False),
        sa.Column("requests", sa.BigInteger(), nullable=False),
        sa.Column("event_id", sa.Text(), nullable=True),
        sa.Column("event_type", sa.Text(), nullable=True),
        sa.Column("status_code", sa.Integer(), nullable=False),
        sa.Column("reason", sa.Text(), nullable=True),
        sa.PrimaryKeyConstraint("provider", "result", "cause", name=f"pk_{TABLE}"),
    )
    op.create_index("ix_flowactions_inbound_requests_last", TABLE, ["last_at"])
