"""The pages of bulk actions: the preview that asks for confirmation, the list, and one action."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, cast, get_args

from litestar import Response, get, post
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
from flowactions_plugin.pages.context import ROWS, Visit, cut, read_filter
from flowactions_plugin.pages.guard import FOR_CHANGERS

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


@get("/actions")
async def list_actions(visit: NamedDependency[Visit]) -> Response[bytes]:
    """List bulk actions, the latest first."""
    rows, last = cut(await visit.insights.actions(visit.scope, visit.query("cursor").get("cursor"), ROWS + 1))
    return visit.page("actions.html", rows=rows, last=last)


@get("/actions/new", opt=FOR_CHANGERS)
async def preview_action(visit: NamedDependency[Visit]) -> Response[bytes]:
    """Show which deliveries an action would be done to, and ask."""
    given = visit.query("kind", *BY_NAME, repeated=("id",))
    return await _preview(visit, _kind(given), read_filter(given))


@post("/actions")
async def begin_action(visit: NamedDependency[Visit]) -> Response[Any]:
    """Begin an action on the set that was shown; when it is another by now, show that and ask again.

    One delivery is retried, cancelled or deleted at once.
    """
    given = await visit.form(*FORM_FIELDS)
    kind = _kind(given)
    wanted = read_filter(
        {name.removeprefix(FILTER_PREFIX): given[name] for name in given if FILTER_PREFIX in name}
    )
    reason, reset = given.get("reason", "")[:MOST_REASON], given.get("reset") == "yes"
    canary, rate = _number(given, "canary"), _number(given, "rate")
    chosen = Selection(kind, wanted, int(_number(given, "as-of") or 0), int(_number(given, "count") or 0))
    one = _only(kind, wanted)
    if one is not None:
        changed = "The delivery has changed since it was shown. Look at it again."
        reset = reset and kind == "retry"
        if await visit.operations.one(visit.scope, kind, one, visit.viewer.actor, reason, reset_attempts=reset):
            return visit.redirect("/deliveries" if kind == "delete" else f"/deliveries/{one}")
    else:
        try:
            action = await visit.operations.change(
                visit.scope,
                chosen,
                visit.viewer.actor,
                reason,
                reset_attempts=reset,
                rate=rate,
                canary=int(canary or 0),
            )
            return visit.redirect(f"/actions/{action.id}")
        except SetChanged as exc:
            changed = str(exc)
    return await _preview(visit, kind, wanted, changed=changed, given=given)


@get("/actions/{action_id:str}")
async def show_action(visit: NamedDependency[Visit], action_id: FromPath[str]) -> Response[bytes]:
    """Show the progress of an action, and the button that stops it."""
    action = _there(await visit.insights.action(visit.scope, action_id))
    may_end = visit.viewer.may_change and (visit.viewer.sees_all or action.actor_role == "dashboard")
    return visit.page(
        "action.html",
        action=action,
        phrase=_phrase(action.kind, action.counted),
        filter=to_query(action.filter),
        may_end=may_end,
    )


@post("/actions/{action_id:str}/stop")
async def stop_action(visit: NamedDependency[Visit], action_id: FromPath[str]) -> Response[Any]:
    """Stop an action; what was done stays. Its page shows the result."""
    await visit.form()
    action = _there(await visit.operations.stop(visit.scope, action_id, visit.viewer.actor))
    return visit.redirect(f"/actions/{action.id}")


async def _preview(
    visit: Visit,
    kind: Kind,
    wanted: Filter,
    *,
    changed: str | None = None,
    given: Mapping[str, str] | None = None,
) -> Response[bytes]:
    preview = await visit.operations.preview(visit.scope, kind, wanted)
    return visit.page(
        "action_new.html",
        status=200 if changed is None else 409,
        preview=preview,
        phrase=_phrase(kind, preview.chosen.count),
        explained=EXPLAINED[kind],
        filter=to_query(wanted),
        may_resend=wanted.created_from is not None or names_rows(wanted),
        changed=changed,
        given={name: (given or {}).get(name) for name in OPTIONS},
        delay_ms=0 if kind == "cancel" or _only(kind, wanted) else int(DELAY_SECONDS * 1000),
    )


def _only(kind: Kind, wanted: Filter) -> str | None:
    """Return the one delivery that is changed at once; ``None``: it is a bulk action."""
    return wanted.ids[0] if kind != "resend" and wanted.ids is not None and len(wanted.ids) == 1 else None


def _kind(given: Mapping[str, str]) -> Kind:
    kind = given.get("kind")
    if kind not in get_args(Kind):
        raise Problem("invalid_request", f"Say what to do: kind is one of {', '.join(get_args(Kind))}.")
    return cast("Kind", kind)


def _phrase(kind: str, count: int) -> str:
    return PHRASES.get(kind, kind + " {}").format(plural(count, "delivery", "deliveries"))


def _number(given: Mapping[str, str], name: str) -> float | None:
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
