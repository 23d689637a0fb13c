"""The routes that the chat provider sends browsers and events to, the test message, and the router.

An install begins here, comes back and is ended by events. The other routes of the dashboard
are in `connection_routes`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Final
from urllib.parse import urlencode

import msgspec
from litestar import Request, Response, Router, get, post
from litestar.datastructures import Cookie
from litestar.di import NamedDependency, Provide
from litestar.params import FromQuery, JSONBody, QueryParameter
from litestar.response import Redirect
from msgspec import Meta

from flowactions_hookspecs import DashboardPrincipal, Host, ScopeRequest
from flowactions_plugin.chat.app import BASE_PATH, CALLBACK, EVENTS, EVENTS_PATH
from flowactions_plugin.chat.connection_routes import (
    channels,
    choose_channel,
    disconnect,
    members,
    show,
)
from flowactions_plugin.chat.events import CHALLENGE, Acknowledged, Challenge, check_signature, read_event
from flowactions_plugin.chat.failures import ChatRefused
from flowactions_plugin.chat.oauth import FLOW_SECONDS, OAuthFailed
from flowactions_plugin.chat.service import Chat
from flowactions_plugin.clock import system_clock
from flowactions_plugin.errors import ConnectionChanged, NoDefaultChannel, NotConfigured, NotConnected
from flowactions_plugin.host_answers import ask
from flowactions_plugin.http.auth import PRINCIPAL, RouteGuard, read_body, sign_in_url
from flowactions_plugin.http.openapi import RouteRules, openapi_spec, plugin_router
from flowactions_plugin.http.problems import HANDLERS, NO_STORE, Problem
from flowactions_plugin.inbound.requests import EVENT_BYTES, EventAnswer
from flowactions_plugin.inbound.routes import Intake
from flowactions_plugin.storage.database import Database
from flowactions_plugin.telemetry.telemetry import Telemetry

PRIVATE_HEADERS: Final = {**NO_STORE, "Referrer-Policy": "no-referrer"}

CODES: Final[Mapping[type[Exception], str]] = {
    NotConnected: "not_connected",
    NoDefaultChannel: "no_default_channel",
    ConnectionChanged: "changed",
}
"""The problems of what the room raises."""


class InstallUrl(msgspec.Struct):
    """Where to send the browser."""

    url: str


class InstallAnswer(msgspec.Struct):
    """The same for callers that ask for JSON."""

    data: InstallUrl


@get(
    "/install",
    summary="Connect a workspace",
    **openapi_spec(
        "dashboard",
        {
            302: (None, "To the provider's consent page."),
            303: (None, "To the sign-in page of FLOWACTIONS_LOGIN_PATH."),
        },
        "not_configured",
        changes=True,
        navigable=True,
    ),
)
async def install(
    request: Request[Any, Any, Any],
    principal: NamedDependency[DashboardPrincipal],
    chat: NamedDependency[Chat],
    dashboard_url: NamedDependency[str],
) -> Response[Any]:
    """Send the browser to the provider's consent page; asked for JSON, give its address (§5.2, §4.1.1)."""
    started = await chat.installer.start(principal)
    cookie = Cookie(
        key=started.cookie_name,
        value=started.cookie_value,
        max_age=FLOW_SECONDS,
        path="/",
        httponly=True,
        samesite="lax",
        secure=dashboard_url.startswith("https:"),
    )
    if _wants_json(request):
        return Response(InstallAnswer(InstallUrl(started.url)), cookies=[cookie], headers=PRIVATE_HEADERS)
    return Redirect(started.url, status_code=302, cookies=[cookie], headers=PRIVATE_HEADERS)


def _wants_json(request: Request[Any, Any, Any]) -> bool:
    return "application/json" in request.headers.get("accept", "")


@get(
    CALLBACK,
    summary="Where the provider sends the browser back",
    status_code=303,
    **openapi_spec(
        None, {303: (None, "To the dashboard, with the result.")}, "not_configured", "invalid_request"
    ),
)
async def callback(
    request: Request[Any, Any, Any],
    chat: NamedDependency[Chat],
    host: NamedDependency[Host],
    dashboard_url: NamedDependency[str],
    code: FromQuery[str | None] = None,
    signed_state: Annotated[str | None, QueryParameter(name="state")] = None,
    error: FromQuery[str | None] = None,
) -> Redirect:
    """End the install, and send the browser to the dashboard with the result (§4.1.2, §4.1)."""
    outcome = {"chat": "connected"}
    try:
        await chat.installer.finish(
            code=code,
            state=signed_state,
            error=error,
            cookies=request.cookies,
            principal=await ask(host, "dashboard_principal", ScopeRequest(request.scope)),
        )
    except OAuthFailed as exc:
        outcome = {"chat": "error", "reason": exc.reason}
    return Redirect(f"{dashboard_url}?{urlencode(outcome)}", status_code=303, headers=PRIVATE_HEADERS)


@post(
    EVENTS,
    status_code=200,
    summary="Events of the chat provider",
    request_max_body_size=EVENT_BYTES,
    **openapi_spec("chatSignature", {}, "invalid_request", "too_large", "not_configured"),
)
async def events(
    request: Request[Any, Any, Any], chat: NamedDependency[Chat], intake: NamedDependency[Intake]
) -> EventAnswer | Challenge:
    """Take the provider's signed events: an uninstalled app and revoked tokens end the connection (§5.4, §6.2)."""
    # The provider's only way in beside an install (§4.1.4).
    timestamp = request.headers.get("x-slack-request-timestamp")
    signature = request.headers.get("x-slack-signature")
    async with intake.refusing():
        if not chat.signing_secrets:
            raise NotConfigured("Set CHAT_SIGNING_SECRET to take the chat provider's events.")
        body = await read_body(request)
        now = system_clock()
        check_signature(chat.signing_secrets, timestamp, signature, body, now)
        event = read_event(body, now)
    if isinstance(event, Challenge):
        await intake.acknowledge(None, CHALLENGE)
        return event
    if isinstance(event, Acknowledged):
        return await intake.acknowledge(event.event_id, event.event_type)
    async with intake.refusing(event.event_id, event.event_type):
        duplicate = await chat.connections.revoked(event)
    return intake.answer(duplicate=duplicate)


class TestMessage(msgspec.Struct, forbid_unknown_fields=True):
    """The text of a test message."""

    text: Annotated[str, Meta(max_length=4000)]


class TestResult(msgspec.Struct, omit_defaults=True):
    """The result of a test message; ``error`` and ``message`` only if it was refused."""

    ok: bool
    ts: str
    error: str | None = None
    message: str | None = None


class TestAnswer(msgspec.Struct):
    """The answer of a test send (§4.1.3)."""

    data: TestResult


@post(
    "/send-message",
    status_code=200,
    summary="Send a test message to the default channel",
    **openapi_spec(
        "dashboard",
        {},
        "not_connected",
        "no_default_channel",
        "not_configured",
        changes=True,
        body='a JSON object such as {"text": "Hello"}',
    ),
)
async def send_message(
    principal: NamedDependency[DashboardPrincipal], chat: NamedDependency[Chat], data: JSONBody[TestMessage]
) -> TestAnswer:
    """Post to the default channel, which confirms token, scopes and membership (§4.1.3)."""
    if not data.text.strip():
        raise Problem("invalid_request", "Write a text.", [{"path": "text", "message": "must not be empty"}])
    try:
        ts = await chat.messenger.send_test(principal.organization_id, data.text)
    except ChatRefused as refusal:
        return TestAnswer(TestResult(ok=False, ts="", error=refusal.code, message=str(refusal)))
    return TestAnswer(TestResult(ok=True, ts=ts))


def chat_router(
    host: Host,
    guard: RouteGuard,
    chat: Chat | NotConfigured,
    dashboard_url: str,
    login_url: str | None,
    database: Database,
    telemetry: Telemetry,
) -> Router:
    """Return the router of the chat connection; if ``chat`` is an error, every route answers 503.

    An install returns to ``dashboard_url``, and people sign in at ``login_url``, if the host has one.
    """

    async def configured_chat() -> Chat:
        if isinstance(chat, NotConfigured):
            raise NotConfigured(str(chat))  # a new one, because a traceback grows each time that it is raised
        return chat

    def refused(request: Request[Any, Any, Any], exc: Exception) -> Response[Any]:
        return HANDLERS[Problem](request, Problem(CODES[type(exc)], str(exc)))

    def problem(request: Request[Any, Any, Any], exc: Problem) -> Response[Any]:
        is_page = RouteRules.of(request.route_handler).navigable and not _wants_json(request)
        if login_url is not None and exc.code == "unauthorized" and is_page:
            return Redirect(sign_in_url(request, login_url), status_code=303, headers=PRIVATE_HEADERS)
        return HANDLERS[Problem](request, exc)

    intake = Intake(database, telemetry, "chat", "flowactions.chat", EVENTS_PATH)

    return plugin_router(
        BASE_PATH,
        *(install, callback, show, disconnect, choose_channel, send_message, channels, members, events),
        dependencies={
            "principal": PRINCIPAL,
            "chat": Provide(configured_chat),
            "host": host,
            "dashboard_url": dashboard_url,
            "intake": intake,
        },
        guards=[guard.guard()],
        errors={**HANDLERS, Problem: problem, **dict.fromkeys(CODES, refused)},
        tags=["Chat connection"],
    )
