"""The pages of all deliveries together: overview, destinations with their pauses, chat connections, inbound events, audit."""

from __future__ import annotations

from typing import Any, NamedTuple

from litestar import Request, Response, get, post
from litestar.di import NamedDependency

from flowactions_plugin.insights.failures import FAILED_READ
from flowactions_plugin.operators.audit import MOST_REASON
from flowactions_plugin.operators.scope import NOBODY, Scope
from flowactions_plugin.pages.charts import chart
from flowactions_plugin.pages.context import ROWS, PageContext, read_form, read_query
from flowactions_plugin.pages.guard import Viewer
from flowactions_plugin.pages.rendering import redirect


class Asked(NamedTuple):
    """What a form asks for."""

    scope: Scope
    destination: str
    reason: str


@get("/", include_in_schema=False)
async def show_overview(
    request: Request[Any, Any, Any], viewer: NamedDependency[Viewer], context: NamedDependency[PageContext]
) -> Response[bytes]:
    """Show how deliveries stand."""
    found = await context.insights.overview(viewer.scope)
    return context.page(
        request,
        "overview.html",
        found=found,
        needs=[each for each in found.findings if each.about != "deliveries"],
        failed_read=FAILED_READ,
        workers=found.workers[:ROWS],
        hour=chart(found.hour, "5 min"),
        day=chart(found.day, "hour"),
    )


@get("/destinations", include_in_schema=False)
async def list_destinations(
    request: Request[Any, Any, Any], viewer: NamedDependency[Viewer], context: NamedDependency[PageContext]
) -> Response[bytes]:
    """List destinations with what was delivered to them within the last hour, and those that are paused."""
    given = read_query(request, ("after", "of", "paused-after", "paused-of"))
    after = (given.get("of", ""), given["after"]) if "after" in given else None
    found = await context.insights.destinations(viewer.scope, ROWS + 1, after)
    failing = [] if given else await context.insights.failing(ROWS, viewer.scope)
    before = (given.get("paused-of", ""), given["paused-after"]) if "paused-after" in given else None
    paused = await context.insights.pauses(viewer.scope, before, ROWS + 1)
    return context.page(
        request,
        "destinations.html",
        failing=failing,
        rows=found[:ROWS],
        last=found[ROWS - 1] if len(found) > ROWS else None,
        pauses=paused[:ROWS],
        last_pause=paused[ROWS - 1] if len(paused) > ROWS else None,
    )


@post("/destinations/pause", include_in_schema=False)
async def pause_destination(
    request: Request[Any, Any, Any], viewer: NamedDependency[Viewer], context: NamedDependency[PageContext]
) -> Response[Any]:
    """Pause a destination: of the caller's organization; an operator's of one organization or of all."""
    asked = await _asked(request, viewer)
    await context.operations.pause(asked.scope, asked.destination, viewer.actor, asked.reason)
    return redirect(request, "/destinations")


@post("/destinations/resume", include_in_schema=False)
async def resume_destination(
    request: Request[Any, Any, Any], viewer: NamedDependency[Viewer], context: NamedDependency[PageContext]
) -> Response[Any]:
    """Resume a destination: its deliveries are due at once."""
    asked = await _asked(request, viewer)
    await context.operations.resume(asked.scope, asked.destination, viewer.actor, asked.reason)
    return redirect(request, "/destinations")


async def _asked(request: Request[Any, Any, Any], viewer: Viewer) -> Asked:
    """Read a form that pauses or resumes."""
    given = await read_form(request, ("destination", "reason", *(("organization",) if viewer.sees_all else ())))
    return Asked(
        scope=Scope(given["organization"]) if "organization" in given else viewer.scope,
        destination=given.get("destination", ""),
        reason=given.get("reason", "")[:MOST_REASON],
    )


@get("/connections", include_in_schema=False)
async def show_connections(
    request: Request[Any, Any, Any], viewer: NamedDependency[Viewer], context: NamedDependency[PageContext]
) -> Response[bytes]:
    """Show the chat connections, by organization."""
    after = read_query(request, ("after",)).get("after", "")
    found = await context.insights.connections(viewer.scope, context.unreadable, after, ROWS + 1)
    last = found[ROWS - 1].organization_id if len(found) > ROWS else None
    return context.page(request, "connections.html", rows=found[:ROWS], last=last)


@get("/inbound", include_in_schema=False)
async def show_inbound(
    request: Request[Any, Any, Any], viewer: NamedDependency[Viewer], context: NamedDependency[PageContext]
) -> Response[bytes]:
    """Show inbound events, the latest first. They belong to no organization, so only operators see them."""
    given = read_query(request, ("id", "cursor"))
    found = await context.insights.inbound(
        viewer.scope, given.get("id") or None, given.pop("cursor", None), ROWS
    )
    return context.page(request, "inbound.html", page=found, filter=given)


@get("/audit", include_in_schema=False)
async def show_audit(
    request: Request[Any, Any, Any], viewer: NamedDependency[Viewer], context: NamedDependency[PageContext]
) -> Response[bytes]:
    """Show who did what to which deliveries, and why."""
    before = read_query(request, ("cursor",)).get("cursor")
    found = await context.insights.audit(viewer.scope, before, ROWS + 1)
    following = found[ROWS - 1].id if len(found) > ROWS else None
    return context.page(request, "audit.html", rows=found[:ROWS], next_cursor=following, nobody=NOBODY)
