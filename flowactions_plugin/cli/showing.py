"""One delivery, as `outbox show` prints it."""

from __future__ import annotations

from flowactions_plugin.cli.moments import moment, short
from flowactions_plugin.cli.output import block, line, table
from flowactions_plugin.operate.results import DeliveryFacts, Found


def show_delivery(found: Found) -> None:
    """Print a delivery; every text of it is escaped."""
    row = found.row
    line(found.why)
    line()
    facts = {
        "id": row.id,
        "status": f"{row.status}, {row.attempts} of {row.max_attempts} attempts",
        "organization": row.organization_id,
        "agent": row.agent_id,
        "flow": row.flow_id,
        "node": row.node_id,
        "origin": "a test of a draft, sent unsigned" if row.is_unsigned_test else None,
        "event": f"{row.event_type}  {row.event_id}",
        "key": row.idempotency_key,
        "enqueued": short(row.created_at),
        "due": moment(row.due_at),
        "ended": short(row.finished_at),
        "claimed": f"{moment(row.claimed_at)} until {moment(row.claimed_until)}" if row.claimed_until else None,
        "reclaimed": reclaimed(row),
        "last error": row.last_error,
        "trace": row.trace,
        "defect": row.defect if isinstance(row.defect, str) else None,
    }
    for name, value in facts.items():
        if value:
            line(f"{name:13} {value}")
    line()
    line(f"{row.method} {row.url}")
    for header in row.headers:
        line(f"    {header.key}: {header.value}")
    if row.body is not None:
        line()
        block(row.body)
    _show_attempts(found)
    _show_changes(found)


def reclaimed(row: DeliveryFacts) -> str | None:
    """Return how often workers have ended that held a delivery; ``None``: none has."""
    if not row.reclaims:
        return None
    times = "once" if row.reclaims == 1 else f"{row.reclaims} times"
    return f"{times}: workers ended, or stood still, while they held it"


def _show_attempts(found: Found) -> None:
    if not found.attempts:
        return
    line()
    table(
        ("attempt>", "began", "took>", "the receiver", "answer"),
        (
            (
                attempt.number,
                short(attempt.started_at),
                f"{attempt.duration_ms} ms",
                attempt.certainty,
                attempt.error or attempt.status_code,
            )
            for attempt in found.attempts
        ),
    )
    for attempt in found.attempts:
        if attempt.note:
            line(f"note of attempt {attempt.number}: {attempt.note}")
    last = found.attempts[-1]
    if last.phases:
        taken = ", ".join(f"{name} {milliseconds} ms" for name, milliseconds in last.phases.items())
        line(f"phases of attempt {last.number}: {taken}")
    if last.response:
        line()
        line(f"answer of attempt {last.number}, its first bytes:")
        block(last.response)


def _show_changes(found: Found) -> None:
    if found.pause is not None:
        line()
        who = found.pause.organization_id or "all organizations"
        line(
            f"paused for {who} since {moment(found.pause.paused_at)} by {found.pause.paused_by}: {found.pause.reason or '-'}"
        )
    if found.action is not None:
        line()
        line(
            f"last changed by {found.action.kind} {found.action.id} ({found.action.state}) of {found.action.actor_name}"
        )
    if found.audit:
        line()
        table(
            ("when", "who", "did", "why"),
            ((moment(each.at), each.actor_name, each.action, each.reason) for each in found.audit),
        )
