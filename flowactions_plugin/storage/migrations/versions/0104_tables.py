"""All tables.

Until the first release, a change of the tables edits this revision and gives it the next number.

Revision ID: 0104
"""

from __future__ import annotations

from uuid import uuid4

from alembic import op
from sqlalchemy import text

revision = "0104"
down_revision = None
branch_labels = None
depends_on = None

DIFFERENCES = {
    "postgresql": {
        "bytes": "BYTEA",
        "serial": "BIGSERIAL",
        "by_bytes": " varchar_pattern_ops",
        "fill": " WITH (fillfactor = 50)",
    },
    "sqlite": {"bytes": "BLOB", "serial": "INTEGER", "by_bytes": "", "fill": ""},
}

# An index of some rows costs nothing when others change. Its condition is one that statements have, from `storage.schema`.
# Which index of the outbox serves which search is in decision 33. That of events compares bytes on PostgreSQL: by a language's
# rules, or with the row's id beside, it would cost a delivery more. Fifty per cent of each page of the outbox are for the
# versions that a claim and an outcome write. Of indexes that are as good as each other, SQLite takes the newest.
TABLES = """
CREATE TABLE flowactions_outbox (
    id VARCHAR(36) NOT NULL, organization_id TEXT NOT NULL, agent_id TEXT NOT NULL, origin TEXT NOT NULL,
    event_id VARCHAR(68) NOT NULL, event_type VARCHAR(64) NOT NULL, url TEXT NOT NULL,
    destination TEXT NOT NULL, lane BIGINT NOT NULL, method VARCHAR(32) NOT NULL, headers TEXT NOT NULL,
    body {bytes}, idempotency_key VARCHAR(200), status VARCHAR(16) NOT NULL, attempts INTEGER NOT NULL,
    earlier_attempts INTEGER NOT NULL, max_attempts INTEGER NOT NULL, next_attempt_at BIGINT NOT NULL,
    claimed_by VARCHAR(32), takeovers INTEGER NOT NULL, last_status_code INTEGER, last_error TEXT,
    created_at BIGINT NOT NULL, updated_at BIGINT NOT NULL, finished_at BIGINT,
    quarantine_rounds INTEGER DEFAULT '0' NOT NULL, settled_token VARCHAR(32), waiting_since BIGINT,
    claimed_until BIGINT, delivered_started_at BIGINT, delivered_duration_ms INTEGER,
    delivered_response {bytes}, flow_id TEXT, node_id TEXT, error_class VARCHAR(16), trace VARCHAR(55),
    action_id VARCHAR(36), delivered_phases TEXT, sequence BIGINT, position BIGINT, expires_at BIGINT,
    CONSTRAINT pk_flowactions_outbox PRIMARY KEY (id),
    CONSTRAINT ck_flowactions_outbox_status CHECK (status IN ('pending', 'retrying', 'delivered', 'dead'))
){fill};
CREATE INDEX ix_flowactions_outbox_destination ON flowactions_outbox (destination, next_attempt_at, id)
    WHERE status IN ('pending', 'retrying');
CREATE INDEX ix_flowactions_outbox_due ON flowactions_outbox (next_attempt_at, id)
    WHERE status IN ('pending', 'retrying');
CREATE INDEX ix_flowactions_outbox_finished ON flowactions_outbox (status, finished_at)
    WHERE finished_at IS NOT NULL;
CREATE INDEX ix_flowactions_outbox_organization ON flowactions_outbox (organization_id, id);
CREATE INDEX ix_flowactions_outbox_quarantined ON flowactions_outbox (next_attempt_at, id)
    WHERE status IN ('pending', 'retrying') AND takeovers >= 3;
CREATE INDEX ix_flowactions_outbox_lane ON flowactions_outbox (lane, next_attempt_at, id)
    WHERE status IN ('pending', 'retrying');
CREATE INDEX ix_flowactions_outbox_undelivered ON flowactions_outbox (organization_id, status, id)
    WHERE status <> 'delivered';
CREATE INDEX ix_flowactions_outbox_failed_id ON flowactions_outbox (id)
    WHERE error_class IS NOT NULL;
CREATE INDEX ix_flowactions_outbox_failed ON flowactions_outbox (organization_id, error_class, id)
    WHERE error_class IS NOT NULL;
CREATE INDEX ix_flowactions_outbox_failed_destination ON flowactions_outbox (destination, id)
    WHERE error_class IS NOT NULL;
CREATE INDEX ix_flowactions_outbox_failed_node ON flowactions_outbox (organization_id, flow_id, node_id, id)
    WHERE error_class IS NOT NULL;
CREATE INDEX ix_flowactions_outbox_unsent ON flowactions_outbox (finished_at)
    WHERE error_class = 'not_sent' AND status = 'dead';
CREATE INDEX ix_flowactions_outbox_key ON flowactions_outbox (idempotency_key, id)
    WHERE idempotency_key IS NOT NULL;
CREATE INDEX ix_flowactions_outbox_event ON flowactions_outbox (event_id{by_bytes});
CREATE INDEX ix_flowactions_outbox_behind ON flowactions_outbox (sequence, position)
    WHERE next_attempt_at = 253402300799999 AND status = 'pending';
CREATE INDEX ix_flowactions_outbox_sequence ON flowactions_outbox (sequence, status, next_attempt_at)
    WHERE sequence IS NOT NULL AND status <> 'delivered';
CREATE TABLE flowactions_attempts (
    delivery_id VARCHAR(36) NOT NULL, number INTEGER NOT NULL, started_at BIGINT NOT NULL,
    duration_ms INTEGER NOT NULL, status_code INTEGER, error TEXT, response {bytes}, phases TEXT,
    worker VARCHAR(8),
    CONSTRAINT pk_flowactions_attempts PRIMARY KEY (delivery_id, number)
);
CREATE TABLE flowactions_deferred (
    id {serial} NOT NULL, organization_id TEXT NOT NULL, run_id TEXT NOT NULL, step_id TEXT NOT NULL,
    node_id TEXT NOT NULL, walk TEXT NOT NULL, node TEXT NOT NULL, created_at BIGINT NOT NULL,
    token VARCHAR(32), held_until BIGINT, holds INTEGER NOT NULL, flow_id TEXT NOT NULL,
    visit TEXT DEFAULT '1' NOT NULL, node_type TEXT NOT NULL, ran_at BIGINT,
    CONSTRAINT pk_flowactions_deferred PRIMARY KEY (id),
    CONSTRAINT uq_flowactions_deferred_node UNIQUE (organization_id, run_id, flow_id, step_id, node_id, visit)
);
CREATE INDEX ix_flowactions_deferred_created ON flowactions_deferred (created_at);
CREATE INDEX ix_flowactions_deferred_held ON flowactions_deferred (node_type, held_until)
    WHERE held_until IS NOT NULL;
CREATE TABLE flowactions_halted_runs (
    organization_id TEXT NOT NULL, run_id TEXT NOT NULL, flow_id TEXT NOT NULL, halted_at BIGINT NOT NULL,
    CONSTRAINT pk_flowactions_halted_runs PRIMARY KEY (organization_id, run_id, flow_id)
);
CREATE INDEX ix_flowactions_halted_runs_halted ON flowactions_halted_runs (halted_at);
CREATE TABLE flowactions_chat_connections (
    organization_id TEXT NOT NULL, team_id TEXT NOT NULL, team_name TEXT NOT NULL, bot_user_id TEXT NOT NULL,
    app_id TEXT NOT NULL, scopes TEXT NOT NULL, installed_by_id TEXT NOT NULL,
    installed_by_name TEXT NOT NULL, installed_at BIGINT NOT NULL, default_channel TEXT,
    status VARCHAR(16) NOT NULL, status_reason TEXT, sealed_token {bytes} NOT NULL,
    install_id VARCHAR(36) NOT NULL, missing_scopes TEXT DEFAULT '' NOT NULL, last_error TEXT,
    last_error_at BIGINT, last_error_flow TEXT, last_error_node TEXT, revoked_at BIGINT, ask_at BIGINT,
    CONSTRAINT pk_flowactions_chat_connections PRIMARY KEY (organization_id),
    CONSTRAINT ck_flowactions_chat_connections_status CHECK (status IN ('active', 'revoked'))
);
CREATE INDEX ix_flowactions_chat_connections_team ON flowactions_chat_connections (team_id);
CREATE INDEX ix_flowactions_chat_connections_troubled ON flowactions_chat_connections (last_error_at)
    WHERE (status <> 'active' OR last_error_at IS NOT NULL);
CREATE INDEX ix_flowactions_chat_connections_ask ON flowactions_chat_connections (ask_at)
    WHERE ask_at IS NOT NULL;
CREATE TABLE flowactions_oauth_states (
    id VARCHAR(64) NOT NULL, expires_at BIGINT NOT NULL, organization_id TEXT DEFAULT '' NOT NULL,
    user_id TEXT DEFAULT '' NOT NULL, user_name TEXT DEFAULT '' NOT NULL,
    browser VARCHAR(64) DEFAULT '' NOT NULL,
    CONSTRAINT pk_flowactions_oauth_states PRIMARY KEY (id)
);
CREATE TABLE flowactions_inbound_events (
    provider VARCHAR(32) NOT NULL, event_id TEXT NOT NULL, received_at BIGINT NOT NULL, event_type TEXT,
    repeats INTEGER DEFAULT '0' NOT NULL, repeated_at BIGINT,
    CONSTRAINT pk_flowactions_inbound_events PRIMARY KEY (provider, event_id)
);
CREATE INDEX ix_flowactions_inbound_events_received ON flowactions_inbound_events (received_at);
CREATE TABLE flowactions_inbound_requests (
    provider VARCHAR(32) NOT NULL, result VARCHAR(16) NOT NULL, cause TEXT NOT NULL, first_at BIGINT NOT NULL,
    last_at BIGINT NOT NULL, requests BIGINT NOT NULL, event_id TEXT, event_type TEXT,
    status_code INTEGER NOT NULL, reason TEXT,
    CONSTRAINT pk_flowactions_inbound_requests PRIMARY KEY (provider, result, cause)
);
CREATE INDEX ix_flowactions_inbound_requests_last ON flowactions_inbound_requests (last_at);
CREATE TABLE flowactions_enqueue_keys (
    organization_id TEXT NOT NULL, caller TEXT NOT NULL, idempotency_key VARCHAR(200) NOT NULL,
    delivery_id VARCHAR(36) NOT NULL, created_at BIGINT NOT NULL, event_id VARCHAR(68) NOT NULL,
    CONSTRAINT pk_flowactions_enqueue_keys PRIMARY KEY (organization_id, caller, idempotency_key)
);
CREATE INDEX ix_flowactions_enqueue_keys_created ON flowactions_enqueue_keys (created_at);
CREATE TABLE flowactions_enqueue_rates (
    organization_id TEXT NOT NULL, agent_id TEXT NOT NULL, times TEXT NOT NULL, updated_at BIGINT NOT NULL,
    CONSTRAINT pk_flowactions_enqueue_rates PRIMARY KEY (organization_id, agent_id)
);
CREATE INDEX ix_flowactions_enqueue_rates_updated ON flowactions_enqueue_rates (updated_at);
CREATE TABLE flowactions_workers (
    id VARCHAR(36) NOT NULL, name TEXT NOT NULL, version TEXT NOT NULL, host_name TEXT NOT NULL,
    pid INTEGER NOT NULL, mode VARCHAR(16) NOT NULL, slots INTEGER NOT NULL,
    delivery_timeout INTEGER NOT NULL, in_flight INTEGER NOT NULL,
    slow INTEGER DEFAULT '0' NOT NULL,
    started_at BIGINT NOT NULL, last_seen_at BIGINT NOT NULL, last_claim_at BIGINT, stopped_at BIGINT,
    clock_ahead_ms BIGINT, limited TEXT,
    CONSTRAINT pk_flowactions_workers PRIMARY KEY (id)
);
CREATE INDEX ix_flowactions_workers_seen ON flowactions_workers (last_seen_at);
CREATE TABLE flowactions_installation (
    id VARCHAR(36) NOT NULL, outages BIGINT NOT NULL,
    CONSTRAINT pk_flowactions_installation PRIMARY KEY (id)
);
CREATE TABLE flowactions_pauses (
    organization_id TEXT NOT NULL, destination TEXT NOT NULL, paused_at BIGINT NOT NULL,
    paused_by TEXT NOT NULL, reason TEXT NOT NULL, paused_role VARCHAR(16), probe_at BIGINT, probes INTEGER,
    CONSTRAINT pk_flowactions_pauses PRIMARY KEY (organization_id, destination)
);
CREATE TABLE flowactions_destinations (
    organization_id TEXT NOT NULL, destination TEXT NOT NULL, last_success_at BIGINT, last_failure_at BIGINT,
    failing_since BIGINT, failures_in_row INTEGER NOT NULL, last_error TEXT, alerted_at BIGINT,
    updated_at BIGINT NOT NULL, last_reason TEXT, failing_origin TEXT,
    CONSTRAINT pk_flowactions_destinations PRIMARY KEY (organization_id, destination)
);
CREATE INDEX ix_flowactions_destinations_failing ON flowactions_destinations (last_failure_at)
    WHERE failing_since IS NOT NULL;
CREATE INDEX ix_flowactions_destinations_own_failing ON flowactions_destinations (organization_id, last_failure_at)
    WHERE failing_since IS NOT NULL;
CREATE INDEX ix_flowactions_destinations_updated ON flowactions_destinations (updated_at);
CREATE TABLE flowactions_statistics (
    bucket BIGINT NOT NULL, organization_id TEXT NOT NULL, destination TEXT NOT NULL,
    delivered INTEGER NOT NULL, failed INTEGER NOT NULL, dead INTEGER NOT NULL, duration_ms BIGINT NOT NULL,
    CONSTRAINT pk_flowactions_statistics PRIMARY KEY (bucket, organization_id, destination)
);
CREATE INDEX ix_flowactions_statistics_organization ON flowactions_statistics (organization_id, bucket);
CREATE TABLE flowactions_actions (
    id VARCHAR(36) NOT NULL, kind VARCHAR(16) NOT NULL, organization_id TEXT NOT NULL, filter TEXT NOT NULL,
    as_of BIGINT NOT NULL, counted BIGINT NOT NULL, actor_id TEXT NOT NULL, actor_name TEXT NOT NULL,
    actor_role VARCHAR(16) NOT NULL, reason TEXT NOT NULL, reset_attempts INTEGER NOT NULL, rate FLOAT,
    state VARCHAR(16) NOT NULL, state_reason TEXT, created_at BIGINT NOT NULL, finished_at BIGINT,
    position VARCHAR(36), done BIGINT NOT NULL, claimed TEXT, sent BIGINT DEFAULT '0' NOT NULL,
    withdrawn_at BIGINT, paced_from BIGINT, paced_done BIGINT NOT NULL, held_by VARCHAR(32),
    held_until BIGINT,
    CONSTRAINT pk_flowactions_actions PRIMARY KEY (id)
);
CREATE INDEX ix_flowactions_actions_open ON flowactions_actions (id) WHERE finished_at IS NULL;
CREATE INDEX ix_flowactions_actions_organization ON flowactions_actions (organization_id, id);
CREATE TABLE flowactions_audit (
    id VARCHAR(36) NOT NULL, at BIGINT NOT NULL, organization_id TEXT NOT NULL, actor_id TEXT NOT NULL,
    actor_name TEXT NOT NULL, actor_role VARCHAR(16) NOT NULL, action VARCHAR(32) NOT NULL,
    delivery_id VARCHAR(36), action_id VARCHAR(36), destination TEXT, filter TEXT, reason TEXT NOT NULL,
    number BIGINT, before TEXT,
    CONSTRAINT pk_flowactions_audit PRIMARY KEY (id)
);
CREATE INDEX ix_flowactions_audit_action ON flowactions_audit (action_id, id) WHERE action_id IS NOT NULL;
CREATE INDEX ix_flowactions_audit_delivery ON flowactions_audit (delivery_id, id)
    WHERE delivery_id IS NOT NULL;
CREATE INDEX ix_flowactions_audit_organization ON flowactions_audit (organization_id, id)
"""


def upgrade() -> None:
    """Create the tables."""
    connection = op.get_bind()
    for statement in TABLES.format(**DIFFERENCES[connection.dialect.name]).split(";"):
        op.execute(statement)
    if connection.dialect.name == "postgresql":
        op.execute("CREATE SEQUENCE flowactions_outbox_position OWNED BY flowactions_outbox.position")
    made = text("INSERT INTO flowactions_installation (id, outages) VALUES (:id, 0)")
    connection.execute(made, {"id": str(uuid4())})
