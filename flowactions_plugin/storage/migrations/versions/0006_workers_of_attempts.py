"""Which worker made an attempt, and by how much a worker's clock is ahead of the database's.

Processes of revision 0005 go on beside this one.

Revision ID: 0006
Revises: 0005
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add columns without values, which neither database copies rows for."""
    op.add_column("flowactions_attempts", sa.Column("worker", sa.String(8), nullable=True))
    op.add_column("flowactions_workers", sa.Column("clock_ahead_ms", sa.BigInteger(), nullable=True))
