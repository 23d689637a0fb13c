"""What each worker limits, so that pages and commands can name it.

Processes of revision 0006 go on beside this one.

Revision ID: 0007
Revises: 0006
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add a column, which neither database copies rows for."""
    op.add_column("flowactions_workers", sa.Column("limited", sa.Text(), nullable=True))
