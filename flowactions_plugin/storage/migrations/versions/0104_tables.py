"""All tables of `storage.schema`, and their indexes.

Until the first release, a change of the tables gives this revision the next number. For that release its statements are
written out, so that a later change of `storage.schema` does not change what it makes.

Revision ID: 0104
"""

from __future__ import annotations

from uuid import uuid4

from alembic import op

from flowactions_plugin.storage.schema import installation, metadata

revision = "0104"
down_revision = None
branch_labels = None
depends_on = None

# An index of some rows costs nothing when others change. Its condition is one that statements have, from `storage.schema`.
# Which index of the outbox serves which search is in decision 33. That of events compares bytes on PostgreSQL: by a language's
# rules, or with the row's id beside, it would cost a delivery more. Of indexes that are as good as each other, SQLite takes
# the newest.
INDEXES = """
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
CREATE INDEX ix_flowactions_outbox_key ON flowactions_outbox (idempotency_key, id)
    WHERE idempotency_key IS NOT NULL;
CREATE INDEX ix_flowactions_outbox_event ON flowactions_outbox (event_id{by_bytes});
CREATE INDEX ix_flowactions_deferred_created ON flowactions_deferred (created_at);
CREATE INDEX ix_flowactions_deferred_held ON flowactions_deferred (node_type, held_until)
    WHERE held_until IS NOT NULL;
CREATE INDEX ix_flowactions_halted_runs_halted ON flowactions_halted_runs (halted_at);
CREATE INDEX ix_flowactions_chat_connections_team ON flowactions_chat_connections (team_id);
CREATE INDEX ix_flowactions_chat_connections_ask ON flowactions_chat_connections (ask_at)
    WHERE ask_at IS NOT NULL;
CREATE INDEX ix_flowactions_inbound_events_received ON flowactions_inbound_events (received_at);
CREATE INDEX ix_flowactions_inbound_requests_last ON flowactions_inbound_requests (last_at);
CREATE INDEX ix_flowactions_enqueue_keys_created ON flowactions_enqueue_keys (created_at);
CREATE INDEX ix_flowactions_enqueue_rates_updated ON flowactions_enqueue_rates (updated_at);
CREATE INDEX ix_flowactions_destinations_failing ON flowactions_destinations (failing_since)
    WHERE failing_since IS NOT NULL;
CREATE INDEX ix_flowactions_destinations_updated ON flowactions_destinations (updated_at);
CREATE INDEX ix_flowactions_statistics_organization ON flowactions_statistics (organization_id, bucket);
CREATE INDEX ix_flowactions_actions_open ON flowactions_actions (starts_at) WHERE finished_at IS NULL;
CREATE INDEX ix_flowactions_actions_organization ON flowactions_actions (organization_id, id);
CREATE INDEX ix_flowactions_audit_action ON flowactions_audit (action_id, id) WHERE action_id IS NOT NULL;
CREATE INDEX ix_flowactions_audit_delivery ON flowactions_audit (delivery_id, id)
    WHERE delivery_id IS NOT NULL;
CREATE INDEX ix_flowactions_audit_organization ON flowactions_audit (organization_id, id)
"""


def upgrade() -> None:
    """Create the tables."""
    connection = op.get_bind()
    metadata.create_all(connection, checkfirst=False)
    by_bytes = " varchar_pattern_ops" if connection.dialect.name == "postgresql" else ""
    for statement in INDEXES.format(by_bytes=by_bytes).split(";"):
        op.execute(statement)
    connection.execute(installation.insert().values(id=str(uuid4()), outages=0))
