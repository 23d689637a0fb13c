"""The pages of all deliveries together: overview, destinations with their pauses, chat connections, inbound events, audit."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Final

from litestar import Response, get, post
from litestar.di import NamedDependency

from flowactions_plugin.insights.facts import summed
from flowactions_plugin.insights.failures import FAILED_READ
from flowactions_plugin.operators.audit import MOST_REASON
from flowactions_plugin.operators.scope import NOBODY, Actor, Scope
from flowactions_plugin.pages.charts import chart
from flowactions_plugin.pages.context import ROWS, Visit, cut

SPANS: Final = {"hour": ("Last hour", "5 min"), "day": ("Last day", "hour")}
"""What the chart of the overview may show: its name, and how long each of its intervals is."""


@get("/")
async def show_overview(visit: NamedDependency[Visit]) -> Response[bytes]:
    """Show how deliveries stand."""
    given = visit.query("span").get("span", "hour")
    shown = given if given in SPANS else "hour"
    overview = await visit.insights.overview(visit.scope)
    unsent = next((each.level for each in overview.findings if each.about == "unsent"), "")
    return visit.page(
        "overview.html",
        overview=overview,
        failed_read=FAILED_READ,
        workers=overview.workers[:ROWS],
        hour=summed(overview.hour),
        drawn=chart(getattr(overview, shown), SPANS[shown][1]),
        span=shown,
        spans=SPANS,
        unsent=unsent,
    )


@get("/destinations")
async def list_destinations(visit: NamedDependency[Visit]) -> Response[bytes]:
    """List destinations with what was delivered to them within the last hour, those that fail first, and what is paused."""
    given = visit.query("cursor", "paused-after", "paused-of")
    before = (given.get("paused-of", ""), given["paused-after"]) if "paused-after" in given else None
    rows, following = await visit.insights.destinations(visit.scope, ROWS, given.get("cursor"))
    pauses, last_pause = cut(await visit.insights.pauses(visit.scope, before, ROWS + 1))
    return visit.page("destinations.html", rows=rows, following=following, pauses=pauses, last_pause=last_pause)


@post("/destinations/pause")
async def pause_destination(visit: NamedDependency[Visit]) -> Response[Any]:
    """Pause a destination: of the caller's organization; an operator's of one organization or of all."""
    return await _change(visit, visit.operations.pause)


@post("/destinations/resume")
async def resume_destination(visit: NamedDependency[Visit]) -> Response[Any]:
    """Resume a destination: its deliveries are due at once."""
    return await _change(visit, visit.operations.resume)


async def _change(visit: Visit, call: Callable[[Scope, str, Actor, str], Awaitable[object]]) -> Response[Any]:
    fields = ("destination", "reason", "organization") if visit.viewer.sees_all else ("destination", "reason")
    given = await visit.form(*fields)
    scope = Scope(given["organization"]) if "organization" in given else visit.scope
    await call(scope, given.get("destination", ""), visit.viewer.actor, given.get("reason", "")[:MOST_REASON])
    return visit.redirect("/destinations")


@get("/connections")
async def show_connections(visit: NamedDependency[Visit]) -> Response[bytes]:
    """Show the chat connections, by organization."""
    after = visit.query("after").get("after", "")
    found = await visit.insights.connections(visit.scope, visit.context.unreadable, after, ROWS + 1)
    rows, last = cut(found)
    return visit.page("connections.html", rows=rows, last=last)


@get("/inbound")
async def show_inbound(visit: NamedDependency[Visit]) -> Response[bytes]:
    """Show inbound events, the latest first. They belong to no organization, so only operators see them."""
    given = visit.query("id", "cursor")
    found = await visit.insights.inbound(visit.scope, given.get("id"), given.pop("cursor", None), ROWS)
    return visit.page("inbound.html", page=found, filter=given)


@get("/audit")
async def show_audit(visit: NamedDependency[Visit]) -> Response[bytes]:
    """Show who did what to which deliveries, and why."""
    rows, last = cut(await visit.insights.audit(visit.scope, visit.query("cursor").get("cursor"), ROWS + 1))
    return visit.page("audit.html", rows=rows, last=last, nobody=NOBODY)
