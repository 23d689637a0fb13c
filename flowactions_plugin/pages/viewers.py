"""Who looks at the operator pages, and what they may see and do."""

from __future__ import annotations

from typing import Any, Final, NamedTuple, TypeAlias, cast

from litestar.connection import ASGIConnection
from litestar.utils.scope.state import CONNECTION_STATE_KEY

from flowactions_hookspecs import DashboardPrincipal, Host, Operator, ScopeRequest
from flowactions_plugin.host_answers import ask
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


class Viewers:
    """Asks the host who calls: its operator first, then a person of its dashboard.

    Args:
        host: the host.
        sessions: opens the session cookie.
        show_operators: whether people of a dashboard are shown the names of operators.
    """

    def __init__(self, host: Host, sessions: Sessions, *, show_operators: bool) -> None:
        self._host = host
        self._sessions = sessions
        self._hides_operators = not show_operators

    async def find(self, request: ASGIRequest) -> Viewer | None:
        """Return who sends a request; ``None`` for nobody.

        The token of a session counts as if the browser had sent it. When the host does not know it, or there is none,
        the request is asked about as it is.

        Raises:
            HostAnswerInvalid: a method of the host returned a wrong type.
        """
        scope = cast("dict[str, Any]", request.scope)
        token = self._sessions.open(request.cookies.get(COOKIE))
        if token is not None and "authorization" not in request.headers:
            found = await self._ask(with_bearer(scope, token), in_session=True)
            if found is not None:
                return found
        return await self._ask(scope, in_session=False)

    async def _ask(self, scope: dict[str, Any], *, in_session: bool) -> Viewer | None:
        request = ScopeRequest(scope)
        operator: Operator | None = await ask(self._host, "operator", Operator | None, request)
        if operator is not None:
            actor = Actor(operator.user_id, operator.user_name, "operator")
            return Viewer(Scope(None), actor, operator.may_change, in_session)
        person: DashboardPrincipal | None = await ask(
            self._host, "dashboard_principal", DashboardPrincipal | None, request
        )
        if person is None:
            return None
        actor = Actor(person.user_id, person.user_name, "dashboard")
        within = Scope(person.organization_id, self._hides_operators)
        return Viewer(within, actor, person.may_change, in_session)


def with_bearer(scope: dict[str, Any], token: str) -> dict[str, Any]:
    """Return the scope of a request as if it had this bearer token."""
    state = {
        key: value
        for key, value in (scope.get("state") or {}).items()
        if key != CONNECTION_STATE_KEY  # holds the headers as Litestar has parsed them
    }
    headers = [*scope["headers"], (b"authorization", b"Bearer " + token.encode("latin-1", "replace"))]
    return {**scope, "headers": headers, "state": state}


def keep_viewer(request: ASGIRequest, viewer: Viewer) -> None:
    """Store who sends a request, for its handler."""
    cast("dict[str, Any]", request.scope)[_VIEWER] = viewer


def viewer_of(request: ASGIRequest) -> Viewer | None:
    """Return who sends a request, as the guard has stored it; ``None`` when it has not come that far."""
    return cast("dict[str, Any]", request.scope).get(_VIEWER)
