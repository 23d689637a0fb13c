"""Deliveries, as an operator sees them: ``outbox list`` and ``show``, and ``status``: how they stand."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from msgspec.structs import replace

from flowactions_plugin.cli.context import CommandContext
from flowactions_plugin.cli.destinations import NO_ORGANIZATION, columns
from flowactions_plugin.cli.frame import DONE, FAILED
from flowactions_plugin.cli.options import filter_of
from flowactions_plugin.cli.output import block, hint, line, status, table
from flowactions_plugin.clock import moment
from flowactions_plugin.insights.facts import clock_offset, summed
from flowactions_plugin.insights.findings import advice_of
from flowactions_plugin.insights.results import Attempt, Bucket, Delivery, Found, Overview, Page
from flowactions_plugin.log_text import plural, span
from flowactions_plugin.operators.scope import Scope
from flowactions_plugin.storage.retention import DAY_MS


async def list_deliveries(
    context: CommandContext, limit: int, cursor: str | None, where: str | None
) -> tuple[Page, int]:
    """List deliveries; a page of a search that no index serves may be empty, so the next ones are asked for."""
    wanted = filter_of(where)
    rows: list[Delivery] = []
    while True:
        page = await context.insights.deliveries(Scope(), wanted, cursor, limit - len(rows))
        rows += page.rows
        cursor = page.next_cursor
        if cursor is None or len(rows) == limit:
            break
    table(
        rows,
        {
            "id": lambda row: row.id,
            "status": lambda row: row.status if row.resent_from is None else f"{row.status}, resent",
            "tries>": lambda row: f"{row.attempts}/{row.max_attempts}",
            "organization": lambda row: row.organization_id or NO_ORGANIZATION,
            "destination": lambda row: row.destination,
            "type": lambda row: row.event_type,
            "enqueued": lambda row: moment(row.created_at),
            "last error": lambda row: row.last_error,
        },
    )
    if not rows:
        hint("no delivery meets the filter")
    if page.looked_back_to is not None:
        hint(f"searched back to {moment(page.looked_back_to)}; no index serves this filter")
    if cursor is not None:
        hint(f"more: --cursor {cursor}")
    return replace(page, rows=rows), DONE


async def show(context: CommandContext, delivery_id: str) -> int | tuple[Found, int]:
    """Show one delivery."""
    found = await context.insights.delivery(Scope(), delivery_id.lower())
    if found is None:
        status("flowactions: no delivery has this id; 'outbox list --where event:<id>' searches by event")
        return FAILED
    show_delivery(found)
    return found, DONE


def show_delivery(found: Found) -> None:
    """Print a delivery; every text of it is escaped."""
    row = found.row
    times = "once" if row.reclaims == 1 else f"{row.reclaims} times"
    line(found.why)
    line()
    facts = {
        "id": row.id,
        "status": f"{row.status}, {row.attempts} of {row.max_attempts} attempts",
        "organization": row.organization_id or NO_ORGANIZATION,
        "agent": row.agent_id,
        "flow": row.flow_id,
        "node": row.node_id,
        "origin": "a test of a draft, sent unsigned" if row.is_unsigned_test else None,
        "event": f"{row.event_type}  {row.event_id}",
        "resent from": row.resent_from,
        "resent as": ", ".join(each.id for each in found.resent_as),
        "key": row.idempotency_key,
        "enqueued": moment(row.created_at),
        "due": moment(row.next_attempt_at),
        "ended": moment(row.finished_at),
        "claimed": row.claimed_until and f"since {moment(row.claimed_at)}, until {moment(row.claimed_until)}",
        "reclaimed": row.reclaims and f"{times}: workers ended, or did not answer, while they had claimed it",
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
    _show_attempts(row.attempt_log)
    if found.pause is not None:
        line()
        who = found.pause.organization_id or "all organizations"
        why = found.pause.reason or "-"
        line(f"paused for {who} since {moment(found.pause.paused_at)} by {found.pause.paused_by}: {why}")
    if found.action is not None:
        line()
        action = found.action
        line(f"last changed by {action.kind} {action.id} ({action.state}) of {action.actor_name}")
    _titled(
        found.audit,
        {
            "when": lambda each: moment(each.at),
            "who": lambda each: each.actor_name,
            "did": lambda each: each.action,
            "why": lambda each: each.reason,
        },
    )


def _show_attempts(attempts: Sequence[Attempt]) -> None:
    _titled(
        attempts,
        {
            "attempt>": lambda each: each.number,
            "began": lambda each: moment(each.started_at),
            "took>": lambda each: f"{each.duration_ms} ms",
            "worker": lambda each: each.worker,
            "the receiver": lambda each: each.certainty,
            "answer": lambda each: each.error or each.status_code,
        },
    )
    for attempt in attempts:
        if attempt.note:
            line(f"note of attempt {attempt.number}: {attempt.note}")
        if attempt.remark:
            line(f"attempt {attempt.number} {attempt.remark}")
    for last in attempts[-1:]:
        if last.phases:
            taken = ", ".join(f"{name} {milliseconds} ms" for name, milliseconds in last.phases.items())
            line(f"phases of attempt {last.number}: {taken}")
        if last.response:
            line()
            line(f"answer of attempt {last.number}, its first bytes:")
            block(last.response)


async def show_status(context: CommandContext, organization: str | None) -> tuple[Overview, int]:
    """Show how deliveries stand."""
    overview = await context.insights.overview(Scope(organization))
    failures, first = overview.failures, overview.first
    alive = [worker for worker in overview.workers if worker.state == "alive"]
    oldest = f", the oldest for {span(overview.oldest_due_ms)}" if overview.oldest_due_ms else ""
    facts = {
        "verdict": f"{overview.state}: {overview.verdict.reason if first is None else first.words}",
        "due": f"{overview.due}{oldest}",
        "waiting": overview.waiting,
        "dead": overview.dead,
        "workers": f"{len(alive)} alive, {sum(worker.in_flight for worker in alive)} in flight",
        "last hour": _totals(overview.hour),
        "last day": _totals(overview.day),
    }
    for name, value in facts.items():
        line(f"{name:12} {value}")
    for each in overview.findings:
        line(f"{each.about:12} {each.words}")
        if advice := advice_of(each):
            line(f"{'':12} -> {advice}")
    _titled(
        overview.workers,
        {
            "worker": lambda each: each.name,
            "state": lambda each: "does not answer" if each.state == "stale" else each.state,
            "version": lambda each: each.version,
            "machine": lambda each: each.host_name,
            "pid>": lambda each: each.pid,
            "mode": lambda each: each.mode,
            "in flight>": lambda each: None if each.state == "stale" else each.in_flight,
            "slots>": lambda each: each.slots,
            "started": lambda each: moment(each.started_at),
            "seen": lambda each: moment(each.last_seen_at),
            "clock": lambda each: clock_offset(each.clock_ahead_ms),
            "claimed": lambda each: moment(each.last_claim_at),
        },
    )
    actions = await context.insights.actions(Scope(organization))
    since = int(context.database.clock() * 1000) - DAY_MS
    _titled(
        [each for each in actions if each.finished_at is None or each.finished_at >= since],
        {
            "bulk action": lambda each: each.id,
            "kind": lambda each: each.kind,
            "state": lambda each: each.state,
            "done>": lambda each: f"{each.done:,}",
            "of>": lambda each: f"{each.counted:,}",
            "organization": lambda each: each.organization_id or "all",
            "began": lambda each: moment(each.created_at),
            "by": lambda each: each.actor_name,
            "reason": lambda each: each.state_reason or each.reason,
        },
    )
    _titled(overview.failing, columns("failing destinations"))
    failed = failures.dead + failures.retrying
    _titled(
        failures.nodes,
        {
            "nodes by failures": lambda each: each.node_id,
            "flow": lambda each: each.flow_id,
            "organization": lambda each: each.organization_id or NO_ORGANIZATION,
            "dead>": lambda each: f"{each.dead:,}",
            "retrying>": lambda each: f"{each.retrying:,}",
            "share>": lambda each: f"{(each.dead + each.retrying) / failed:.1%}",
        },
    )
    if failures.nodes and not failures.exact:
        hint("nodes: counted among the latest thousand dead deliveries, and as many that are tried again")
    return overview, DONE if alive else FAILED


def _titled(rows: Sequence[Any], shown: dict[str, Callable[[Any], object]]) -> None:
    """Print a table behind an empty line, if it has rows."""
    if rows:
        line()
        table(rows, shown)


def _totals(buckets: Sequence[Bucket]) -> str:
    total = summed(buckets)
    attempts = total.delivered + total.failed
    share = f" ({total.failed / attempts:.1%} of attempts)" if attempts else ""
    return f"{total.delivered:,} delivered, {plural(total.failed, 'attempt')} failed{share}, {total.dead:,} ended dead"
