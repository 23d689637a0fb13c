"""Says who looks at the operator pages, and checks their requests before a handler runs, whichever that is."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection
from typing import Any, Final, NamedTuple, TypeAlias, cast

from litestar.connection import ASGIConnection
from litestar.handlers import BaseRouteHandler
from litestar.types import Guard
from litestar.utils.scope.state import CONNECTION_STATE_KEY

from flowactions_hookspecs import DashboardPrincipal, FlowActionsError, Host, NotStarted, Operator, ScopeRequest
from flowactions_plugin.host_answers import ask
from flowactions_plugin.http.auth import fetch_headers, sender_of
from flowactions_plugin.http.problems import Problem
from flowactions_plugin.operators.scope import Actor, Scope
from flowactions_plugin.pages.sessions import COOKIE, Sessions

ASGIRequest: TypeAlias = ASGIConnection[Any, Any, Any, Any]

_VIEWER: Final = "flowactions.viewer"
"""Key of the viewer in the request's ASGI scope."""


class Viewer(NamedTuple):
    """A person who looks at the pages.

    Attributes:
        scope: whose rows they see.
        actor: who they are.
        may_change: whether they may change anything, or only look.
        in_session: whether they came in by the session of the pages, which they can end.
    """

    scope: Scope
    actor: Actor
    may_change: bool
    in_session: bool

    @property
    def sees_all(self) -> bool:
        """Whether they see what belongs to every organization."""
        return self.scope.organization_id is None


Find: TypeAlias = Callable[[ASGIRequest], Awaitable[Viewer | None]]


def viewers(host: Host, sessions: Sessions, *, show_operators: bool) -> Find:
    """Return a function that says who sends a request; ``None``: nobody.

    It asks the host for its operator first, then for a person of its dashboard. The token of a session counts as if the
    browser had sent it. When the host does not know it, or there is none, the request is asked about as it is.

    Args:
        host: the host. `HostAnswerInvalid` is raised if a method of it returns a wrong type.
        sessions: opens the session cookie.
        show_operators: whether people of a dashboard are shown the names of operators.
    """

    async def asked(scope: dict[str, Any], *, in_session: bool) -> Viewer | None:
        request = ScopeRequest(scope)
        operator: Operator | None = await ask(host, "operator", request)
        if operator is not None:
            actor = Actor(operator.user_id, operator.user_name, "operator")
            return Viewer(Scope(None), actor, operator.may_change, in_session)
        person: DashboardPrincipal | None = await ask(host, "dashboard_principal", request)
        if person is None:
            return None
        actor = Actor(person.user_id, person.user_name, "dashboard")
        return Viewer(Scope(person.organization_id, not show_operators), actor, person.may_change, in_session)

    async def find(request: ASGIRequest) -> Viewer | None:
        scope = cast("dict[str, Any]", request.scope)
        token = sessions.open(request.cookies.get(COOKIE))
        found = None
        if token is not None and "authorization" not in request.headers:
            found = await asked(with_bearer(scope, token), in_session=True)
        return found or await asked(scope, in_session=False)

    return find


def with_bearer(scope: dict[str, Any], token: str) -> dict[str, Any]:
    """Return the scope of a request as if it had this bearer token."""
    state = {
        key: value
        for key, value in (scope.get("state") or {}).items()
        if key != CONNECTION_STATE_KEY  # holds the headers as Litestar has parsed them
    }
    headers = [*scope["headers"], (b"authorization", b"Bearer " + token.encode("latin-1", "replace"))]
    return {**scope, "headers": headers, "state": state}


def viewer_of(request: ASGIRequest) -> Viewer | None:
    """Return who sends a request, as the guard has stored it; ``None`` when it has not come that far."""
    return cast("dict[str, Any]", request.scope).get(_VIEWER)


FORM: Final = "application/x-www-form-urlencoded"

FOR_CHANGERS: Final[dict[str, Any]] = {"flowactions_for_changers": True}
"""Marks a handler of GET that only people who may change something may see. Every other method is for them alone."""

FOR_EVERYBODY: Final[dict[str, Any]] = {"flowactions_for_everybody": True}
"""Marks a handler of POST that changes nothing but the caller's own session."""

_READING: Final = frozenset({"GET", "HEAD"})


class SignInNeeded(FlowActionsError):
    """Nobody is signed in."""


def page_guard(find: Find, origins: Collection[str], is_running: Callable[[], bool]) -> Guard:
    """Return the guard of the pages' router, which checks a request in this order before its handler runs.

    The lifespan runs (503), somebody is signed in (401), they may do it (403), a page of the same origin sends the form
    (403), and it is a form (415).

    A handler that is not marked otherwise may be seen by everybody who is signed in when its method is GET, and by those
    who may change something when it is another: a new handler that says nothing is closed to readers.

    Args:
        find: tells who calls.
        origins: at which browsers reach the routes, as `parse_origin` writes them.
        is_running: whether the lifespan is open.
    """
    own = frozenset(origins)

    async def check(request: ASGIRequest, handler: BaseRouteHandler) -> None:
        method = request.scope.get("method")
        if method == "OPTIONS":
            return  # Litestar answers with the allowed methods
        if not is_running():
            raise NotStarted
        viewer = await find(request)
        if viewer is None:
            raise SignInNeeded
        cast("dict[str, Any]", request.scope)[_VIEWER] = viewer
        is_reading = method in _READING
        if is_reading:
            is_open = not handler.opt.get("flowactions_for_changers")
        else:
            is_open = bool(handler.opt.get("flowactions_for_everybody"))
        if not viewer.may_change and not is_open:
            raise Problem("forbidden", "You may look at this, and not change it.")
        if not is_reading:
            _check_form(request, own)

    return check


def _check_form(request: ASGIRequest, own: Collection[str]) -> None:
    # Any page can send a form, without a preflight, so what says nothing is refused.
    if sender_of(fetch_headers(request), own) != "own":
        raise Problem(
            "cross_site",
            "The browser does not say that a page of this site sent this. Open the page again at its own address, and"
            " send the form from there. Behind a proxy that changes the header Host, set BACKEND_PUBLIC_URL.",
        )
    kinds = [kind.partition(";")[0].strip().lower() for kind in request.headers.getall("content-type", [])]
    if kinds != [FORM]:
        raise Problem("unsupported_media_type", f"Send the form as {FORM}.")


def must_run(is_running: Callable[[], bool]) -> Guard:
    """Return a guard that only checks that the lifespan is open."""

    async def check(request: ASGIRequest, _: BaseRouteHandler) -> None:
        if request.scope.get("method") != "OPTIONS" and not is_running():
            raise NotStarted

    return check
