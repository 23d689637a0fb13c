"""Columns that keep organizations apart and make repetitions safe.

Processes of revision 0004 go on beside this one.

Revision ID: 0005
Revises: 0004
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add columns without values, which neither database copies rows for."""
    _chat_errors()


def _chat_errors() -> None:
    table = "flowactions_chat_connections"
    op.add_column(table, sa.Column("last_error", sa.Text(), nullable=True))
    op.add_column(table, sa.Column("last_error_at", sa.BigInteger(), nullable=True))
    op.add_column(table, sa.Column("last_error_flow", sa.Text(), nullable=True))
    op.add_column(table, sa.Column("last_error_node", sa.Text(), nullable=True))
