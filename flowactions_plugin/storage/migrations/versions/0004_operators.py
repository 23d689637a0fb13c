"""What operators see and do: workers, pauses, destinations, statistics, bulk actions, and the audit log.

Workers of revision 0003 go on beside this one: what it adds is empty for the rows that they write, and they neither read nor
write the new tables. So they know no pauses: a destination that is paused while they still run is sent to by them.

Revision ID: 0004
Revises: 0003
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None

OUTBOX = "flowactions_outbox"


def upgrade() -> None:
    """Add columns without values, which neither database copies rows for, and the new tables."""
    op.add_column("flowactions_attempts", sa.Column("phases", sa.Text(), nullable=True))
    op.add_column(OUTBOX, sa.Column("trace", sa.String(length=55), nullable=True))
    op.add_column(OUTBOX, sa.Column("action_id", sa.String(length=36), nullable=True))
    op.add_column(OUTBOX, sa.Column("delivered_phases", sa.Text(), nullable=True))
    _fleet()
    _actions()
    _audit()
    _indexes()
    _event_index()


def _fleet() -> None:
    op.create_table(
        "flowactions_workers",
        sa.Column("id", sa.String(length=36), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("version", sa.Text(), nullable=False),
        sa.Column("host_name", sa.Text(), nullable=False),
        sa.Column("pid", sa.Integer(), nullable=False),
        sa.Column("mode", sa.String(length=16), nullable=False),
        sa.Column("slots", sa.Integer(), nullable=False),
        sa.Column("in_flight", sa.Integer(), nullable=False),
        sa.Column("started_at", sa.BigInteger(), nullable=False),
        sa.Column("last_seen_at", sa.BigInteger(), nullable=False),
        sa.Column("last_claim_at", sa.BigInteger(), nullable=True),
        sa.Column("stopped_at", sa.BigInteger(), nullable=True),
        sa.PrimaryKeyConstraint("id", name="pk_flowactions_workers"),
    )
    op.create_table(
        "flowactions_pauses",
        sa.Column("organization_id", sa.Text(), nullable=False),
        sa.Column("destination", sa.Text(), nullable=False),
        sa.Column("paused_at", sa.BigInteger(), nullable=False),
        sa.Column("paused_by", sa.Text(), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("resumed_at", sa.BigInteger(), nullable=True),
        sa.PrimaryKeyConstraint("organization_id", "destination", name="pk_flowactions_pauses"),
    )
    op.create_table(
        "flowactions_destinations",
        sa.Column("organization_id", sa.Text(), nullable=False),
        sa.Column("destination", sa.Text(), nullable=False),
        sa.Column("last_success_at", sa.BigInteger(), nullable=True),
        sa.Column("last_failure_at", sa.BigInteger(), nullable=True),
        sa.Column("failing_since", sa.BigInteger(), nullable=True),
        sa.Column("failures_in_row", sa.Integer(), nullable=False),
        sa.Column("last_error", sa.Text(), nullable=True),
        sa.Column("alerted_at", sa.BigInteger(), nullable=True),
        sa.Column("updated_at", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("organization_id", "destination", name="pk_flowactions_destinations"),
    )
    op.create_table(
        "flowactions_statistics",
        sa.Column("bucket", sa.BigInteger(), nullable=False),
        sa.Column("organization_id", sa.Text(), nullable=False),
        sa.Column("destination", sa.Text(), nullable=False),
        sa.Column("delivered", sa.Integer(), nullable=False),
        sa.Column("failed", sa.Integer(), nullable=False),
        sa.Column("dead", sa.Integer(), nullable=False),
        sa.Column("duration_ms", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("bucket", "organization_id", "destination", name="pk_flowactions_statistics"),
    )


def _actions() -> None:
    op.create_table(
        "flowactions_actions",
        sa.Column("id", sa.String(length=36), nullable=False),
        sa.Column("kind", sa.String(length=16), nullable=False),
        sa.Column("organization_id", sa.Text(), nullable=False),
        sa.Column("filter", sa.Text(), nullable=False),
        sa.Column("as_of", sa.BigInteger(), nullable=False),
        sa.Column("counted", sa.BigInteger(), nullable=False),
        sa.Column("actor_id", sa.Text(), nullable=False),
        sa.Column("actor_name", sa.Text(), nullable=False),
        sa.Column("actor_role", sa.String(length=16), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("reset_attempts", sa.Integer(), nullable=False),
        sa.Column("rate", sa.Float(), nullable=True),
        sa.Column("canary", sa.Integer(), nullable=False),
        sa.Column("state", sa.String(length=16), nullable=False),
        sa.Column("state_reason", sa.Text(), nullable=True),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.Column("starts_at", sa.BigInteger(), nullable=False),
        sa.Column("finished_at", sa.BigInteger(), nullable=True),
        sa.Column("position", sa.String(length=36), nullable=True),
        sa.Column("done", sa.BigInteger(), nullable=False),
        sa.Column("stage", sa.Text(), nullable=True),
        sa.Column("paced_from", sa.BigInteger(), nullable=True),
        sa.Column("paced_done", sa.BigInteger(), nullable=False),
        sa.Column("held_by", sa.String(length=32), nullable=True),
        sa.Column("held_until", sa.BigInteger(), nullable=True),
        sa.PrimaryKeyConstraint("id", name="pk_flowactions_actions"),
    )


def _audit() -> None:
    op.create_table(
        "flowactions_audit",
        sa.Column("id", sa.String(length=36), nullable=False),
        sa.Column("at", sa.BigInteger(), nullable=False),
        sa.Column("organization_id", sa.Text(), nullable=False),
        sa.Column("actor_id", sa.Text(), nullable=False),
        sa.Column("actor_name", sa.Text(), nullable=False),
        sa.Column("actor_role", sa.String(length=16), nullable=False),
        sa.Column("action", sa.String(length=32), nullable=False),
        sa.Column("delivery_id", sa.String(length=36), nullable=True),
        sa.Column("action_id", sa.String(length=36), nullable=True),
        sa.Column("destination", sa.Text(), nullable=True),
        sa.Column("filter", sa.Text(), nullable=True),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("number", sa.BigInteger(), nullable=True),
        sa.Column("before", sa.Text(), nullable=True),
        sa.PrimaryKeyConstraint("id", name="pk_flowactions_audit"),
    )


def _indexes() -> None:
    for table, name, columns, rows in (
        ("flowactions_destinations", "failing", ["failing_since"], "failing_since IS NOT NULL"),
        ("flowactions_destinations", "updated", ["updated_at"], None),
        ("flowactions_statistics", "organization", ["organization_id", "bucket"], None),
        ("flowactions_actions", "open", ["starts_at"], "finished_at IS NULL"),
        ("flowactions_actions", "organization", ["organization_id", "id"], None),
        ("flowactions_audit", "action", ["action_id", "id"], "action_id IS NOT NULL"),
        ("flowactions_audit", "delivery", ["delivery_id", "id"], "delivery_id IS NOT NULL"),
        ("flowactions_audit", "organization", ["organization_id", "id"], None),
    ):
        where = None if rows is None else sa.text(rows)
        op.create_index(
            f"ix_{table}_{name}", table, columns, unique=False, sqlite_where=where, postgresql_where=where
        )


def _event_index() -> None:
    """Index the events of all rows, in the place of those that have failed."""
    op.create_index(
        "ix_flowactions_outbox_event", OUTBOX, ["event_id"], postgresql_ops={"event_id": "varchar_pattern_ops"}
    )
    op.drop_index("ix_flowactions_outbox_failed_event", table_name=OUTBOX)
