"""The pages of bulk actions: the preview that asks for confirmation, the list, and one action."""

from __future__ import annotations

from typing import Any, Final, cast, get_args

from litestar import Request, Response, get, post
from litestar.di import NamedDependency
from litestar.params import FromPath

from flowactions_plugin.errors import SetChanged
from flowactions_plugin.http.problems import Problem
from flowactions_plugin.insights.fields import BY_NAME
from flowactions_plugin.insights.filters import Filter, to_query
from flowactions_plugin.insights.results import Action, Kind
from flowactions_plugin.log_text import plural
from flowactions_plugin.operations.bulk import Selection, names_rows
from flowactions_plugin.operations.port import DELAY_SECONDS
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
FORM_FIELDS: Final = ("kind", "as-of", "count", *OPTIONS, *(FILTER_PREFIX + name for name in BY_NAME))

AT_ONCE: Final = frozenset({"retry", "cancel", "delete"})
"""What is done to one delivery as soon as it is confirmed."""


@get("/actions", include_in_schema=False)
async def list_actions(
    request: Request[Any, Any, Any], viewer: NamedDependency[Viewer], context: NamedDependency[PageContext]
) -> Response[bytes]:
    """List bulk actions, the latest first."""
    before = read_query(request, ("cursor",)).get("cursor")
    found = await context.insights.actions(viewer.scope, before, ROWS + 1)
    following = found[ROWS - 1].id if len(found) > ROWS else None
    return context.page(request, "actions.html", rows=found[:ROWS], next_cursor=following)


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
    """Begin an action on the set that was shown; when it is another by now, show that and ask again.

    One delivery is retried, cancelled or deleted at once.
    """
    given = await read_form(request, FORM_FIELDS)
    kind = _kind(given)
    wanted = read_filter(
        {
            name.removeprefix(FILTER_PREFIX): value
            for name, value in given.items()
            if name.startswith(FILTER_PREFIX)
        }
    )
    reason, reset = given.get("reason", "")[:MOST_REASON], given.get("reset") == "yes"
    canary, rate = _number(given, "canary"), _number(given, "rate")
    try:
        one = _only(kind, wanted)
        if one is not None:
            await _change_one(context, viewer, kind, one, reason, reset_attempts=reset and kind == "retry")
            return redirect(request, "/deliveries" if kind == "delete" else f"/deliveries/{one}")
        action = await context.operations.change(
            viewer.scope,
            Selection(kind, wanted, int(_number(given, "as-of") or 0), int(_number(given, "count") or 0)),
            viewer.actor,
            reason,
            reset_attempts=reset,
            rate=rate,
            canary=int(canary or 0),
        )
    except SetChanged as exc:
        kept: dict[str, str] = {name: given[name] for name in OPTIONS if name in given}
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
    action = _there(await context.insights.action(viewer.scope, action_id))
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
    action = _there(await context.operations.stop(viewer.scope, action_id, viewer.actor))
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
    preview = await context.operations.preview(viewer.scope, kind, wanted)
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
        delay_ms=0 if kind == "cancel" or _only(kind, wanted) else int(DELAY_SECONDS * 1000),
    )


async def _change_one(
    context: PageContext, viewer: Viewer, kind: Kind, delivery_id: str, reason: str, *, reset_attempts: bool
) -> None:
    done = await context.operations.one(
        viewer.scope, kind, delivery_id, viewer.actor, reason, reset_attempts=reset_attempts
    )
    if done is None:
        raise SetChanged("The delivery has changed since it was shown. Look at it again.")


def _only(kind: Kind, wanted: Filter) -> str | None:
    """Return the one delivery that is changed at once; ``None``: it is a bulk action."""
    return wanted.ids[0] if kind in AT_ONCE and wanted.ids is not None and len(wanted.ids) == 1 else None


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
        value = float(text) if name == "rate" else int(text[:20])
    except ValueError:
        value = -1
    if not 0 <= value < 1e15:
        raise Problem("invalid_request", f"The field {name!r} must be a number.")
    return value


def _there(action: Action | None) -> Action:
    if action is None:
        raise Problem("not_found", "No bulk action has this id.")
    return action
