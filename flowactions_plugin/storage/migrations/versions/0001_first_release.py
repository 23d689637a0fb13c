"""The tables of the first release.

Revision ID: 0001
Revises:
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Make every table with its indexes."""
    op.create_table(
        "flowactions_call_rates",
        sa.Column("agent_id", sa.Text(), nullable=False),
        sa.Column("times", sa.Text(), nullable=False),
        sa.Column("updated_at", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("agent_id", name=op.f("pk_flowactions_call_rates")),
    )
    op.create_index("ix_flowactions_call_rates_updated", "flowactions_call_rates", ["updated_at"], unique=False)
    op.create_table(
        "flowactions_chat_connections",
        sa.Column("organization_id", sa.Text(), nullable=False),
        sa.Column("team_id", sa.Text(), nullable=False),
        sa.Column("team_name", sa.Text(), nullable=False),
        sa.Column("bot_user_id", sa.Text(), nullable=False),
        sa.Column("app_id", sa.Text(), nullable=False),
        sa.Column("scopes", sa.Text(), nullable=False),
        sa.Column("installed_by_id", sa.Text(), nullable=False),
        sa.Column("installed_by_name", sa.Text(), nullable=False),
        sa.Column("installed_at", sa.BigInteger(), nullable=False),
        sa.Column("default_channel", sa.Text(), nullable=True),
        sa.Column("status", sa.String(length=16), nullable=False),
        sa.Column("status_reason", sa.Text(), nullable=True),
        sa.Column("sealed_token", sa.LargeBinary(), nullable=False),
        sa.CheckConstraint(
            "status IN ('active', 'revoked')", name=op.f("ck_flowactions_chat_connections_status")
        ),
        sa.PrimaryKeyConstraint("organization_id", name=op.f("pk_flowactions_chat_connections")),
    )
    op.create_table(
        "flowactions_deferred",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("organization_id", sa.Text(), nullable=False),
        sa.Column("run_id", sa.Text(), nullable=False),
        sa.Column("step_id", sa.Text(), nullable=False),
        sa.Column("node_id", sa.Text(), nullable=False),
        sa.Column("walk", sa.Text(), nullable=False),
        sa.Column("node", sa.Text(), nullable=False),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.Column("token", sa.String(length=32), nullable=True),
        sa.Column("held_until", sa.BigInteger(), nullable=True),
        sa.Column("holds", sa.Integer(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_flowactions_deferred")),
        sa.UniqueConstraint(
            "organization_id", "run_id", "step_id", "node_id", name="uq_flowactions_deferred_node"
        ),
    )
    op.create_index("ix_flowactions_deferred_created", "flowactions_deferred", ["created_at"], unique=False)
    op.create_index(
        "ix_flowactions_deferred_held",
        "flowactions_deferred",
        ["held_until"],
        unique=False,
        sqlite_where=sa.text("held_until IS NOT NULL"),
        postgresql_where=sa.text("held_until IS NOT NULL"),
    )
    op.create_index(
        "ix_flowactions_chat_connections_team", "flowactions_chat_connections", ["team_id"], unique=False
    )
    op.create_table(
        "flowactions_idempotency_keys",
        sa.Column("agent_id", sa.Text(), nullable=False),
        sa.Column("idempotency_key", sa.String(length=200), nullable=False),
        sa.Column("delivery_id", sa.String(length=36), nullable=False),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("agent_id", "idempotency_key", name=op.f("pk_flowactions_idempotency_keys")),
    )
    op.create_index(
        "ix_flowactions_idempotency_keys_created", "flowactions_idempotency_keys", ["created_at"], unique=False
    )
    op.create_table(
        "flowactions_inbound_events",
        sa.Column("provider", sa.String(length=32), nullable=False),
        sa.Column("event_id", sa.Text(), nullable=False),
        sa.Column("received_at", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("provider", "event_id", name=op.f("pk_flowactions_inbound_events")),
    )
    op.create_index(
        "ix_flowactions_inbound_events_received", "flowactions_inbound_events", ["received_at"], unique=False
    )
    op.create_table(
        "flowactions_oauth_states",
        sa.Column("id", sa.String(length=64), nullable=False),
        sa.Column("expires_at", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_flowactions_oauth_states")),
    )
    op.create_table(
        "flowactions_outbox",
        sa.Column("id", sa.String(length=36), nullable=False),
        sa.Column("organization_id", sa.Text(), nullable=False),
        sa.Column("agent_id", sa.Text(), nullable=False),
        sa.Column("origin", sa.Text(), nullable=False),
        sa.Column("event_id", sa.String(length=68), nullable=False),
        sa.Column("event_type", sa.String(length=64), nullable=False),
        sa.Column("url", sa.Text(), nullable=False),
        sa.Column("destination", sa.Text(), nullable=False),
        sa.Column("method", sa.String(length=32), nullable=False),
        sa.Column("headers", sa.Text(), nullable=False),
        sa.Column("body", sa.LargeBinary(), nullable=True),
        sa.Column("idempotency_key", sa.String(length=200), nullable=True),
        sa.Column("status", sa.String(length=16), nullable=False),
        sa.Column("attempts", sa.Integer(), nullable=False),
        sa.Column("earlier_attempts", sa.Integer(), nullable=False),
        sa.Column("max_attempts", sa.Integer(), nullable=False),
        sa.Column("next_attempt_at", sa.BigInteger(), nullable=False),
        sa.Column("claim_token", sa.String(length=32), nullable=True),
        sa.Column("takeovers", sa.Integer(), nullable=False),
        sa.Column("last_status_code", sa.Integer(), nullable=True),
        sa.Column("last_error", sa.Text(), nullable=True),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.Column("updated_at", sa.BigInteger(), nullable=False),
        sa.Column("finished_at", sa.BigInteger(), nullable=True),
        sa.CheckConstraint(
            "status IN ('pending', 'retrying', 'delivered', 'dead')", name=op.f("ck_flowactions_outbox_status")
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_flowactions_outbox")),
    )
    op.create_index(
        "ix_flowactions_outbox_destination",
        "flowactions_outbox",
        ["destination", "next_attempt_at", "id"],
        unique=False,
        sqlite_where=sa.text("status IN ('pending', 'retrying')"),
        postgresql_where=sa.text("status IN ('pending', 'retrying')"),
    )
    op.create_index(
        "ix_flowactions_outbox_due",
        "flowactions_outbox",
        ["next_attempt_at", "id"],
        unique=False,
        sqlite_where=sa.text("status IN ('pending', 'retrying')"),
        postgresql_where=sa.text("status IN ('pending', 'retrying')"),
    )
    op.create_index(
        "ix_flowactions_outbox_finished",
        "flowactions_outbox",
        ["status", "finished_at"],
        unique=False,
        sqlite_where=sa.text("finished_at IS NOT NULL"),
        postgresql_where=sa.text("finished_at IS NOT NULL"),
    )
    op.create_index(
        "ix_flowactions_outbox_organization", "flowactions_outbox", ["organization_id", "id"], unique=False
    )
    op.create_index(
        "ix_flowactions_outbox_organization_agent",
        "flowactions_outbox",
        ["organization_id", "agent_id", "id"],
        unique=False,
    )
    op.create_index(
        "ix_flowactions_outbox_organization_status",
        "flowactions_outbox",
        ["organization_id", "status", "id"],
        unique=False,
    )
    op.create_table(
        "flowactions_attempts",
        sa.Column("delivery_id", sa.String(length=36), nullable=False),
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("started_at", sa.BigInteger(), nullable=False),
        sa.Column("duration_ms", sa.Integer(), nullable=False),
        sa.Column("status_code", sa.Integer(), nullable=True),
        sa.Column("error", sa.Text(), nullable=True),
        sa.Column("response", sa.LargeBinary(), nullable=True),
        sa.PrimaryKeyConstraint("delivery_id", "number", name=op.f("pk_flowactions_attempts")),
    )
