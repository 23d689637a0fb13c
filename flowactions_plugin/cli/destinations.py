"""``flowactions destinations``: destinations of webhooks, and pauses."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import msgspec

from flowactions_plugin.cli.context import CommandContext, actor
from flowactions_plugin.cli.frame import DONE
from flowactions_plugin.cli.output import hint, line, table
from flowactions_plugin.clock import moment
from flowactions_plugin.egress.destination import destination_of
from flowactions_plugin.errors import CannotRun, EgressRefused
from flowactions_plugin.insights.results import DestinationState, Pause
from flowactions_plugin.log_text import span
from flowactions_plugin.operators.scope import Scope

SHOWN: Final = 100
"""How many destinations a page has."""

MOST_PAUSES: Final = 200
"""How many pauses are shown with the first page."""

NO_ORGANIZATION: Final = "(alerts)"
"""Instead of an organization, where alerts are sent: they belong to none."""


class Destinations(msgspec.Struct, kw_only=True, rename="camel"):
    """Destinations with the results of the last hour, and pauses.

    Attributes:
        data: the destinations: those whose last attempt has failed first.
        pauses: the pauses, at most 200; none behind the first page.
        next_cursor: `--cursor` of the next page; `null`: this is the last one.
        more_pauses: whether further pauses exist.
    """

    data: list[DestinationState]
    pauses: list[Pause]
    next_cursor: str | None
    more_pauses: bool


def columns(title: str) -> dict[str, Callable[[DestinationState], object]]:
    """Return the columns of a table of destinations."""
    return {
        title: lambda each: each.destination,
        "organization": lambda each: each.organization_id or NO_ORGANIZATION,
        "delivered>": lambda each: f"{each.delivered:,}",
        "failed>": lambda each: f"{each.failed:,}",
        "dead>": lambda each: f"{each.dead:,}",
        "workers' time>": lambda each: span(each.worker_ms),
    }


async def list_destinations(
    context: CommandContext, organization: str | None, cursor: str | None
) -> tuple[Destinations, int]:
    """List destinations and pauses."""
    scope, rows, following = Scope(organization), list[DestinationState](), cursor
    while True:
        page, following = await context.insights.destinations(scope, SHOWN - len(rows), following)
        rows += page
        if following is None or len(rows) >= SHOWN:
            break
    pauses = [] if cursor else await context.insights.pauses(scope, limit=MOST_PAUSES + 1)
    found = Destinations(
        data=rows, pauses=pauses[:MOST_PAUSES], next_cursor=following, more_pauses=len(pauses) > MOST_PAUSES
    )
    table(
        found.data,
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
    if not rows:
        hint("nothing was sent to any destination yet")
    if following is not None:
        hint(f"more: --cursor {following}")
    if pauses:
        line()
    table(
        found.pauses,
        {
            "paused": lambda each: each.destination,
            "for": lambda each: each.organization_id or "all",
            "since": lambda each: moment(each.paused_at),
            "by": lambda each: each.paused_by,
            "reason": lambda each: each.reason,
            "next probe": lambda each: moment(each.probe_at),
        },
    )
    if found.more_pauses:
        hint(f"more than {MOST_PAUSES:,} are paused: --organization shows those of one organization")
    return found, DONE


async def change(
    context: CommandContext, what: str, destination: str, organization: str | None, reason: str
) -> int:
    """Pause or resume a destination."""
    try:
        key = destination_of(destination)
    except EgressRefused as exc:
        raise CannotRun(f"this is no destination: {exc}") from None
    call = context.operations.pause if what == "pause" else context.operations.resume
    changed = await call(Scope(organization), key, actor(), reason)
    who = organization or "all organizations"
    before = "it was paused before" if what == "pause" else "it was not paused"
    line(f"{key} {what}d for {who}" if changed else f"{key} for {who}: {before}")
    return DONE
