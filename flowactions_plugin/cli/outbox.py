"""``flowactions outbox``: deliveries, as an operator sees them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import click

from flowactions_plugin.cli.bulk import actions, cancel, delete, resend, retry, stop
from flowactions_plugin.cli.destinations import NO_ORGANIZATION, columns
from flowactions_plugin.cli.frame import DONE, FAILED, SETTINGS, TABLES_EXITS, command
from flowactions_plugin.cli.options import (
    WORDS,
    filter_of,
    filter_options,
    host_option,
    organization_option,
    say_times,
)
from flowactions_plugin.cli.output import block, duration, line, moment, short, status, table, write_json
from flowactions_plugin.log_text import plural

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from flowactions_plugin.insights.results import (
        Bucket,
        Delivery,
        DeliveryDetail,
        FailingOrigin,
        Failures,
        Found,
    )

MOST_ROWS = 1000
MOST_RESENT = 5
"""How many deliveries are named that were sent again from one."""

NO_FLOW: Final = "(no flow)"
"""Instead of a flow, where none has queued a delivery."""


@click.group("outbox", context_settings=SETTINGS, no_args_is_help=False)
def outbox() -> None:
    """List, show, retry, resend, cancel and delete deliveries.

    Without --organization, the deliveries of all organizations.
    """


@command("list", document="insights.results:Page", exits=TABLES_EXITS)
@host_option()
@filter_options()
@click.option(
    "--limit", type=click.IntRange(1, MOST_ROWS), default=50, show_default=True, help="The most that are shown."
)
@click.option(
    "--cursor",
    type=WORDS,
    metavar="TEXT",
    help="Continue after a page; the last line of each page names its cursor.",
)
async def list_deliveries(
    host: str | None, limit: int, cursor: str | None, as_json: bool, **given: str | None
) -> int:
    """List deliveries, newest first."""
    from msgspec.structs import replace

    from flowactions_plugin.cli.context import opened
    from flowactions_plugin.insights.port import Insights
    from flowactions_plugin.operators.scope import Scope

    wanted = filter_of(given)
    rows: list[Delivery] = []
    async with opened(host) as context:
        queries = Insights.of(context.database, context.settings)
        while True:
            page = await queries.deliveries(Scope(), wanted, cursor, limit - len(rows))
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
    exits={**TABLES_EXITS, FAILED: "no delivery has this id; or it failed"},
)
@click.argument("delivery_id", metavar="ID")
@host_option()
@click.option("--curl", is_flag=True, help="Write a curl command instead, with masked credentials.")
async def show(delivery_id: str, host: str | None, curl: bool, as_json: bool) -> int:
    """Show one delivery: why it is not sent yet, its request, its attempts, and the changes that people made to it."""
    from flowactions_plugin.cli.context import opened
    from flowactions_plugin.clock import is_id
    from flowactions_plugin.insights.curl import unsigned
    from flowactions_plugin.insights.port import Insights
    from flowactions_plugin.operators.scope import Scope

    if curl and as_json:
        raise click.UsageError("--curl writes a command, and no JSON: leave one of the two out.")
    found: Found | None = None
    if is_id(delivery_id.lower()):
        async with opened(host) as context:
            found = await Insights.of(context.database, context.settings).delivery(Scope(), delivery_id.lower())
    if found is None:
        status("flowactions: no delivery has this id; 'outbox list --event-id' searches by event")
        return FAILED
    if as_json:
        write_json(found)
    elif curl:
        line(unsigned(found.row.method, found.row.url, found.row.headers, found.row.body))
    else:
        show_delivery(found)
    return DONE


@command("stats", document="insights.results:Overview", exits=TABLES_EXITS)
@host_option()
@organization_option("Of this organization only.")
async def stats(host: str | None, organization: str | None, as_json: bool) -> int:
    """Show the overview: what is due, rates and failures, and the destinations, flows and nodes that fail most."""
    from flowactions_plugin.cli.context import opened
    from flowactions_plugin.insights.port import Insights
    from flowactions_plugin.operators.scope import Scope

    async with opened(host) as context:
        overview = await Insights.of(context.database, context.settings).overview(Scope(organization))
    if as_json:
        write_json(overview)
        return DONE
    alive = [worker for worker in overview.workers if worker.state == "alive"]
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
    for title, found in (("most failures", overview.worst), ("most time", overview.slowest)):
        if found:
            line()
            table(found, columns(f"{title}, last hour"))
    show_failures(overview.failures)
    return DONE


def show_failures(failures: Failures) -> None:
    """Print flows and nodes by failures; nothing where there are none."""

    def columns(
        title: str, name: Callable[[FailingOrigin], object]
    ) -> dict[str, Callable[[FailingOrigin], object]]:
        return {
            title: name,
            "organization": lambda each: each.organization_id or NO_ORGANIZATION,
            "dead>": lambda each: f"{each.dead:,}",
            "retrying>": lambda each: f"{each.retrying:,}",
            "share>": lambda each: f"{each.failed / failures.failed:.1%}",
        }

    if failures.flows:
        line()
        table(failures.flows, columns("flows by failures, last hour", lambda each: each.flow_id or NO_FLOW))
    if failures.nodes:
        line()
        nodes = columns("nodes by failures, last hour", lambda each: each.node_id)
        table(failures.nodes, {**nodes, "flow": lambda each: each.flow_id or NO_FLOW})
    if failures.flows and not failures.exact:
        status(
            "flows and nodes: counted among the latest thousand dead deliveries, and as many that are tried again"
        )


def _totals(buckets: Sequence[Bucket]) -> str:
    delivered, failed, dead = (
        sum(getattr(each, name) for each in buckets) for name in ("delivered", "failed", "dead")
    )
    share = f" ({failed / (delivered + failed):.1%} of attempts)" if delivered + failed else ""
    return f"{delivered:,} delivered, {plural(failed, 'attempt')} failed{share}, {dead:,} ended dead"


def show_delivery(found: Found) -> None:
    """Print a delivery; every text of it is escaped."""
    row = found.row
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
        "resent as": _resent_as(found),
        "key": row.idempotency_key,
        "enqueued": short(row.created_at),
        "due": short(row.next_attempt_at),
        "ended": short(row.finished_at),
        "claimed": f"since {short(row.claimed_at)}, until {short(row.claimed_until)}"
        if row.claimed_until
        else None,
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


def _resent_as(found: Found) -> str | None:
    """Return the last deliveries that were sent again from one, and how many others; ``None``: none was."""
    ids = [each.id for each in found.resent_as]
    more = f", and {len(ids) - MOST_RESENT:,} before" if len(ids) > MOST_RESENT else ""
    return ", ".join(ids[:MOST_RESENT]) + more if ids else None


def reclaimed(row: DeliveryDetail) -> str | None:
    """Return how often workers have ended that held a delivery; ``None``: none has."""
    if not row.reclaims:
        return None
    times = "once" if row.reclaims == 1 else f"{row.reclaims} times"
    return f"{times}: workers ended, or did not answer, while they had claimed it"


def _show_attempts(found: Found) -> None:
    if not found.row.attempt_log:
        return
    line()
    table(
        found.row.attempt_log,
        {
            "attempt>": lambda each: each.number,
            "began": lambda each: short(each.started_at),
            "took>": lambda each: f"{each.duration_ms} ms",
            "worker": lambda each: each.worker,
            "the receiver": lambda each: each.certainty,
            "answer": lambda each: each.error or each.status_code,
        },
    )
    for attempt in found.row.attempt_log:
        if attempt.note:
            line(f"note of attempt {attempt.number}: {attempt.note}")
        if attempt.remark:
            line(f"attempt {attempt.number} {attempt.remark}")
    last = found.row.attempt_log[-1]
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
            found.audit,
            {
                "when": lambda each: moment(each.at),
                "who": lambda each: each.actor_name,
                "did": lambda each: each.action,
                "why": lambda each: each.reason,
            },
        )


for each in (list_deliveries, show, stats, retry, resend, cancel, delete, actions, stop):
    outbox.add_command(each)
