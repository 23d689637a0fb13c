"""``flowactions outbox``: deliveries, as an operator sees them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from flowactions_plugin.cli.bulk import actions, cancel, delete, replay, retry, stop, undo
from flowactions_plugin.cli.filtering import filter_of, filter_options
from flowactions_plugin.cli.frame import DONE, FAILED, SETTINGS, TABLES_EXITS, command
from flowactions_plugin.cli.options import WORDS, host_option, organization_option

if TYPE_CHECKING:
    from collections.abc import Sequence

    from flowactions_plugin.operate.health_results import Bucket, DestinationState
    from flowactions_plugin.operate.results import Found

MOST_ROWS = 1000


@click.group("outbox", context_settings=SETTINGS, no_args_is_help=False)
def outbox() -> None:
    """List, show, retry, replay, cancel and delete deliveries.

    Without --organization, those of all organizations.
    """


@command("list", document="results:Page", exits=TABLES_EXITS)
@host_option()
@filter_options()
@click.option(
    "--limit", type=click.IntRange(1, MOST_ROWS), default=50, show_default=True, help="How many at the most."
)
@click.option(
    "--cursor", type=WORDS, metavar="TEXT", help="Go on behind a page; the last line of a page names it."
)
async def list_deliveries(
    host: str | None, limit: int, cursor: str | None, as_json: bool, **given: str | None
) -> int:
    """List deliveries, newest first."""
    from flowactions_plugin.cli.moments import moment, short
    from flowactions_plugin.cli.output import status, table, write_json
    from flowactions_plugin.cli.places import opened
    from flowactions_plugin.operate.queries import OperatorQueries
    from flowactions_plugin.operate.scope import Scope

    wanted = filter_of(given)
    async with opened(host) as place:
        page = await OperatorQueries.of(place.database, place.settings).deliveries(
            Scope(), wanted, cursor, limit
        )
    if as_json:
        write_json(page)
        return DONE
    if page.rows:
        columns = ("id", "status", "tries>", "organization", "destination", "type", "enqueued", "last error")
        table(
            columns,
            (
                (
                    row.id,
                    row.status,
                    f"{row.attempts}/{row.max_attempts}",
                    row.organization_id,
                    row.destination,
                    row.event_type,
                    short(row.created_at),
                    row.last_error,
                )
                for row in page.rows
            ),
        )
    else:
        status("no delivery meets the filter")
    if page.looked_back_to is not None:
        status(f"searched back to {moment(page.looked_back_to)}; no index serves this filter")
    if page.next_cursor is not None:
        status(f"there are more: --cursor {page.next_cursor}")
    return DONE


@command(
    "show", document="results:Found", exits={**TABLES_EXITS, FAILED: "there is no such delivery; or it failed"}
)
@click.argument("delivery_id", metavar="ID")
@host_option()
@click.option("--curl", is_flag=True, help="Write it as a command of curl instead, credentials masked.")
async def show(delivery_id: str, host: str | None, curl: bool, as_json: bool) -> int:
    """Show one delivery: why it is not sent yet, what it sends, its attempts, and what people did to it."""
    from flowactions_plugin.cli.output import line, status, write_json
    from flowactions_plugin.cli.places import opened
    from flowactions_plugin.cli.showing import show_delivery
    from flowactions_plugin.clock import is_id
    from flowactions_plugin.operate.curl import unsigned
    from flowactions_plugin.operate.queries import OperatorQueries
    from flowactions_plugin.operate.scope import Scope

    found: Found | None = None
    if is_id(delivery_id.lower()):
        async with opened(host) as place:
            found = await OperatorQueries.of(place.database, place.settings).delivery(
                Scope(), delivery_id.lower()
            )
    if found is None:
        status("flowactions: there is no delivery with this id; 'outbox list --event-id' searches by event")
        return FAILED
    if as_json:
        write_json(found)
    elif curl:
        line(unsigned(found.row.method, found.row.url, found.row.headers, found.row.body))
    else:
        show_delivery(found)
    return DONE


@command("stats", document="results:Overview", exits=TABLES_EXITS)
@host_option()
@organization_option("Of this organization only.")
async def stats(host: str | None, organization: str | None, as_json: bool) -> int:
    """Show how deliveries stand: what is due, rates and failures, and the destinations that fail most or are slowest."""
    from flowactions_plugin.cli.moments import duration
    from flowactions_plugin.cli.output import line, write_json
    from flowactions_plugin.cli.places import opened
    from flowactions_plugin.operate.queries import OperatorQueries
    from flowactions_plugin.operate.scope import Scope

    async with opened(host) as place:
        overview = await OperatorQueries.of(place.database, place.settings).overview(Scope(organization))
    if as_json:
        write_json(overview)
        return DONE
    more = "" if overview.due_exact else "+"
    alive = [worker for worker in overview.workers if worker.state == "alive"]
    line(f"{'verdict':12} {overview.verdict.state}: {overview.verdict.reason}")
    line(f"{'due':12} {overview.due:,}{more}, the oldest for {duration(overview.oldest_due_ms / 1000)}")
    line(f"{'waiting':12} {overview.waiting}")
    line(f"{'dead':12} {overview.dead}")
    line(f"{'workers':12} {len(alive)} alive, {sum(worker.in_flight for worker in alive)} in flight")
    line(f"{'last hour':12} {_totals(overview.hour)}")
    line(f"{'last day':12} {_totals(overview.day)}")
    _destinations("most failures", overview.worst)
    _destinations("most time", overview.slowest)
    return DONE


def _destinations(title: str, found: Sequence[DestinationState]) -> None:
    from flowactions_plugin.cli.moments import duration
    from flowactions_plugin.cli.output import line, table

    if not found:
        return
    line()
    columns = (f"{title}, last hour", "organization", "delivered>", "failed>", "dead>", "workers' time>")
    table(
        columns,
        (
            (
                each.destination,
                each.organization_id,
                f"{each.delivered:,}",
                f"{each.failed:,}",
                f"{each.dead:,}",
                duration(each.worker_ms / 1000),
            )
            for each in found
        ),
    )


def _totals(buckets: Sequence[Bucket]) -> str:
    delivered, failed, dead = (
        sum(getattr(each, name) for each in buckets) for name in ("delivered", "failed", "dead")
    )
    share = f" ({failed / (delivered + failed):.1%} of attempts)" if delivered + failed else ""
    return f"{delivered:,} delivered, {failed:,} attempts failed{share}, {dead:,} ended dead"


for each in (list_deliveries, show, stats, retry, replay, cancel, delete, actions, undo, stop):
    outbox.add_command(each)
