"""The pages of bulk actions: the preview that asks for confirmation, the list, and one action."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, cast, get_args

from litestar import Response, get, post
from litestar.di import NamedDependency
from litestar.params import FromPath

from flowactions_plugin.http.problems import Problem
from flowactions_plugin.insights.filters import BY_NAME, Filter
from flowactions_plugin.insights.results import Action, Kind
from flowactions_plugin.log_text import plural
from flowactions_plugin.operations.bulk import Selection, names_rows
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

OPTIONS: Final = ("reason", "reset", "rate")
FORM_FIELDS: Final = ("kind", "as-of", "q", *OPTIONS)


@get("/actions")
async def list_actions(visit: NamedDependency[Visit]) -> Response[bytes]:
    """List bulk actions, the latest first."""
    rows, last = cut(await visit.insights.actions(visit.scope, visit.query("cursor").get("cursor"), ROWS + 1))
    return visit.page("actions.html", rows=rows, last=last)


@get("/actions/new", opt=FOR_CHANGERS)
async def preview_action(visit: NamedDependency[Visit]) -> Response[bytes]:
    """Show which deliveries an action would be done to, and ask."""
    given = visit.query("kind", "q", *BY_NAME, repeated=("id",))
    return await _preview(visit, _kind(given), read_filter(given))


@post("/actions")
async def begin_action(visit: NamedDependency[Visit]) -> Response[Any]:
    """Begin an action on the set that was shown; one delivery is retried, cancelled or deleted at once.

    When nothing of it is left, that is said.
    """
    given = await visit.form(*FORM_FIELDS)
    kind, wanted = _kind(given), read_filter(given)
    reason, reset = given.get("reason", "")[:MOST_REASON], given.get("reset") == "yes"
    rate, as_of = _number(given, "rate"), int(_number(given, "as-of") or 0)
    one = _only(kind, wanted)
    if one is not None:
        reset = reset and kind == "retry"
        if await visit.operations.one(visit.scope, kind, one, visit.viewer.actor, reason, reset_attempts=reset):
            return visit.redirect("/deliveries" if kind == "delete" else f"/deliveries/{one}")
    else:
        chosen, actor = Selection(kind, wanted, as_of), visit.viewer.actor
        action = await visit.operations.change(
            visit.scope, chosen, actor, reason, reset_attempts=reset, rate=rate
        )
        if action is not None:
            return visit.redirect(f"/actions/{action.id}")
    return await _preview(visit, kind, wanted, given=given)


@get("/actions/{action_id:str}")
async def show_action(visit: NamedDependency[Visit], action_id: FromPath[str]) -> Response[bytes]:
    """Show the progress of an action, and the button that stops it."""
    action = _there(await visit.insights.action(visit.scope, action_id))
    may_end = visit.viewer.may_change and (visit.viewer.sees_all or action.actor_role == "dashboard")
    return visit.page(
        "action.html",
        action=action,
        phrase=_phrase(action.kind, action.counted),
        may_end=may_end,
    )


@post("/actions/{action_id:str}/stop")
async def stop_action(visit: NamedDependency[Visit], action_id: FromPath[str]) -> Response[Any]:
    """Stop an action; what was done stays. Its page shows the result."""
    await visit.form()
    action = _there(await visit.operations.stop(visit.scope, action_id, visit.viewer.actor))
    return visit.redirect(f"/actions/{action.id}")


async def _preview(
    visit: Visit, kind: Kind, wanted: Filter, *, given: Mapping[str, str] | None = None
) -> Response[bytes]:
    """Show what would be done, and ask; ``given`` is a form that could not be done any more."""
    preview = await visit.operations.preview(visit.scope, kind, wanted)
    return visit.page(
        "action_new.html",
        status=200 if given is None else 409,
        preview=preview,
        phrase=_phrase(kind, preview.count),
        explained=EXPLAINED[kind],
        words=str(wanted),
        delivered=str(wanted.having("status", "delivered")),
        may_resend=wanted.values("since") or names_rows(wanted),
        names_rows=wanted.values("id"),
        changed=given is not None,
        given={name: (given or {}).get(name) for name in OPTIONS},
    )


def _only(kind: Kind, wanted: Filter) -> str | None:
    """Return the one delivery that is changed at once; ``None``: it is a bulk action."""
    return None if kind == "resend" else wanted.only("id")


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
