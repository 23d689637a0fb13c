"""The router of the chat connection, and the test send (§4.1.3)."""

from __future__ import annotations

from typing import Annotated

import msgspec
from litestar import Router, post
from litestar.di import NamedDependency, Provide
from litestar.params import JSONBody
from msgspec import Meta

from flowactions_hookspecs import DashboardPrincipal, Host
from flowactions_plugin.chat.app import BASE_PATH, EVENTS_PATH
from flowactions_plugin.chat.connection_routes import choose_channel, disconnect, show
from flowactions_plugin.chat.event_routes import events
from flowactions_plugin.chat.failures import ChatRefused
from flowactions_plugin.chat.oauth_routes import callback, install
from flowactions_plugin.chat.picker_routes import channels, members
from flowactions_plugin.chat.service import Chat
from flowactions_plugin.errors import NoDefaultChannel, NotConfigured, NotConnected
from flowactions_plugin.http.auth import BODY_BYTES, PRINCIPAL, RouteGuard
from flowactions_plugin.http.openapi import BodyRule, openapi_spec, with_description
from flowactions_plugin.http.problems import HANDLERS, Problem
from flowactions_plugin.inbound.routes import Intake
from flowactions_plugin.telemetry.telemetry import Telemetry


class TestMessage(msgspec.Struct, forbid_unknown_fields=True):
    """The text of a test message."""

    text: Annotated[str, Meta(max_length=4000)]


class TestResult(msgspec.Struct, omit_defaults=True):
    """What came of a test message; ``error`` and ``message`` only when it was refused."""

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
        body=BodyRule(TestMessage, 'a JSON object such as {"text": "Hello"}'),
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
    except NotConnected as exc:
        raise Problem("not_connected", str(exc)) from None
    except NoDefaultChannel as exc:
        raise Problem("no_default_channel", str(exc)) from None
    except ChatRefused as refusal:
        return TestAnswer(TestResult(ok=False, ts="", error=refusal.code, message=str(refusal)))
    return TestAnswer(TestResult(ok=True, ts=ts))


def chat_router(
    host: Host, guard: RouteGuard, chat: Chat | NotConfigured, dashboard_url: str, telemetry: Telemetry
) -> Router:
    """Return the router of the chat connection.

    Args:
        host: lists the agents that use the connection, and authenticates the OAuth callback.
        guard: checks requests.
        chat: the chat part, or the error because of which every route answers 503.
        dashboard_url: the page to which an install returns.
        telemetry: counts the provider's events.
    """

    async def configured_chat() -> Chat:
        if isinstance(chat, NotConfigured):
            raise NotConfigured(str(chat))  # a new one, because a traceback grows each time that it is raised
        return chat

    intake = Intake(telemetry, "chat", "flowactions.chat", EVENTS_PATH)

    return Router(
        BASE_PATH,
        route_handlers=with_description(
            install,
            callback,
            show,
            disconnect,
            choose_channel,
            send_message,
            channels,
            members,
            events,
        ),
        dependencies={
            "principal": PRINCIPAL,
            "chat": Provide(configured_chat),
            "host": Provide(lambda: host, sync_to_thread=False),
            "dashboard_url": Provide(lambda: dashboard_url, sync_to_thread=False),
            "intake": Provide(lambda: intake, sync_to_thread=False),
        },
        guards=[guard.guard()],
        request_max_body_size=BODY_BYTES,
        exception_handlers=HANDLERS,
        tags=["Chat connection"],
    )
