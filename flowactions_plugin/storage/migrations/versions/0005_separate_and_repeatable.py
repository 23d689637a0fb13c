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
    _add_who_paused()


def _chat_errors() -> None:
    table = "flowactions_chat_connections"
    op.add_column(table, sa.Column("last_error", sa.Text(), nullable=True))
    op.add_column(table, sa.Column("last_error_at", sa.BigInteger(), nullable=True))
    op.add_column(table, sa.Column("last_error_flow", sa.Text(), nullable=True))
    op.add_column(table, sa.Column("last_error_node", sa.Text(), nullable=True))


def _add_who_paused() -> None:
    """Add how who paused a destination acted; of pauses that are there, the audit knows it.

    What a process of 0004 pauses beside has no role, and is ended by operators only.
    """
    op.add_column("flowactions_pauses", sa.Column("paused_role", sa.String(16)))
    op.execute(
        """
        UPDATE flowactions_pauses SET paused_role = known.actor_role
        FROM (
            SELECT last.organization_id, last.destination, flowactions_audit.actor_role
            FROM (
                SELECT organization_id, destination, max(id) AS id FROM flowactions_audit
                WHERE action = 'pause' GROUP BY organization_id, destination
            ) AS last JOIN flowactions_audit ON flowactions_audit.id = last.id
        ) AS known
        WHERE flowactions_pauses.organization_id = known.organization_id
        AND flowactions_pauses.destination = known.destination AND flowactions_pauses.resumed_at IS NULL
        """
    )
