"""The page of destinations: how they do, which are paused, and pausing them."""

from __future__ import annotations

from typing import Any

from litestar import Request, Response, get, post
from litestar.di import NamedDependency

from flowactions_plugin.operators.scope import Scope
from flowactions_plugin.pages.context import MOST_REASON, ROWS, PageContext
from flowactions_plugin.pages.forms import read_form, read_query
from flowactions_plugin.pages.rendering import redirect
from flowactions_plugin.pages.viewers import Viewer


@get("/destinations", include_in_schema=False)
async def list_destinations(
    request: Request[Any, Any, Any], viewer: NamedDependency[Viewer], context: NamedDependency[PageContext]
) -> Response[bytes]:
    """List destinations with what was delivered to them within the last hour, and those that are paused."""
    given = read_query(request, ("after", "of", "paused-after", "paused-of"))
    after = (given.get("of", ""), given["after"]) if "after" in given else None
    found = await context.queries.status.destinations(viewer.scope, ROWS + 1, after)
    before = (given.get("paused-of", ""), given["paused-after"]) if "paused-after" in given else None
    paused = await context.pauses.list(viewer.scope, after=before, limit=ROWS + 1)
    return context.page(
        request,
        "destinations.html",
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
    return await _change(request, viewer, context.pauses.pause)


@post("/destinations/resume", include_in_schema=False)
async def resume_destination(
    request: Request[Any, Any, Any], viewer: NamedDependency[Viewer], context: NamedDependency[PageContext]
) -> Response[Any]:
    """Resume a destination: its deliveries are due at once."""
    return await _change(request, viewer, context.pauses.resume)


async def _change(request: Request[Any, Any, Any], viewer: Viewer, how: Any) -> Response[Any]:
    known = ("destination", "reason", *(("organization",) if viewer.sees_all else ()))
    given = await read_form(request, known)
    scope = Scope(given["organization"]) if "organization" in given else viewer.scope
    await how(scope, given.get("destination", ""), viewer.actor, given.get("reason", "")[:MOST_REASON])
    return redirect(request, "/destinations")
