"""When a destination that is paused automatically is probed.

Processes of revision 0007 go on beside this one.

Revision ID: 0008
Revises: 0007
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add two columns, which neither database copies rows for."""
    op.add_column("flowactions_pauses", sa.Column("probe_at", sa.BigInteger(), nullable=True))
    op.add_column("flowactions_pauses", sa.Column("probes", sa.Integer(), nullable=True))
