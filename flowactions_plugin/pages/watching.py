"""The pages that only show: overview, chat connections, inbound events, audit."""

from __future__ import annotations

from typing import Any, NamedTuple

import msgspec
from litestar import Request, Response, get
from litestar.di import NamedDependency

from flowactions_plugin.deliveries.filters import Filter, to_query
from flowactions_plugin.deliveries.results import AuditEntry
from flowactions_plugin.pages.charts import chart
from flowactions_plugin.pages.context import ROWS, PageContext
from flowactions_plugin.pages.forms import read_query
from flowactions_plugin.pages.viewers import Viewer


class Entry(NamedTuple):
    """An entry of the audit, with its filter in words."""

    entry: AuditEntry
    filter: dict[str, str]


@get("/", include_in_schema=False)
async def show_overview(
    request: Request[Any, Any, Any], viewer: NamedDependency[Viewer], context: NamedDependency[PageContext]
) -> Response[bytes]:
    """Show how deliveries stand."""
    found = await context.queries.overview(viewer.scope)
    return context.page(
        request,
        "overview.html",
        found=found,
        workers=found.workers[:ROWS],
        hour=chart(found.hour),
        day=chart(found.day),
    )


@get("/connections", include_in_schema=False)
async def show_connections(
    request: Request[Any, Any, Any], viewer: NamedDependency[Viewer], context: NamedDependency[PageContext]
) -> Response[bytes]:
    """Show the chat connections, by organization."""
    after = read_query(request, ("after",)).get("after", "")
    found = await context.queries.connections(viewer.scope, context.unreadable, after, ROWS + 1)
    last = found[ROWS - 1].organization_id if len(found) > ROWS else None
    return context.page(request, "connections.html", rows=found[:ROWS], last=last)


@get("/inbound", include_in_schema=False)
async def show_inbound(
    request: Request[Any, Any, Any], viewer: NamedDependency[Viewer], context: NamedDependency[PageContext]
) -> Response[bytes]:
    """Show the inbound events that were processed. They belong to no organization, so only operators see them."""
    rows = await context.queries.inbound(viewer.scope, ROWS) if viewer.sees_all else ()
    return context.page(request, "inbound.html", rows=rows)


@get("/audit", include_in_schema=False)
async def show_audit(
    request: Request[Any, Any, Any], viewer: NamedDependency[Viewer], context: NamedDependency[PageContext]
) -> Response[bytes]:
    """Show who did what to which deliveries, and why."""
    before = read_query(request, ("cursor",)).get("cursor")
    found = await context.queries.audit(viewer.scope, before, ROWS + 1)
    rows = [Entry(entry, _filter_fields(entry.filter)) for entry in found[:ROWS]]
    more = len(found) > ROWS
    return context.page(request, "audit.html", rows=rows, next_cursor=found[ROWS - 1].id if more else None)


def _filter_fields(stored: str | None) -> dict[str, str]:
    """Return a stored filter in words; what cannot be read is shown as it is."""
    if stored is None:
        return {}
    try:
        return to_query(msgspec.json.decode(stored, type=Filter))
    except (msgspec.MsgspecError, ValueError, OverflowError):
        return {"filter": stored}
