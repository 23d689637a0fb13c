"""Events, keys and records told apart in full; rows that a crash left behind; what a chat install was.

All processes of the release before stop for it: it does not know the tables that it brings.

Revision ID: 0002
Revises: 0001
"""

from __future__ import annotations

import json
from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None

PAGE = 500

QUARANTINED = "status IN ('pending', 'retrying') AND takeovers >= 5"

# An agent's id is unique in its host, so any of its deliveries names its organization.
ORGANIZATION = """COALESCE(
    (SELECT organization_id FROM flowactions_outbox WHERE flowactions_outbox.id = old.delivery_id),
    (SELECT MIN(organization_id) FROM flowactions_outbox WHERE flowactions_outbox.agent_id = old.agent_id)
)"""


def upgrade() -> None:
    """Change every table that is concerned, and carry its rows on."""
    _outbox()
    _deferred()
    _chat()
    _keys()
    _rates()


def _outbox() -> None:
    op.add_column(
        "flowactions_outbox", sa.Column("quarantine_rounds", sa.Integer(), server_default="0", nullable=False)
    )
    op.add_column("flowactions_outbox", sa.Column("settled_token", sa.String(length=32), nullable=True))
    op.add_column("flowactions_outbox", sa.Column("waiting_since", sa.BigInteger(), nullable=True))
    op.create_index(
        "ix_flowactions_outbox_quarantined",
        "flowactions_outbox",
        ["next_attempt_at", "id"],
        unique=False,
        sqlite_where=sa.text(QUARANTINED),
        postgresql_where=sa.text(QUARANTINED),
    )


def _deferred() -> None:
    with op.batch_alter_table("flowactions_deferred") as batch:
        batch.add_column(sa.Column("flow_id", sa.Text(), server_default="", nullable=False))
        batch.add_column(sa.Column("visit", sa.Text(), server_default="1", nullable=False))
        batch.add_column(sa.Column("node_type", sa.Text(), server_default="", nullable=False))
        batch.drop_constraint("uq_flowactions_deferred_node", type_="unique")
        batch.create_unique_constraint(
            "uq_flowactions_deferred_node",
            ["organization_id", "run_id", "flow_id", "step_id", "node_id", "visit"],
        )
    deferred = sa.table(
        "flowactions_deferred",
        *(sa.column(name) for name in ("id", "walk", "node", "flow_id", "node_type")),
    )
    filled = (
        sa.update(deferred)
        .where(deferred.c.id == sa.bindparam("row"))
        .values(flow_id=sa.bindparam("flow"), node_type=sa.bindparam("type"))
    )
    connection = op.get_bind()
    after = 0
    page = sa.select(deferred.c.id, deferred.c.walk, deferred.c.node).order_by(deferred.c.id).limit(PAGE)
    while rows := connection.execute(page.where(deferred.c.id > after)).all():
        connection.execute(
            filled,
            [
                {"row": row.id, "flow": _field(row.walk, "flow_id"), "type": _field(row.node, "type")}
                for row in rows
            ],
        )
        after = rows[-1].id
    op.drop_index("ix_flowactions_deferred_held", "flowactions_deferred")
    op.create_index(
        "ix_flowactions_deferred_held",
        "flowactions_deferred",
        ["node_type", "held_until"],
        unique=False,
        sqlite_where=sa.text("held_until IS NOT NULL"),
        postgresql_where=sa.text("held_until IS NOT NULL"),
    )
    op.create_table(
        "flowactions_halted_runs",
        sa.Column("organization_id", sa.Text(), nullable=False),
        sa.Column("run_id", sa.Text(), nullable=False),
        sa.Column("flow_id", sa.Text(), nullable=False),
        sa.Column("halted_at", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint(
            "organization_id", "run_id", "flow_id", name=op.f("pk_flowactions_halted_runs")
        ),
    )
    op.create_index("ix_flowactions_halted_runs_halted", "flowactions_halted_runs", ["halted_at"], unique=False)


def _chat() -> None:
    for name, length in (("install_id", 36), ("missing_scopes", None)):
        kind = sa.Text() if length is None else sa.String(length=length)
        op.add_column("flowactions_chat_connections", sa.Column(name, kind, server_default="", nullable=False))
    # Installs that are under way begin anew: what they carry is in their browser only.
    op.execute("DELETE FROM flowactions_oauth_states")
    for name in ("organization_id", "user_id", "user_name"):
        op.add_column("flowactions_oauth_states", sa.Column(name, sa.Text(), server_default="", nullable=False))
    op.add_column(
        "flowactions_oauth_states",
        sa.Column("browser", sa.String(length=64), server_default="", nullable=False),
    )


def _keys() -> None:
    op.create_table(
        "flowactions_enqueue_keys",
        sa.Column("organization_id", sa.Text(), nullable=False),
        sa.Column("caller", sa.Text(), nullable=False),
        sa.Column("idempotency_key", sa.String(length=200), nullable=False),
        sa.Column("delivery_id", sa.String(length=36), nullable=False),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint(
            "organization_id", "caller", "idempotency_key", name=op.f("pk_flowactions_enqueue_keys")
        ),
    )
    op.create_index(
        "ix_flowactions_enqueue_keys_created", "flowactions_enqueue_keys", ["created_at"], unique=False
    )
    op.execute(
        f"""INSERT INTO flowactions_enqueue_keys
            (organization_id, caller, idempotency_key, delivery_id, created_at)
        SELECT found.organization_id, 'api:' || found.agent_id, found.idempotency_key, found.delivery_id,
            found.created_at
        FROM (SELECT old.*, {ORGANIZATION} AS organization_id FROM flowactions_idempotency_keys AS old) AS found
        WHERE found.organization_id IS NOT NULL"""  # noqa: S608  constants only
    )
    op.drop_table("flowactions_idempotency_keys")


def _rates() -> None:
    op.create_table(
        "flowactions_enqueue_rates",
        sa.Column("organization_id", sa.Text(), nullable=False),
        sa.Column("agent_id", sa.Text(), nullable=False),
        sa.Column("times", sa.Text(), nullable=False),
        sa.Column("updated_at", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("organization_id", "agent_id", name=op.f("pk_flowactions_enqueue_rates")),
    )
    op.create_index(
        "ix_flowactions_enqueue_rates_updated", "flowactions_enqueue_rates", ["updated_at"], unique=False
    )
    # Whoever was counted in the last minute has just enqueued something under a key.
    op.execute(
        """INSERT INTO flowactions_enqueue_rates (organization_id, agent_id, times, updated_at)
        SELECT found.organization_id, found.agent_id, found.times, found.updated_at
        FROM (
            SELECT old.*, owner.organization_id
            FROM flowactions_call_rates AS old
            JOIN (
                SELECT caller, MIN(organization_id) AS organization_id FROM flowactions_enqueue_keys GROUP BY caller
            ) AS owner ON owner.caller = 'api:' || old.agent_id
        ) AS found"""
    )
    op.drop_table("flowactions_call_rates")


def _field(text: str, name: str) -> str:
    try:
        value: Any = json.loads(text)[name]
    except (ValueError, TypeError, KeyError, RecursionError):
        return ""
    return value if isinstance(value, str) else ""
