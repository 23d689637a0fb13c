"""What tells one installation from another; why the last attempt to a destination failed.

Revision ID: 0010
Revises: 0009
"""

from __future__ import annotations

from uuid import uuid4

import sqlalchemy as sa
from alembic import op

revision = "0010"
down_revision = "0009"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Create the table with its only row, and add the column."""
    op.add_column("flowactions_destinations", sa.Column("last_reason", sa.Text(), nullable=True))
    made = op.create_table(
        "flowactions_installation",
        sa.Column("id", sa.String(36), nullable=False),
        sa.Column("outages", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_flowactions_installation"),
    )
    op.bulk_insert(made, [{"id": str(uuid4()), "outages": 0}])
