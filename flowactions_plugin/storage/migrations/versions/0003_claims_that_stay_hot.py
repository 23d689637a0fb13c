"""Claims that write no index entry, the last attempt in its row, and the indexes of the operators' searches.

All workers of the release before stop for it: it renames a column that every claim of theirs reads and writes, so that one
that goes on claims nothing. With the column as it was, it would not know the new leases, and would send what others hold.

Revision ID: 0003
Revises: 0002
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None

LIVE = "status IN ('pending', 'retrying')"
UNDELIVERED = "status <> 'delivered'"
KEYED = "idempotency_key IS NOT NULL"
FAILED = "error_class IS NOT NULL"

OUTBOX = "flowactions_outbox"


def upgrade() -> None:
    """Change the outbox. Rows are written only where they are held or have failed, which are few."""
    # Neither database checks or copies the rows for a new name, or for columns without a value.
    op.execute(f"ALTER TABLE {OUTBOX} RENAME COLUMN claim_token TO claimed_by")
    for name, kind in (
        ("claimed_until", sa.BigInteger()),
        ("delivered_started_at", sa.BigInteger()),
        ("delivered_duration_ms", sa.Integer()),
        ("delivered_response", sa.LargeBinary()),
        ("flow_id", sa.Text()),
        ("node_id", sa.Text()),
        ("error_class", sa.String(length=16)),
    ):
        op.add_column(OUTBOX, sa.Column(name, kind, nullable=True))
    if op.get_bind().dialect.name == "postgresql":
        op.execute(f"ALTER TABLE {OUTBOX} SET (fillfactor = 50)")
    # The claim of a process that is gone, or still writes, expires when it would have.
    op.execute(
        f"UPDATE {OUTBOX} SET claimed_until = next_attempt_at WHERE {LIVE} AND claimed_by IS NOT NULL"  # noqa: S608
    )
    op.execute(
        f"""UPDATE {OUTBOX} SET error_class = CASE
            WHEN last_status_code BETWEEN 100 AND 599 THEN 'http_' || (last_status_code / 100) || 'xx'
            WHEN last_error LIKE 'timed out%' THEN 'timeout' ELSE 'other' END
        WHERE {UNDELIVERED} AND (last_status_code IS NOT NULL OR last_error IS NOT NULL)"""  # noqa: S608
    )
    _indexes()


def _indexes() -> None:
    op.drop_index("ix_flowactions_outbox_organization_status", OUTBOX)
    for name, columns, rows in (
        ("organization_due", ["organization_id", "next_attempt_at", "id"], LIVE),
        ("undelivered", ["organization_id", "status", "id"], UNDELIVERED),
        ("failed", ["organization_id", "error_class", "id"], FAILED),
        ("failed_event", ["event_id"], FAILED),
        ("failed_destination", ["destination", "id"], FAILED),
        ("failed_node", ["organization_id", "flow_id", "node_id", "id"], FAILED),
        ("key", ["idempotency_key", "id"], KEYED),
    ):
        where = sa.text(rows)
        op.create_index(
            f"ix_flowactions_outbox_{name}",
            OUTBOX,
            columns,
            unique=False,
            sqlite_where=where,
            postgresql_where=where,
        )
