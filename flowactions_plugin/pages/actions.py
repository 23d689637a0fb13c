"""The pages of bulk actions: the preview that asks for confirmation, the list, and one action."""

from __future__ import annotations

from typing import Any, Final, NamedTuple, cast, get_args

from litestar import Request, Response, get, post
from litestar.di import NamedDependency
from litestar.params import FromPath

from flowactions_plugin.bulk.actions import DELAY_SECONDS
from flowactions_plugin.bulk.results import Action
from flowactions_plugin.bulk.sets import Kind, acts_at_once, names_rows
from flowactions_plugin.deliveries.fields import BY_NAME
from flowactions_plugin.deliveries.filters import Filter, to_query
from flowactions_plugin.errors import SetChanged
from flowactions_plugin.http.problems import Problem
from flowactions_plugin.log_text import plural
from flowactions_plugin.operators.audit import MOST_REASON
from flowactions_plugin.pages.context import ROWS, PageContext, read_filter, read_form, read_query
from flowactions_plugin.pages.guard import FOR_CHANGERS, Viewer
from flowactions_plugin.pages.rendering import redirect

PHRASES: Final[dict[str, str]] = {
    "retry": "Retry {}",
    "cancel": "Cancel {}",
    "delete": "Delete {}",
    "resend": "Send {} again",
}

EXPLAINED: Final[dict[str, str]] = {
    "retry": "A dead delivery becomes due again.",
    "cancel": "A delivery that waits for an attempt ends dead without one; one that is being sent is not tried again.",
    "delete": "A dead delivery is removed with its attempts.",
    "resend": "What was delivered stays so, and is sent once more: as a new delivery with the same event id, headers and body,"
    " signed with the present secret. Receivers that dedupe by event id ignore what they have processed already.",
}

FILTER_PREFIX: Final = "filter-"
OPTIONS: Final = ("reason", "reset", "canary", "rate")
FORM_FIELDS: Final = ("kind", "token", *OPTIONS, *(FILTER_PREFIX + name for name in BY_NAME))


class Listed(NamedTuple):
    """A bulk action, with its filter in words."""

    action: Action
    filter: dict[str, str]


@get("/actions", include_in_schema=False)
async def list_actions(
    request: Request[Any, Any, Any], viewer: NamedDependency[Viewer], context: NamedDependency[PageContext]
) -> Response[bytes]:
    """List bulk actions, the latest first."""
    before = read_query(request, ("cursor",)).get("cursor")
    found = await context.actions.list(viewer.scope, before=before, limit=ROWS + 1)
    more = len(found) > ROWS
    return context.page(
        request,
        "actions.html",
        rows=[Listed(action, to_query(action.filter)) for action in found[:ROWS]],
        next_cursor=found[ROWS - 1].id if more else None,
    )


@get("/actions/new", opt=FOR_CHANGERS, include_in_schema=False)
async def preview_action(
    request: Request[Any, Any, Any], viewer: NamedDependency[Viewer], context: NamedDependency[PageContext]
) -> Response[bytes]:
    """Show which deliveries an action would be done to, and ask."""
    given = read_query(request, ("kind", *BY_NAME), repeated=("id",))
    return await _preview(request, viewer, context, _kind(given), read_filter(given))


@post("/actions", include_in_schema=False)
async def begin_action(
    request: Request[Any, Any, Any], viewer: NamedDependency[Viewer], context: NamedDependency[PageContext]
) -> Response[Any]:
    """Begin an action on the set that was shown; when it is another by now, show that and ask again."""
    given = await read_form(request, FORM_FIELDS)
    kind = _kind(given)
    canary, rate = _number(given, "canary"), _number(given, "rate")
    try:
        action = await context.actions.begin(
            viewer.scope,
            kind,
            given.get("token", ""),
            viewer.actor,
            given.get("reason", "")[:MOST_REASON],
            reset_attempts=given.get("reset") == "yes",
            rate=rate,
            canary=int(canary or 0),
        )
    except SetChanged as exc:
        filters = {
            name.removeprefix(FILTER_PREFIX): value
            for name, value in given.items()
            if name.startswith(FILTER_PREFIX)
        }
        kept: dict[str, str] = {name: given[name] for name in OPTIONS if name in given}
        wanted = read_filter(filters)
        return await _preview(request, viewer, context, kind, wanted, changed=str(exc), given=kept)
    return redirect(request, f"/actions/{action.id}")


@get("/actions/{action_id:str}", include_in_schema=False)
async def show_action(
    request: Request[Any, Any, Any],
    viewer: NamedDependency[Viewer],
    context: NamedDependency[PageContext],
    action_id: FromPath[str],
) -> Response[bytes]:
    """Show the progress of an action, and the button that stops it."""
    action = _there(await context.actions.get(viewer.scope, action_id))
    may_end = viewer.may_change and (viewer.sees_all or action.actor_role == "dashboard")
    return context.page(
        request,
        "action.html",
        action=action,
        phrase=_phrase(action.kind, action.counted),
        filter=to_query(action.filter),
        may_end=may_end,
    )


@post("/actions/{action_id:str}/stop", include_in_schema=False)
async def stop_action(
    request: Request[Any, Any, Any],
    viewer: NamedDependency[Viewer],
    context: NamedDependency[PageContext],
    action_id: FromPath[str],
) -> Response[Any]:
    """Stop an action; what was done stays. Its page shows the result."""
    await read_form(request, ())
    action = _there(await context.actions.stop(viewer.scope, action_id, viewer.actor))
    return redirect(request, f"/actions/{action.id}")


async def _preview(
    request: Request[Any, Any, Any],
    viewer: Viewer,
    context: PageContext,
    kind: Kind,
    wanted: Filter,
    *,
    changed: str | None = None,
    given: dict[str, str] | None = None,
) -> Response[bytes]:
    preview = await context.actions.preview(viewer.scope, kind, wanted)
    return context.page(
        request,
        "action_new.html",
        status=200 if changed is None else 409,
        preview=preview,
        phrase=_phrase(kind, preview.count),
        explained=EXPLAINED[kind],
        filter=to_query(wanted),
        may_resend=wanted.created_from is not None or names_rows(wanted),
        changed=changed,
        given=dict.fromkeys(OPTIONS) | (given or {}),
        delay_ms=0 if acts_at_once(kind, wanted) else int(DELAY_SECONDS * 1000),
    )


def _kind(given: dict[str, str]) -> Kind:
    kind = given.get("kind")
    if kind not in get_args(Kind):
        raise Problem("invalid_request", f"Say what to do: kind is one of {', '.join(get_args(Kind))}.")
    return cast("Kind", kind)


def _phrase(kind: str, count: int) -> str:
    return PHRASES.get(kind, kind + " {}").format(plural(count, "delivery", "deliveries"))


def _number(given: dict[str, str], name: str) -> float | None:
    text = given.get(name)
    if text is None:
        return None
    try:
        value = float(text) if name == "rate" else int(text)
    except ValueError:
        value = -1
    if not 0 <= value < 1e9:
        raise Problem("invalid_request", f"The field {name!r} must be a number.")
    return value


def _there(action: Action | None) -> Action:
    if action is None:
        raise Problem("not_found", "No bulk action has this id.")
    return action
