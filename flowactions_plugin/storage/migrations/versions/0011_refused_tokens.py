"""When the chat provider is asked again about a token that it has refused.

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


def upgrade() -> None:
    """Add two columns and their index."""
    table, asked = "flowactions_chat_connections", sa.text("ask_at IS NOT NULL")
    for name in ("revoked_at", "ask_at"):
        op.add_column(table, sa.Column(name, sa.BigInteger(), nullable=True))
    op.create_index(
        "ix_flowactions_chat_connections_ask",
        table,
        ["ask_at"],
        sqlite_where=asked,
        postgresql_where=asked,
    )
