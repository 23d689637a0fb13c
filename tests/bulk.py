"""Outboxes with a history: many rows that ended, and a few that live."""

from __future__ import annotations

import json
from typing import Any

from sqlalchemy import text

from flowactions_plugin.queue.lanes import lane_of
from flowactions_plugin.storage.database import Database

SERIES = {
    "sqlite": (
        "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < {rows})",
        "printf('%08x-0000-7000-8000-%012x', i, i)",
        "n",
    ),
    "postgresql": (
        "",
        "lpad(to_hex(i), 8, '0') || '-0000-7000-8000-' || lpad(to_hex(i), 12, '0')",
        "generate_series(1, {rows}) AS n(i)",
    ),
}


WALK = json.dumps(
    dict.fromkeys(("organization_id", "agent_id", "flow_id", "run_id", "user_id", "content"), "x")
)
NODE = json.dumps({"id": "n", "type": "webhook", "config": {}})


async def fill(
    database: Database, rows: int, live: int, *, spread: bool = True, lanes: int = 1, analyzed: bool = True
) -> None:
    """Write ``rows`` rows of organization ``acme``, of which ``live`` are due, and one in a hundred dead.

    Those that are due are spread evenly among the others, or the newest, as in most queues.

    One finished row in ten has an attempt, and there are a tenth as many nodes that wait for their step. They are in so many lanes,
    of as many destinations. The planner's statistics are up to date, or there are none.
    """
    series, row_id, source = SERIES[database.dialect]
    due = f"i % {rows // live} = 0" if spread else f"i > {rows - live}"
    lane = lane_of("acme", "https://example.com:443", "https://example.com/hook")
    state = f"CASE WHEN {due} THEN '{{}}' WHEN i % 100 = 1 THEN '{{}}' ELSE '{{}}' END"
    statement = f"""
        INSERT INTO flowactions_outbox (id, organization_id, agent_id, origin, event_id, event_type, url, destination, lane,
            method, headers, body, status, attempts, earlier_attempts, max_attempts, next_attempt_at, takeovers,
            created_at, updated_at, finished_at)
        {series.format(rows=rows)}
        SELECT {row_id}, 'acme', 'agent-' || (i % 100), '{{}}', 'evt_' || i, 't', 'https://example.com/hook',
            'https://example.com:' || (443 + i % {lanes}), {lane} + i % {lanes}, 'POST', '[]', NULL, {state.format("pending", "dead", "delivered")},
            1, 0, 5, 1000000 + i, 0, 1000000 + i, 1000000 + i,
            CASE WHEN {due} THEN NULL ELSE 1000000 + i END
        FROM {source.format(rows=rows)}"""  # noqa: S608  numbers only
    log = """
        INSERT INTO flowactions_attempts (delivery_id, number, started_at, duration_ms, status_code)
        SELECT id, 1, created_at, 5, 200 FROM flowactions_outbox
        WHERE finished_at IS NOT NULL AND finished_at % 10 = 1"""
    waiting = f"""
        INSERT INTO flowactions_deferred (organization_id, run_id, flow_id, step_id, node_id, node_type, walk, node,
            created_at, holds, held_until)
        {series.format(rows=rows // 10)}
        SELECT 'acme', 'run-' || i, 'f', '', 'n', CASE WHEN i % 5 = 0 THEN 'fax' ELSE 'webhook' END, '{WALK}', '{NODE}',
            1000000 + i, 0, CASE WHEN i % 10000 = 1 OR i % 5 = 0 THEN 1 ELSE NULL END
        FROM {source.format(rows=rows // 10)}"""  # noqa: S608
    halted = f"""
        INSERT INTO flowactions_halted_runs (organization_id, run_id, flow_id, halted_at)
        {series.format(rows=rows // 10)}
        SELECT 'acme', 'halted-' || i, 'f', 1000000 + i FROM {source.format(rows=rows // 10)}"""  # noqa: S608
    events = f"""
        INSERT INTO flowactions_inbound_events (provider, event_id, received_at)
        {series.format(rows=rows // 10)}
        SELECT 'chat', 'e-' || i, 1000000 + i FROM {source.format(rows=rows // 10)}"""  # noqa: S608
    async with database.write() as connection:
        for each in (statement, log, waiting, halted, events):
            await connection.execute(text(each))
    if analyzed:
        async with database.write() as connection:
            await connection.execute(text("ANALYZE"))


async def copy(database: Database, row_id: str, times: int, *, already: int = 0) -> None:
    """Write so many more rows like this one, all of them due and older than it, besides those that were ``already``."""
    series, new_id, source = SERIES[database.dialect]
    columns = (
        "organization_id, agent_id, origin, event_id, event_type, url, destination, lane, method, headers, body, status,"
        " attempts, earlier_attempts, max_attempts, takeovers, created_at, updated_at"
    )
    statement = f"""
        INSERT INTO flowactions_outbox (id, next_attempt_at, {columns})
        {series.format(rows=times)}
        SELECT {new_id}, i, {columns}
        FROM (SELECT i + {already} AS i FROM {source.format(rows=times)}) AS numbered, flowactions_outbox
        WHERE flowactions_outbox.id = :row_id"""  # noqa: S608  names and numbers only
    async with database.write() as connection:
        await connection.execute(text(statement), {"row_id": row_id})
    async with database.write() as connection:
        await connection.execute(text("ANALYZE"))


def failing(number: int, at: int) -> dict[str, Any]:
    """Write how a destination of an organization of its own fails."""
    place = {"organization_id": f"o{number:05}", "destination": f"https://d{number}.example:443"}
    return {**place, "last_failure_at": at, "failing_since": 1, "failures_in_row": 9, "updated_at": at}
