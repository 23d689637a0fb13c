"""The page that purges an organization: it counts, asks for the organization's id, and removes what it has shown."""

from __future__ import annotations

from http import HTTPStatus
from typing import Any

import msgspec
from litestar import Request, Response, get, post
from litestar.di import NamedDependency

from flowactions_plugin.bulk.purge import PurgePreview, PurgeResult
from flowactions_plugin.errors import SetChanged
from flowactions_plugin.operators.audit import MOST_REASON
from flowactions_plugin.pages.context import PageContext, read_form, read_query
from flowactions_plugin.pages.guard import FOR_OPERATORS, Viewer

MOST_ID: int = 255
"""Characters of an organization's id in the form."""

WRONG_ID = "This is not the id of the organization whose numbers are shown. Nothing was removed."


@get("/purge", opt=FOR_OPERATORS, include_in_schema=False)
async def preview_purge(
    request: Request[Any, Any, Any], context: NamedDependency[PageContext]
) -> Response[bytes]:
    """Ask for an organization, or show what is kept of it and ask for its id."""
    organization_id = read_query(request, ("organization",)).get("organization")
    preview = None if organization_id is None else await context.purges.preview(organization_id)
    return _page(request, context, preview)


@post("/purge", opt=FOR_OPERATORS, include_in_schema=False)
async def purge_organization(
    request: Request[Any, Any, Any], viewer: NamedDependency[Viewer], context: NamedDependency[PageContext]
) -> Response[bytes]:
    """Remove what was shown of an organization, when its id was typed; when more is kept by now, show that and ask again."""
    given = await read_form(request, ("organization", "typed", "token", "reason"))
    organization_id, reason = given.get("organization", ""), given.get("reason", "")[:MOST_REASON]
    if not organization_id or given.get("typed") != organization_id:
        preview = await context.purges.preview(organization_id)
        return _page(request, context, preview, status=HTTPStatus.BAD_REQUEST, wrong=WRONG_ID, reason=reason)
    try:
        result = await context.purges.carry_out(organization_id, given.get("token", ""), viewer.actor, reason)
    except SetChanged as exc:
        preview = await context.purges.preview(organization_id)
        return _page(request, context, preview, status=HTTPStatus.CONFLICT, changed=str(exc), reason=reason)
    return context.page(
        request,
        "purged.html",
        organization_id=organization_id,
        token=given.get("token", ""),
        reason=reason,
        result=result,
        rows=_rows(result),
        totals=[_total(each) for each in (result.removed, result.left, result.later)],
    )


def _page(
    request: Request[Any, Any, Any],
    context: PageContext,
    preview: PurgePreview | None,
    *,
    status: int = HTTPStatus.OK,
    wrong: str | None = None,
    changed: str | None = None,
    reason: str = "",
) -> Response[bytes]:
    counts = {} if preview is None else msgspec.structs.asdict(preview.counts)
    return context.page(
        request,
        "purge.html",
        status=status,
        preview=preview,
        rows=[(_label(name), number) for name, number in counts.items() if number],
        total=sum(counts.values()),
        wrong=wrong,
        changed=changed,
        reason=reason,
        most_id=MOST_ID,
    )


def _rows(result: PurgeResult) -> list[tuple[str, int, int, int]]:
    names = result.removed.__struct_fields__
    parts = [msgspec.structs.astuple(each) for each in (result.removed, result.left, result.later)]
    rows = zip(map(_label, names), *parts, strict=True)
    return [row for row in rows if any(row[1:])]


def _total(counts: Any) -> int:
    return sum(msgspec.structs.astuple(counts))


def _label(name: str) -> str:
    return name.replace("_", " ")
