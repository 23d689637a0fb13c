"""``flowactions destinations``: destinations of webhooks, and pauses."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

import click

from flowactions_plugin.cli.frame import DONE, SETTINGS, command
from flowactions_plugin.cli.options import WORDS, limit_option, organization_option, reason_option
from flowactions_plugin.cli.output import duration, line, moment, status, table, write_json

if TYPE_CHECKING:
    from flowactions_plugin.cli.context import CommandContext
    from flowactions_plugin.insights.results import DestinationState

NO_ORGANIZATION: Final = "(alerts)"
"""Instead of an organization, where alerts are sent: they belong to none."""


def columns(title: str) -> dict[str, Callable[[DestinationState], object]]:
    """Return the columns of a table of destinations."""
    return {
        title: lambda each: each.destination,
        "organization": lambda each: each.organization_id or NO_ORGANIZATION,
        "delivered>": lambda each: f"{each.delivered:,}",
        "failed>": lambda each: f"{each.failed:,}",
        "dead>": lambda each: f"{each.dead:,}",
        "workers' time>": lambda each: duration(each.worker_ms / 1000),
    }


@click.group("destinations", context_settings=SETTINGS, no_args_is_help=False)
def destinations() -> None:
    """List destinations, pause and resume them."""


@command("list", document="cli.documents:Destinations", opens=True)
@organization_option("Of this organization.")
@limit_option
async def list_destinations(
    context: CommandContext, organization: str | None, limit: int, as_json: bool
) -> int:
    """List destinations with the results of the last hour, and pauses."""
    from flowactions_plugin.cli.documents import Destinations
    from flowactions_plugin.operators.scope import Scope

    scope = Scope(organization)
    found = await context.insights.destinations(scope, limit + 1, None)
    paused = await context.insights.pauses(scope, limit=limit + 1)
    rows, more = found[:limit], len(found) > limit
    pauses, more_pauses = paused[:limit], len(paused) > limit
    if as_json:
        write_json(Destinations(data=rows, pauses=pauses, more=more, more_pauses=more_pauses))
        return DONE
    if rows:
        table(
            rows,
            {
                **columns("destination"),
                "waiting>": lambda each: each.waiting,
                "oldest": lambda each: moment(each.waiting_since),
                "failing since": lambda each: moment(each.failing_since),
                "last error": lambda each: each.last_reason,
                "one at a time since": lambda each: moment(each.limited_since),
                "paused": lambda each: "paused" if each.paused else "",
            },
        )
    else:
        status("nothing was sent to any destination yet")
    if more:
        status(f"only the first {limit} are shown: --limit shows more")
    if pauses:
        line()
        table(
            pauses,
            {
                "paused": lambda each: each.destination,
                "for": lambda each: each.organization_id or "all",
                "since": lambda each: moment(each.paused_at),
                "by": lambda each: each.paused_by,
                "reason": lambda each: each.reason,
                "next probe": lambda each: moment(each.probe_at),
            },
        )
    if more_pauses:
        status(f"more than {limit} are paused: --limit shows further ones")
    return DONE


@command("pause", document="cli.documents:Paused", opens=True)
@click.argument("destination", type=WORDS)
@organization_option("For this organization only; without it, for all.")
@reason_option
async def pause(context: CommandContext, **options: Any) -> int:
    """Pause a destination: its deliveries wait, use up no attempt and do not delay other deliveries.

    DESTINATION is scheme, host and port, or a URL. Attempts in flight are finished.
    """
    return await _change("pause", context, **options)


@command("resume", document="cli.documents:Paused", opens=True)
@click.argument("destination", type=WORDS)
@organization_option("For this organization only; without it, for all.")
@reason_option
async def resume(context: CommandContext, **options: Any) -> int:
    """Resume a destination: deliveries that have waited are due at once, in their order."""
    return await _change("resume", context, **options)


async def _change(
    what: str,
    context: CommandContext,
    destination: str,
    organization: str | None,
    reason: str,
    as_json: bool,
) -> int:
    from flowactions_plugin.cli.context import actor
    from flowactions_plugin.cli.documents import Paused
    from flowactions_plugin.egress.destination import parse_destination
    from flowactions_plugin.errors import CannotRun, EgressRefused
    from flowactions_plugin.operators.scope import Scope

    try:
        key = parse_destination(destination).key
    except EgressRefused as exc:
        raise CannotRun(f"this is no destination: {exc}") from None
    call = context.operations.pause if what == "pause" else context.operations.resume
    changed = await call(Scope(organization), key, actor(), reason)
    if as_json:
        write_json(Paused(destination=key, organization=organization, changed=changed))
    else:
        who = organization or "all organizations"
        before = "it was paused before" if what == "pause" else "it was not paused"
        line(f"{key} {what}d for {who}" if changed else f"{key} for {who}: {before}")
    return DONE


for each in (list_destinations, pause, resume):
    destinations.add_command(each)
