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

# An entry of an index of PostgreSQL's holds about 2700 bytes, the row's reference and the columns' lengths included.
INDEX_BYTES = 2600

# How long before a counted call its key may have been written: calls of one agent wait for each other.
COUNTED_MS = 120_000


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
    for name, default in (("flow_id", ""), ("visit", "1"), ("node_type", "")):
        column = sa.Column(name, sa.Text(), server_default=default, nullable=False)
        op.add_column("flowactions_deferred", column)
    _fill_deferred()
    with op.batch_alter_table("flowactions_deferred") as batch:
        batch.drop_constraint("uq_flowactions_deferred_node", type_="unique")
        batch.create_unique_constraint(
            "uq_flowactions_deferred_node",
            ["organization_id", "run_id", "flow_id", "step_id", "node_id", "visit"],
        )
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


def _fill_deferred() -> None:
    """Write flow and type of each record, which stood in its walk and its node only.

    They stay empty where they cannot be read, or the flow's id is none that a walk may have: no call can ask for such
    a record any more, as before for one that was spoilt.
    """
    read = ("organization_id", "run_id", "step_id", "node_id", "walk", "node")
    names = ("id", *read, "flow_id", "node_type")
    table = sa.table("flowactions_deferred", *(sa.column(name) for name in names))
    deferred = table.c
    connection = op.get_bind()
    texts: list[sa.ColumnElement[Any]] = [deferred[name] for name in read]
    if connection.dialect.name == "sqlite":
        # Its texts need not be UTF-8, and the driver raises at the first one that is not.
        texts = [sa.cast(deferred[name], sa.LargeBinary()).label(name) for name in read]
    page = sa.select(deferred.id, *texts).order_by(deferred.id).limit(PAGE)
    filled = (
        sa.update(table)
        .where(deferred.id == sa.bindparam("row", type_=sa.BigInteger()))
        .values(flow_id=sa.bindparam("flow", type_=sa.Text()), node_type=sa.bindparam("type", type_=sa.Text()))
    )
    after = 0
    while rows := connection.execute(
        page.where(deferred.id > sa.bindparam("after", after, sa.BigInteger()))
    ).all():
        connection.execute(filled, [_read(row) for row in rows])
        after = rows[-1].id


def _read(row: Any) -> dict[str, Any]:
    flow, kind = _field(row.walk, "flow_id"), _field(row.node, "type")
    key = sum(len(_bytes(text)) for text in (row.organization_id, row.run_id, row.step_id, row.node_id, flow))
    return {"row": row.id, "flow": flow if key <= INDEX_BYTES else "", "type": kind}


def _bytes(text: str | bytes) -> bytes:
    return text if isinstance(text, bytes) else text.encode()


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
        sa.Column("event_id", sa.String(length=68), nullable=True),
        sa.PrimaryKeyConstraint(
            "organization_id", "caller", "idempotency_key", name=op.f("pk_flowactions_enqueue_keys")
        ),
    )
    op.create_index(
        "ix_flowactions_enqueue_keys_created", "flowactions_enqueue_keys", ["created_at"], unique=False
    )
    # Who used a key stands in its delivery. Where that is gone the organization stays empty, and the key goes on
    # counting for whoever calls for an agent of that id, as it did before.
    op.execute(
        """INSERT INTO flowactions_enqueue_keys
            (organization_id, caller, idempotency_key, delivery_id, created_at, event_id)
        SELECT COALESCE(delivery.organization_id, ''), 'api:' || used.agent_id, used.idempotency_key,
            used.delivery_id, used.created_at, delivery.event_id
        FROM flowactions_idempotency_keys AS used
        LEFT JOIN flowactions_outbox AS delivery ON delivery.id = used.delivery_id"""
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
    # Whoever was counted in the last minute has just used a key. Organizations whose agents have the same id were
    # counted together; for the rest of that minute, each goes on with what they had made together.
    op.execute(
        f"""INSERT INTO flowactions_enqueue_rates (organization_id, agent_id, times, updated_at)
        SELECT DISTINCT used.organization_id, counted.agent_id, counted.times, counted.updated_at
        FROM flowactions_call_rates AS counted
        JOIN flowactions_enqueue_keys AS used
            ON used.caller = 'api:' || counted.agent_id AND used.created_at > counted.updated_at - {COUNTED_MS}
        WHERE used.organization_id <> ''"""  # noqa: S608  constants only
    )
    op.drop_table("flowactions_call_rates")


def _field(text: str | bytes, name: str) -> str:
    try:
        value: Any = json.loads(_bytes(text).decode())[name]
        # As every id: not without end, and nothing that one of the databases cannot hold.
        usable = isinstance(value, str) and "\0" not in value and value.encode() != b""
    except (ValueError, TypeError, KeyError, RecursionError):
        return ""
    return value if usable else ""
