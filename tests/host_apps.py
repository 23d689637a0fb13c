"""Requests of every kind to the plugin's routes, and how their answers differ between two apps of a host."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple, TypeAlias
from uuid import uuid4

import httpx

from flowactions_conformance.chat_provider.app import SIGNING_SECRET
from flowactions_conformance.chat_provider.events import signature
from tests.auth_provider import signed

AUTH_SECRET = "whsec_c2VjcmV0LXNlY3JldC1zZWNyZXQ="
LOGIC = "/v1/agents/agent-1/experiences/e1/logic-webhook"
FORM = {"content-type": "application/x-www-form-urlencoded", "origin": "http://host"}
JSON = {"content-type": "application/json"}
VARIES = frozenset({"date", "content-length", "set-cookie", "location", "vary"})
"""Headers that differ between two answers of one app, or that a host may add a value to."""

Answers: TypeAlias = dict[str, tuple[httpx.Response, bool]]


class Asked(NamedTuple):
    """A request, the status of its answer where the host changes nothing, and whether its answer is the same each time."""

    name: str
    status: int
    method: str
    path: str
    headers: Mapping[str, str] = MappingProxyType({})
    content: bytes = b""
    exact: bool = True


def signed_requests() -> list[Asked]:
    """Requests of servers: they have a signature or an access token, and no session of the host's."""
    challenge = json.dumps({"type": "url_verification", "challenge": "c" * 200}).encode()
    stamp = int(time.time())
    chat = {
        **JSON,
        "x-slack-request-timestamp": str(stamp),
        "x-slack-signature": signature(SIGNING_SECRET, stamp, challenge),
    }
    event = json.dumps({"type": "user.created", "data": {"id": "user_1"}}).encode()
    auth = {**JSON, **signed(event, AUTH_SECRET, uuid4().hex)}
    call = {
        "source": "experience_trigger",
        "actionIndex": 0,
        "triggerRowId": "t",
        "idempotencyKey": uuid4().hex,
    }
    token = {"authorization": "Bearer of-a-backend"}
    return [
        Asked("chat event", 200, "POST", "/integrations/chat/events", chat, challenge),
        Asked("auth event", 200, "POST", "/webhooks/auth", auth, event),
        Asked("logic webhook", 202, "POST", LOGIC, {**JSON, **token}, json.dumps(call).encode(), exact=False),
    ]


def public_requests() -> list[Asked]:
    """Requests that need no credential."""
    return [
        Asked("live", 200, "GET", "/integrations/health/live"),
        Asked("ready", 200, "GET", "/integrations/health/ready"),
        Asked("callback", 303, "GET", "/integrations/chat/callback?state=wrong"),
    ]


def dashboard_requests() -> list[Asked]:
    """Requests of people who are signed in, and of the operator pages."""
    outbox = "/v1/webhooks/outbox"
    draft = {"agentId": "agent-1", "node": {"id": "n", "type": "webhook", "config": {}}}
    return [
        Asked("list", 200, "GET", f"{outbox}?limit=1", exact=False),
        Asked("retry", 202, "POST", f"{outbox}/retry", JSON, b'{"all":true}', exact=False),
        Asked("wrong query", 400, "GET", f"{outbox}?limit=many"),
        Asked("unknown delivery", 404, "GET", f"{outbox}/00000000-0000-7000-8000-000000000000"),
        Asked("wrong body", 400, "POST", f"{outbox}/retry", JSON, b'{"nonsense":1}'),
        Asked("large body", 413, "POST", f"{outbox}/retry", JSON, b'"' + b"x" * 70_000 + b'"'),
        Asked("no JSON", 415, "POST", f"{outbox}/retry", {"content-type": "text/plain"}, b"x"),
        Asked("connection", 200, "GET", "/integrations/chat/connection"),
        Asked("channels", 200, "GET", "/integrations/chat/channels"),
        Asked("install", 302, "GET", "/integrations/chat/install"),
        Asked("check", 200, "POST", "/integrations/nodes/check", JSON, json.dumps(draft).encode()),
        Asked("page", 200, "GET", "/integrations/webhooks/deliveries?status=dead"),
        Asked(
            "unknown page", 404, "GET", "/integrations/webhooks/deliveries/00000000-0000-7000-8000-000000000000"
        ),
        Asked("form", 303, "POST", "/integrations/webhooks/sign-out", FORM, b"x=1"),
        Asked("file", 404, "GET", "/integrations/webhooks/static/none"),
    ]


def all_requests() -> list[Asked]:
    return [*signed_requests(), *public_requests(), *dashboard_requests()]


async def answers(
    app: Any, asked: Callable[[], list[Asked]] = all_requests, host: str = "http://host"
) -> Answers:
    """Ask an app; each answer's status, headers and body, by the name of the request."""
    transport = httpx.ASGITransport(app=app, raise_app_exceptions=False)
    found = {}
    async with httpx.AsyncClient(transport=transport, base_url=host) as client:
        for each in asked():
            answer = await client.request(each.method, each.path, headers=each.headers, content=each.content)
            found[each.name] = answer, each.exact
    return found


def differences(one: Answers, other: Answers) -> list[str]:
    """Tell in what the first answers differ; headers that they add do not count."""
    return [
        f"{name}: {difference}"
        for name, (answer, exact) in one.items()
        for difference in _differences(answer, other[name][0], exact=exact)
    ]


def _differences(one: httpx.Response, other: httpx.Response, *, exact: bool) -> Iterator[str]:
    if one.status_code != other.status_code:
        yield f"{one.status_code} {one.text[:200]}, not {other.status_code}"
        return
    for name in {*other.headers} - VARIES:
        values, expected = one.headers.get_list(name), other.headers.get_list(name)
        if values != expected:
            yield f"{name} is {values}, not {expected}"
    if exact and one.content != other.content:
        yield f"it is {one.text[:200]}"
