"""All routes of the plugin, and requests and bodies that they refuse."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from litestar.routes import HTTPRoute

from flowactions_hookspecs import (
    FlowActions,
)
from flowactions_plugin.http.openapi import RouteRules
from tests.support import SmallHost, app_with_routes

JSON = {"content-type": "application/json"}
ID = "00000000-0000-7000-8000-000000000000"
PAGES = "/integrations/webhooks"
HEALTH = ("/integrations/health/live", "/integrations/health/ready")
LOGIC = "/v1/agents/agent-1/experiences/e1/logic-webhook"
REPLAY = "/v1/webhooks/outbox/retry"
CHANNEL = "/integrations/chat/connection/default-channel"
SEND = "/integrations/chat/send-message"
WITH_BODY = [("POST", LOGIC), ("POST", REPLAY), ("PUT", CHANNEL), ("POST", SEND)]


class Route(NamedTuple):
    method: str
    path: str
    rules: RouteRules


def all_routes() -> Iterator[Route]:
    """Find every route that the plugin contributes, the operator pages apart, which have rules of their own."""
    app = app_with_routes(FlowActions.load(SmallHost()))
    for route in app.routes:
        if isinstance(route, HTTPRoute) and not route.path.startswith(PAGES):
            path = route.path.replace("{delivery_id:str}", ID).replace("{agent_id:str}", "agent-1")
            for handler in route.route_handlers:
                for method in handler.http_methods:
                    if method != "OPTIONS":
                        filled = path.replace("{experience_id:str}", "e1")
                        yield Route(str(getattr(method, "value", method)), filled, RouteRules.of(handler))


ROUTES = sorted(all_routes(), key=lambda each: (each.path, each.method))


CHANGING = [each for each in ROUTES if each.rules.caller == "dashboard" and each.rules.changes]


def routes_of(*callers: str) -> list[Route]:
    return [each for each in ROUTES if each.rules.caller in callers]


STRANGE_REQUESTS: list[dict[str, Any]] = [
    {"content": b"{", "headers": JSON},
    {"content": b"\xff\xfe", "headers": JSON},
    {"content": b"[" * 60_000, "headers": JSON},
    {"content": b"x" * 11_000_000, "headers": JSON},
    {"content": b"a=b", "headers": {"content-type": "application/x-www-form-urlencoded"}},
    {"params": {"limit": "x", "nonsense": "1"}},
    {"headers": {"sec-fetch-site": "cross-site"}},
    {},
]

STRANGE_JSON = [
    b"\xff",
    b'{"\xff":1}',
    b"\xef\xbb\xbf{}",
    b"{",
    b"{} {}",
    b"[]",
    b"null",
    b'"x"',
    b"\x00",
    b'{"x":"\x00"}',
    b'{"x":"\\ud800"}',
    b'{"x":["\\udc00 and more text behind it"]}',
    b'{"\\ud800":1}',
    b'{"x":1,"x":1}',
    b'{"y":{"x":1,"x":2}}',
    b'{"x":NaN}',
    b'{"x":-Infinity}',
    b'{"x":1e400}',
    b'{"x":' + b"9" * 20_000 + b"}",
    b"[" * 60_000,
    b'{"x":' * 10_000,
    '{"x":1}'.encode("utf-16"),
]

VALID: dict[str, dict[str, Any]] = {
    LOGIC: {
        "idempotencyKey": "k",
        "source": "experience_trigger",
        "actionIndex": 0,
        "triggerRowId": "t",
    },
    REPLAY: {"all": True},
    CHANNEL: {"channelId": "C0GENERAL"},
    SEND: {"text": "hello"},
}
