"""All tables.

Until the first release, a change of the tables edits this revision and gives it the next number.

Revision ID: 0103
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from uuid import uuid4

import sqlalchemy as sa
from alembic import op

revision = "0103"
down_revision = None
branch_labels = None
depends_on = None

LIVE = "status IN ('pending', 'retrying')"
FAILED = "error_class IS NOT NULL"


def _needed(
    kind: sa.types.TypeEngine[Any], *names: str, default: str | None = None
) -> Iterator[sa.Column[Any]]:
    for name in names:
        yield sa.Column(name, kind, nullable=False, server_default=default)


def _optional(kind: sa.types.TypeEngine[Any], *names: str) -> Iterator[sa.Column[Any]]:
    for name in names:
        yield sa.Column(name, kind)


def _index(name: str, table: str, *columns: str, where: str | None = None) -> None:
    rows = None if where is None else sa.text(where)
    op.create_index(
        f"ix_flowactions_{name}", f"flowactions_{table}", columns, sqlite_where=rows, postgresql_where=rows
    )


def upgrade() -> None:
    """Create the tables."""
    op.create_table(
        "flowactions_outbox",
        *_needed(sa.String(36), "id"),
        *_needed(sa.Text(), "organization_id", "agent_id", "origin"),
        *_needed(sa.String(68), "event_id"),
        *_needed(sa.String(64), "event_type"),
        *_needed(sa.Text(), "url", "destination"),
        *_needed(sa.BigInteger(), "lane"),
        *_needed(sa.String(32), "method"),
        *_needed(sa.Text(), "headers"),
        *_optional(sa.LargeBinary(), "body"),
        *_optional(sa.String(200), "idempotency_key"),
        *_needed(sa.String(16), "status"),
        *_needed(sa.Integer(), "attempts", "earlier_attempts", "max_attempts"),
        *_needed(sa.BigInteger(), "next_attempt_at"),
        *_optional(sa.String(32), "claimed_by"),
        *_needed(sa.Integer(), "takeovers"),
        *_optional(sa.Integer(), "last_status_code"),
        *_optional(sa.Text(), "last_error"),
        *_needed(sa.BigInteger(), "created_at", "updated_at"),
        *_optional(sa.BigInteger(), "finished_at"),
        *_needed(sa.Integer(), "quarantine_rounds", default="0"),
        *_optional(sa.String(32), "settled_token"),
        *_optional(sa.BigInteger(), "waiting_since", "claimed_until", "delivered_started_at"),
        *_optional(sa.Integer(), "delivered_duration_ms"),
        *_optional(sa.LargeBinary(), "delivered_response"),
        *_optional(sa.Text(), "flow_id", "node_id"),
        *_optional(sa.String(16), "error_class"),
        *_optional(sa.String(55), "trace"),
        *_optional(sa.String(36), "action_id"),
        *_optional(sa.Text(), "delivered_phases"),
        sa.CheckConstraint("status IN ('pending', 'retrying', 'delivered', 'dead')", name="status"),
        sa.PrimaryKeyConstraint("id"),
    )
    if op.get_bind().dialect.name == "postgresql":
        op.execute("ALTER TABLE flowactions_outbox SET (fillfactor = 50)")
    # Of indexes that are as good as each other, SQLite takes the newest.
    _index("outbox_destination", "outbox", "destination", "next_attempt_at", "id", where=LIVE)
    _index("outbox_due", "outbox", "next_attempt_at", "id", where=LIVE)
    _index("outbox_finished", "outbox", "status", "finished_at", where="finished_at IS NOT NULL")
    _index("outbox_organization", "outbox", "organization_id", "id")
    _index("outbox_quarantined", "outbox", "next_attempt_at", "id", where=f"{LIVE} AND takeovers >= 3")
    _index("outbox_lane", "outbox", "lane", "next_attempt_at", "id", where=LIVE)
    _index("outbox_undelivered", "outbox", "organization_id", "status", "id", where="status <> 'delivered'")
    _index("outbox_failed", "outbox", "organization_id", "error_class", "id", where=FAILED)
    _index("outbox_failed_destination", "outbox", "destination", "id", where=FAILED)
    _index("outbox_failed_node", "outbox", "organization_id", "flow_id", "node_id", "id", where=FAILED)
    _index("outbox_key", "outbox", "idempotency_key", "id", where="idempotency_key IS NOT NULL")
    op.create_index(
        "ix_flowactions_outbox_event",
        "flowactions_outbox",
        ["event_id"],
        postgresql_ops={"event_id": "varchar_pattern_ops"},
    )
    op.create_table(
        "flowactions_attempts",
        *_needed(sa.String(36), "delivery_id"),
        *_needed(sa.Integer(), "number"),
        *_needed(sa.BigInteger(), "started_at"),
        *_needed(sa.Integer(), "duration_ms"),
        *_optional(sa.Integer(), "status_code"),
        *_optional(sa.Text(), "error"),
        *_optional(sa.LargeBinary(), "response"),
        *_optional(sa.Text(), "phases"),
        *_optional(sa.String(8), "worker"),
        sa.PrimaryKeyConstraint("delivery_id", "number"),
    )
    op.create_table(
        "flowactions_deferred",
        *_needed(sa.BigInteger().with_variant(sa.Integer(), "sqlite"), "id"),
        *_needed(sa.Text(), "organization_id", "run_id", "step_id", "node_id", "walk", "node"),
        *_needed(sa.BigInteger(), "created_at"),
        *_optional(sa.String(32), "token"),
        *_optional(sa.BigInteger(), "held_until"),
        *_needed(sa.Integer(), "holds"),
        *_needed(sa.Text(), "flow_id"),
        *_needed(sa.Text(), "visit", default="1"),
        *_needed(sa.Text(), "node_type"),
        *_optional(sa.BigInteger(), "ran_at"),
        sa.PrimaryKeyConstraint("id"),
        sa.UniqueConstraint(
            "organization_id",
            "run_id",
            "flow_id",
            "step_id",
            "node_id",
            "visit",
            name="uq_flowactions_deferred_node",
        ),
    )
    _index("deferred_created", "deferred", "created_at")
    _index("deferred_held", "deferred", "node_type", "held_until", where="held_until IS NOT NULL")
    op.create_table(
        "flowactions_halted_runs",
        *_needed(sa.Text(), "organization_id", "run_id", "flow_id"),
        *_needed(sa.BigInteger(), "halted_at"),
        sa.PrimaryKeyConstraint("organization_id", "run_id", "flow_id"),
    )
    _index("halted_runs_halted", "halted_runs", "halted_at")
    op.create_table(
        "flowactions_chat_connections",
        *_needed(
            sa.Text(),
            "organization_id",
            "team_id",
            "team_name",
            "bot_user_id",
            "app_id",
            "scopes",
            "installed_by_id",
            "installed_by_name",
        ),
        *_needed(sa.BigInteger(), "installed_at"),
        *_optional(sa.Text(), "default_channel"),
        *_needed(sa.String(16), "status"),
        *_optional(sa.Text(), "status_reason"),
        *_needed(sa.LargeBinary(), "sealed_token"),
        *_needed(sa.String(36), "install_id"),
        *_needed(sa.Text(), "missing_scopes", default=""),
        *_optional(sa.Text(), "last_error"),
        *_optional(sa.BigInteger(), "last_error_at"),
        *_optional(sa.Text(), "last_error_flow", "last_error_node"),
        *_optional(sa.BigInteger(), "revoked_at", "ask_at"),
        sa.CheckConstraint("status IN ('active', 'revoked')", name="status"),
        sa.PrimaryKeyConstraint("organization_id"),
    )
    _index("chat_connections_team", "chat_connections", "team_id")
    _index("chat_connections_ask", "chat_connections", "ask_at", where="ask_at IS NOT NULL")
    op.create_table(
        "flowactions_oauth_states",
        *_needed(sa.String(64), "id"),
        *_needed(sa.BigInteger(), "expires_at"),
        *_needed(sa.Text(), "organization_id", "user_id", "user_name", default=""),
        *_needed(sa.String(64), "browser", default=""),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_table(
        "flowactions_inbound_events",
        *_needed(sa.String(32), "provider"),
        *_needed(sa.Text(), "event_id"),
        *_needed(sa.BigInteger(), "received_at"),
        *_optional(sa.Text(), "event_type"),
        *_needed(sa.Integer(), "repeats", default="0"),
        *_optional(sa.BigInteger(), "repeated_at"),
        sa.PrimaryKeyConstraint("provider", "event_id"),
    )
    _index("inbound_events_received", "inbound_events", "received_at")
    op.create_table(
        "flowactions_inbound_requests",
        *_needed(sa.String(32), "provider"),
        *_needed(sa.String(16), "result"),
        *_needed(sa.Text(), "cause"),
        *_needed(sa.BigInteger(), "first_at", "last_at", "requests"),
        *_optional(sa.Text(), "event_id", "event_type"),
        *_needed(sa.Integer(), "status_code"),
        *_optional(sa.Text(), "reason"),
        sa.PrimaryKeyConstraint("provider", "result", "cause"),
    )
    _index("inbound_requests_last", "inbound_requests", "last_at")
    op.create_table(
        "flowactions_enqueue_keys",
        *_needed(sa.Text(), "organization_id", "caller"),
        *_needed(sa.String(200), "idempotency_key"),
        *_needed(sa.String(36), "delivery_id"),
        *_needed(sa.BigInteger(), "created_at"),
        *_needed(sa.String(68), "event_id"),
        sa.PrimaryKeyConstraint("organization_id", "caller", "idempotency_key"),
    )
    _index("enqueue_keys_created", "enqueue_keys", "created_at")
    op.create_table(
        "flowactions_enqueue_rates",
        *_needed(sa.Text(), "organization_id", "agent_id", "times"),
        *_needed(sa.BigInteger(), "updated_at"),
        sa.PrimaryKeyConstraint("organization_id", "agent_id"),
    )
    _index("enqueue_rates_updated", "enqueue_rates", "updated_at")
    op.create_table(
        "flowactions_workers",
        *_needed(sa.String(36), "id"),
        *_needed(sa.Text(), "name", "version", "host_name"),
        *_needed(sa.Integer(), "pid"),
        *_needed(sa.String(16), "mode"),
        *_needed(sa.Integer(), "slots", "in_flight"),
        *_needed(sa.BigInteger(), "started_at", "last_seen_at"),
        *_optional(sa.BigInteger(), "last_claim_at", "stopped_at", "clock_ahead_ms"),
        *_optional(sa.Text(), "limited"),
        sa.PrimaryKeyConstraint("id"),
    )
    made = op.create_table(
        "flowactions_installation",
        *_needed(sa.String(36), "id"),
        *_needed(sa.BigInteger(), "outages"),
        sa.PrimaryKeyConstraint("id"),
    )
    op.bulk_insert(made, [{"id": str(uuid4()), "outages": 0}])
    op.create_table(
        "flowactions_pauses",
        *_needed(sa.Text(), "organization_id", "destination"),
        *_needed(sa.BigInteger(), "paused_at"),
        *_needed(sa.Text(), "paused_by", "reason"),
        *_optional(sa.String(16), "paused_role"),
        *_optional(sa.BigInteger(), "probe_at"),
        *_optional(sa.Integer(), "probes"),
        sa.PrimaryKeyConstraint("organization_id", "destination"),
    )
    op.create_table(
        "flowactions_destinations",
        *_needed(sa.Text(), "organization_id", "destination"),
        *_optional(sa.BigInteger(), "last_success_at", "last_failure_at", "failing_since"),
        *_needed(sa.Integer(), "failures_in_row"),
        *_optional(sa.Text(), "last_error"),
        *_optional(sa.BigInteger(), "alerted_at"),
        *_needed(sa.BigInteger(), "updated_at"),
        *_optional(sa.Text(), "last_reason"),
        sa.PrimaryKeyConstraint("organization_id", "destination"),
    )
    _index("destinations_failing", "destinations", "failing_since", where="failing_since IS NOT NULL")
    _index("destinations_updated", "destinations", "updated_at")
    op.create_table(
        "flowactions_statistics",
        *_needed(sa.BigInteger(), "bucket"),
        *_needed(sa.Text(), "organization_id", "destination"),
        *_needed(sa.Integer(), "delivered", "failed", "dead"),
        *_needed(sa.BigInteger(), "duration_ms"),
        sa.PrimaryKeyConstraint("bucket", "organization_id", "destination"),
    )
    _index("statistics_organization", "statistics", "organization_id", "bucket")
    op.create_table(
        "flowactions_actions",
        *_needed(sa.String(36), "id"),
        *_needed(sa.String(16), "kind"),
        *_needed(sa.Text(), "organization_id", "filter"),
        *_needed(sa.BigInteger(), "as_of", "counted"),
        *_needed(sa.Text(), "actor_id", "actor_name"),
        *_needed(sa.String(16), "actor_role"),
        *_needed(sa.Text(), "reason"),
        *_needed(sa.Integer(), "reset_attempts"),
        *_optional(sa.Float(), "rate"),
        *_needed(sa.Integer(), "canary"),
        *_needed(sa.String(16), "state"),
        *_optional(sa.Text(), "state_reason"),
        *_needed(sa.BigInteger(), "created_at", "starts_at"),
        *_optional(sa.BigInteger(), "finished_at"),
        *_optional(sa.String(36), "position"),
        *_needed(sa.BigInteger(), "done"),
        *_optional(sa.Text(), "canary_ids"),
        *_optional(sa.BigInteger(), "withdrawn_at"),
        *_optional(sa.BigInteger(), "paced_from"),
        *_needed(sa.BigInteger(), "paced_done"),
        *_optional(sa.String(32), "held_by"),
        *_optional(sa.BigInteger(), "held_until"),
        sa.PrimaryKeyConstraint("id"),
    )
    _index("actions_open", "actions", "starts_at", where="finished_at IS NULL")
    _index("actions_organization", "actions", "organization_id", "id")
    op.create_table(
        "flowactions_audit",
        *_needed(sa.String(36), "id"),
        *_needed(sa.BigInteger(), "at"),
        *_needed(sa.Text(), "organization_id", "actor_id", "actor_name"),
        *_needed(sa.String(16), "actor_role"),
        *_needed(sa.String(32), "action"),
        *_optional(sa.String(36), "delivery_id", "action_id"),
        *_optional(sa.Text(), "destination", "filter"),
        *_needed(sa.Text(), "reason"),
        *_optional(sa.BigInteger(), "number"),
        *_optional(sa.Text(), "before"),
        sa.PrimaryKeyConstraint("id"),
    )
    _index("audit_action", "audit", "action_id", "id", where="action_id IS NOT NULL")
    _index("audit_delivery", "audit", "delivery_id", "id", where="delivery_id IS NOT NULL")
    _index("audit_organization", "audit", "organization_id", "id")
