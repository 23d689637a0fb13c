"""What became of inbound requests, which worker made an attempt, and by how much its clock is ahead of the database's.

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

EVENTS = "flowactions_inbound_events"
REQUESTS = "flowactions_inbound_requests"


def upgrade() -> None:
    """Add columns, which neither database copies rows for, and a table."""
    op.add_column("flowactions_attempts", sa.Column("worker", sa.String(8), nullable=True))
    op.add_column("flowactions_workers", sa.Column("clock_ahead_ms", sa.BigInteger(), nullable=True))
    op.add_column(EVENTS, sa.Column("event_type", sa.Text(), nullable=True))
    op.add_column(EVENTS, sa.Column("repeats", sa.Integer(), nullable=False, server_default="0"))
    op.add_column(EVENTS, sa.Column("repeated_at", sa.BigInteger(), nullable=True))
    _partial_index("events_repeated", EVENTS, "received_at", "repeats > 0")
    op.create_table(
        REQUESTS,
        sa.Column("id", sa.String(length=36), nullable=False),
        sa.Column("provider", sa.String(length=32), nullable=False),
        sa.Column("event_id", sa.Text(), nullable=True),
        sa.Column("event_type", sa.Text(), nullable=True),
        sa.Column("received_at", sa.BigInteger(), nullable=False),
        sa.Column("result", sa.String(length=16), nullable=False),
        sa.Column("status_code", sa.Integer(), nullable=False),
        sa.Column("reason", sa.Text(), nullable=True),
        sa.Column("more", sa.Integer(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_flowactions_inbound_requests")),
    )
    op.create_index("ix_flowactions_inbound_requests_received", REQUESTS, ["received_at"], unique=False)
    op.create_index("ix_flowactions_inbound_requests_result", REQUESTS, ["result", "received_at"], unique=False)
    _partial_index("requests_event", REQUESTS, "event_id", "event_id IS NOT NULL")


def _partial_index(name: str, table: str, column: str, rows: str) -> None:
    where = sa.text(rows)
    op.create_index(
        f"ix_flowactions_inbound_{name}",
        table,
        [column],
        unique=False,
        sqlite_where=where,
        postgresql_where=where,
    )
