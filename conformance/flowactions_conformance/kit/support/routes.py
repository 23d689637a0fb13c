"""The plugin's own routes, as docs/reference/http.md lists them: what checks of many routes go through."""

from __future__ import annotations

from typing import Any, Final, Literal, NamedTuple, TypeAlias

Caller: TypeAlias = Literal["dashboard", "backend", "provider", "anybody"]


class Route(NamedTuple):
    """A route, and a request that shows that it is there and does nothing.

    Attributes:
        method: of the request.
        path: below the host's prefix.
        caller: who it is for; a provider has no credential, but a signature or a state, and anybody may ask for health.
        answers: the statuses of the plugin's own answer to the author. A path that does not exist has none of them.
        json: the body; ``None``: none.
        text: a body that is not JSON.
        changes: whether a person needs `DashboardPrincipal.may_change`.
        signed_in: whether the author sends it; otherwise nobody does, because that answer tells more.
    """

    method: str
    path: str
    caller: Caller
    answers: frozenset[int]
    json: Any = None
    text: str | None = None
    changes: bool = False
    signed_in: bool = True

    @property
    def sending(self) -> dict[str, Any]:
        """Keyword arguments for the request."""
        if self.text is not None:
            return {"content": self.text, "headers": {"content-type": "text/plain"}}
        return {} if self.json is None else {"json": self.json}


def _route(method: str, path: str, caller: Caller, *answers: int, **more: Any) -> Route:
    return Route(method, path, caller, frozenset(answers), **more)


NOWHERE: Final = "00000000-0000-4000-8000-000000000000"
"""The id of nothing."""
NOT_JSON: Final = "not JSON"

ROUTES: Final = (
    _route("GET", "/v1/webhooks/outbox", "dashboard", 200),
    _route("POST", "/v1/webhooks/outbox/retry", "dashboard", 400, json={}, changes=True),
    _route("POST", "/v1/webhooks/outbox/resend", "dashboard", 415, text=NOT_JSON, changes=True),
    # To the author this would be a 404, which nobody could tell from that of a path that does not exist.
    _route("GET", f"/v1/webhooks/outbox/{NOWHERE}", "dashboard", 401, 403, signed_in=False),
    _route("POST", f"/v1/webhooks/outbox/{NOWHERE}/cancel", "dashboard", 415, text=NOT_JSON, changes=True),
    _route("POST", f"/v1/webhooks/outbox/{NOWHERE}/resend", "dashboard", 415, text=NOT_JSON, changes=True),
    _route("POST", f"/v1/webhooks/outbox/{NOWHERE}/retry", "dashboard", 415, text=NOT_JSON, changes=True),
    # A person is no backend.
    _route("POST", f"/v1/agents/{NOWHERE}/experiences/e/logic-webhook", "backend", 401, 403, json={}),
    _route("GET", "/integrations/chat/install", "dashboard", 302, changes=True),
    _route("GET", "/integrations/chat/callback", "provider", 303),
    _route("GET", "/integrations/chat/connection", "dashboard", 200),
    # The author of a host with one organization would remove what another check has connected.
    _route("DELETE", "/integrations/chat/connection", "dashboard", 401, 403, changes=True, signed_in=False),
    _route("PUT", "/integrations/chat/connection/default-channel", "dashboard", 400, json={}, changes=True),
    _route("POST", "/integrations/chat/send-message", "dashboard", 400, json={}, changes=True),
    _route("GET", "/integrations/chat/channels", "dashboard", 200, 409),
    _route("GET", "/integrations/chat/members", "dashboard", 200, 409),
    _route("POST", "/integrations/chat/events", "provider", 401, json={}),
    _route("POST", "/integrations/nodes/check", "dashboard", 400, json={}),
    _route("POST", "/integrations/nodes/preview", "dashboard", 400, json={}),
    _route("POST", "/integrations/nodes/test", "dashboard", 400, json={}, changes=True),
    _route("GET", "/integrations/health/live", "anybody", 200),
    _route("GET", "/integrations/health/ready", "anybody", 200),
    # 503: the host's settings hold no secret for it.
    _route("POST", "/webhooks/auth", "provider", 401, 503, json={}),
)
