"""``flowactions outbox``: deliveries, as an operator sees them; and ``status``: how they stand."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from flowactions_plugin.cli.bulk import actions, cancel, delete, resend, retry, stop
from flowactions_plugin.cli.destinations import NO_ORGANIZATION, columns
from flowactions_plugin.cli.frame import DONE, FAILED, SETTINGS, command
from flowactions_plugin.cli.options import (
    WORDS,
    filter_of,
    filter_options,
    limit_option,
    organization_option,
    say_times,
)
from flowactions_plugin.cli.output import Row, block, duration, line, moment, short, status, table, write_json
from flowactions_plugin.log_text import plural

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from flowactions_plugin.cli.context import CommandContext
    from flowactions_plugin.insights.results import Attempt, Bucket, Delivery, FailingOrigin, Found


@click.group("outbox", context_settings=SETTINGS, no_args_is_help=False)
def outbox() -> None:
    """List, show, retry, resend, cancel and delete deliveries.

    Without --organization, the deliveries of all organizations.
    """


@command("list", document="insights.results:Page", opens=True)
@filter_options(without={"id"})
@limit_option
@click.option(
    "--cursor",
    type=WORDS,
    metavar="TEXT",
    help="Continue after a page; the last line of each page names its cursor.",
)
async def list_deliveries(
    context: CommandContext, limit: int, cursor: str | None, as_json: bool, **given: str | None
) -> int:
    """List deliveries, newest first."""
    from msgspec.structs import replace

    from flowactions_plugin.operators.scope import Scope

    wanted = filter_of(given)
    rows: list[Delivery] = []
    while True:
        page = await context.insights.deliveries(Scope(), wanted, cursor, limit - len(rows))
        rows += page.rows
        cursor = page.next_cursor
        if cursor is None or len(rows) == limit:
            break
    page = replace(page, rows=rows)
    if as_json:
        write_json(page)
        return DONE
    say_times(wanted)
    if page.rows:
        table(
            page.rows,
            {
                "id": lambda row: row.id,
                "status": lambda row: row.status if row.resent_from is None else f"{row.status}, resent",
                "tries>": lambda row: f"{row.attempts}/{row.max_attempts}",
                "organization": lambda row: row.organization_id or NO_ORGANIZATION,
                "destination": lambda row: row.destination,
                "type": lambda row: row.event_type,
                "enqueued": lambda row: short(row.created_at),
                "last error": lambda row: row.last_error,
            },
        )
    else:
        status("no delivery meets the filter")
    if page.looked_back_to is not None:
        status(f"searched back to {moment(page.looked_back_to)}; no index serves this filter")
    if page.next_cursor is not None:
        status(f"more: --cursor {page.next_cursor}")
    return DONE


@command(
    "show",
    document="insights.results:Found",
    exits={FAILED: "no delivery has this id; or it failed"},
    opens=True,
)
@click.argument("delivery_id", metavar="ID")
async def show(context: CommandContext, delivery_id: str, as_json: bool) -> int:
    """Show one delivery: why it is not sent yet, its request, its attempts, and the changes that people made to it."""
    from flowactions_plugin.operators.scope import Scope

    found = await context.insights.delivery(Scope(), delivery_id.lower())
    if found is None:
        status("flowactions: no delivery has this id; 'outbox list --event-id' searches by event")
        return FAILED
    if as_json:
        write_json(found)
    else:
        show_delivery(found)
    return DONE


@command(
    "status",
    document="insights.results:Overview",
    exits={FAILED: "no worker is alive; or it failed"},
    opens=True,
)
@organization_option("Of this organization.")
async def show_status(context: CommandContext, organization: str | None, as_json: bool) -> int:
    """Show how deliveries stand: what is due, rates, workers, findings, and what fails most.

    Workers are the processes that deliver: 'flowactions worker', and hosts that deliver themselves.
    """
    from flowactions_plugin.insights.verdict import clock_offset
    from flowactions_plugin.operators.scope import Scope

    overview = await context.insights.overview(Scope(organization))
    alive = [worker for worker in overview.workers if worker.state == "alive"]
    if as_json:
        write_json(overview)
        return DONE if alive else FAILED
    line(f"{'verdict':12} {overview.verdict.state}: {overview.verdict.reason}")
    line(f"{'due':12} {overview.due}, the oldest for {duration(overview.oldest_due_ms / 1000)}")
    line(f"{'waiting':12} {overview.waiting}")
    line(f"{'dead':12} {overview.dead}")
    line(f"{'workers':12} {len(alive)} alive, {sum(worker.in_flight for worker in alive)} in flight")
    line(f"{'last hour':12} {_totals(overview.hour)}")
    line(f"{'last day':12} {_totals(overview.day)}")
    for each in overview.findings:
        if each.about != "deliveries":
            line(f"{each.about:12} {each.words}")
            if each.advice:
                line(f"{'':12} -> {each.advice}")
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
    _titled(overview.worst, columns("most failures, last hour"))
    _titled(overview.slowest, columns("most time, last hour"))
    failures = overview.failures

    def failing(title: str, name: Callable[[FailingOrigin], object]) -> dict[str, Callable[[Any], object]]:
        return {
            f"{title} by failures, last hour": name,
            "organization": lambda each: each.organization_id or NO_ORGANIZATION,
            "dead>": lambda each: f"{each.dead:,}",
            "retrying>": lambda each: f"{each.retrying:,}",
            "share>": lambda each: f"{each.failed / failures.failed:.1%}",
        }

    def flow(each: FailingOrigin) -> str:
        return each.flow_id or "(no flow)"

    _titled(failures.flows, failing("flows", flow))
    _titled(failures.nodes, {**failing("nodes", lambda each: each.node_id), "flow": flow})
    if failures.flows and not failures.exact:
        status(
            "flows and nodes: counted among the latest thousand dead deliveries, and as many that are tried again"
        )
    return DONE if alive else FAILED


def _titled(rows: Sequence[Row], columns: Mapping[str, Callable[[Row], object]]) -> None:
    """Print a table behind an empty line, if it has rows."""
    if rows:
        line()
        table(rows, columns)


def _totals(buckets: Sequence[Bucket]) -> str:
    delivered, failed, dead = (
        sum(getattr(each, name) for each in buckets) for name in ("delivered", "failed", "dead")
    )
    share = f" ({failed / (delivered + failed):.1%} of attempts)" if delivered + failed else ""
    return f"{delivered:,} delivered, {plural(failed, 'attempt')} failed{share}, {dead:,} ended dead"


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
        "enqueued": short(row.created_at),
        "due": short(row.next_attempt_at),
        "ended": short(row.finished_at),
        "claimed": f"since {short(row.claimed_at)}, until {short(row.claimed_until)}"
        if row.claimed_until
        else None,
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
    _show_changes(found)


def _show_attempts(attempts: Sequence[Attempt]) -> None:
    _titled(
        attempts,
        {
            "attempt>": lambda each: each.number,
            "began": lambda each: short(each.started_at),
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


def _show_changes(found: Found) -> None:
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


for each in (list_deliveries, show, retry, resend, cancel, delete, actions, stop):
    outbox.add_command(each)
