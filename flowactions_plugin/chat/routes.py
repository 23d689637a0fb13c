"""The chat connection for the dashboard: install, card, test send (§4.1)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Final, cast
from urllib.parse import urlencode

import msgspec
from litestar import Request, Response, Router, delete, get, post, put
from litestar.datastructures import Cookie
from litestar.di import NamedDependency, Provide
from litestar.params import FromQuery, JSONBody, QueryParameter
from litestar.response import Redirect
from msgspec import Meta

from flowactions_hookspecs import Agent, DashboardPrincipal, Host, ScopeRequest
from flowactions_plugin.chat.connection import (
    Connections,
    NoDefaultChannel,
    NotConnected,
)
from flowactions_plugin.chat.event_routes import events
from flowactions_plugin.chat.failures import ChatRefused, advice
from flowactions_plugin.chat.oauth import BASE_PATH, FLOW_SECONDS, OAuthFailed
from flowactions_plugin.chat.picker_routes import channels, members
from flowactions_plugin.chat.scopes import read_scopes
from flowactions_plugin.chat.service import Chat
from flowactions_plugin.chat.watch import missing_scopes
from flowactions_plugin.clock import to_iso
from flowactions_plugin.errors import NotConfigured
from flowactions_plugin.host_answers import ask
from flowactions_plugin.http.auth import BODY_BYTES, PRINCIPAL, RouteGuard
from flowactions_plugin.http.openapi import BodyRule, described, documented
from flowactions_plugin.http.problems import HANDLERS, Problem
from flowactions_plugin.http.refusals import RefusalLog

NODE_TYPE: Final = "chat_message"
PRIVATE_HEADERS: Final = {"Cache-Control": "no-store", "Referrer-Policy": "no-referrer"}


class Named(msgspec.Struct):
    """Something with an id and a name."""

    id: str
    name: str


class Card(msgspec.Struct, rename="camel", kw_only=True):
    """The connection card (§2.2). It never holds the token.

    Attributes:
        status: ``active``; ``revoked`` by the workspace; or ``unusable`` as it is stored here.
        status_reason: a code, ``None`` when the connection can be used.
        advice: what a person should do, ``None`` when there is nothing to do.
        scopes: permissions that the workspace has granted, as far as the provider says.
        missing_scopes: permissions that it has not granted, or that the provider refused a call for.
    """

    status: str
    status_reason: str | None
    advice: str | None
    workspace: Named
    bot_user_id: str
    scopes: list[str]
    missing_scopes: list[str]
    installed_by: Named
    installed_at: str
    default_channel: str | None
    agents: list[Named]


class CardAnswer(msgspec.Struct):
    """The card, or nothing when no workspace is connected."""

    data: Card | None


class InstallUrl(msgspec.Struct):
    """Where to send the browser."""

    url: str


class InstallAnswer(msgspec.Struct):
    """Where to send the browser, for callers that ask for JSON."""

    data: InstallUrl


class DefaultChannel(msgspec.Struct, rename="camel", forbid_unknown_fields=True):
    """The channel that test messages go to."""

    # In Python, $ alone would let a line feed pass.
    channel_id: Annotated[str, Meta(pattern=r"^[A-Za-z0-9_-]{1,100}$(?!\n)")]


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
    """The answer of a test send (§4.1)."""

    data: TestResult


@get(
    "/install",
    summary="Connect a workspace",
    **described(
        "dashboard",
        {302: (None, "To the provider's consent page.")},
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
    """Send the browser to the provider's consent page; asked for JSON, give its address (§5.2)."""
    started = await chat.install.start(principal)
    cookie = Cookie(
        key=started.cookie_name,
        value=started.cookie_value,
        max_age=FLOW_SECONDS,
        path="/",
        httponly=True,
        samesite="lax",
        secure=dashboard_url.startswith("https:"),
    )
    if "application/json" in request.headers.get("accept", ""):
        return Response(InstallAnswer(InstallUrl(started.url)), cookies=[cookie], headers=PRIVATE_HEADERS)
    return Redirect(started.url, status_code=302, cookies=[cookie], headers=PRIVATE_HEADERS)


@get(
    "/callback",
    summary="Where the provider sends the browser back",
    status_code=303,
    **described(
        None, {303: (None, "To the dashboard, with what came of it.")}, "not_configured", "invalid_request"
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
    """End the install, and send the browser to the dashboard with what came of it (§4.1)."""
    outcome = {"chat": "connected"}
    try:
        await chat.install.finish(
            code=code,
            state=signed_state,
            error=error,
            cookies=request.cookies,
            principal=await ask(
                host,
                "dashboard_principal",
                DashboardPrincipal | None,
                ScopeRequest(cast("dict[str, Any]", request.scope)),
            ),
        )
    except OAuthFailed as exc:
        outcome = {"chat": "error", "reason": exc.reason}
    return Redirect(f"{dashboard_url}?{urlencode(outcome)}", status_code=303, headers=PRIVATE_HEADERS)


@get(
    "/connection",
    summary="Show the connection",
    **described("dashboard", {}, "not_configured"),
)
async def show(
    principal: NamedDependency[DashboardPrincipal], chat: NamedDependency[Chat], host: NamedDependency[Host]
) -> CardAnswer:
    """Show the organization's workspace, who connected it, and the agents that use it (§2.2)."""
    return await _card(host, chat.connections, principal.organization_id)


@delete(
    "/connection",
    summary="Disconnect the workspace",
    **described("dashboard", {}, "not_configured", changes=True),
)
async def disconnect(principal: NamedDependency[DashboardPrincipal], chat: NamedDependency[Chat]) -> None:
    """Revoke the token at the provider and forget the connection."""
    await chat.connections.disconnect(principal.organization_id)


@put(
    "/connection/default-channel",
    summary="Choose the channel for test messages",
    **described(
        "dashboard",
        {},
        "not_connected",
        "not_configured",
        changes=True,
        body=BodyRule(DefaultChannel, 'a JSON object such as {"channelId": "C0123456789"}'),
    ),
)
async def choose_channel(
    principal: NamedDependency[DashboardPrincipal],
    chat: NamedDependency[Chat],
    host: NamedDependency[Host],
    data: JSONBody[DefaultChannel],
) -> CardAnswer:
    """Set the default channel, to which test messages are posted."""
    try:
        await chat.connections.set_default_channel(principal.organization_id, data.channel_id)
    except NotConnected as exc:
        raise Problem("not_connected", str(exc)) from None
    return await _card(host, chat.connections, principal.organization_id)


@post(
    "/send-message",
    status_code=200,
    summary="Send a test message to the default channel",
    **described(
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
    """Post to the default channel, which confirms token, scopes and membership (§4.1)."""
    if not data.text.strip():
        raise Problem("invalid_request", "Write a text.", [{"path": "text", "message": "must not be empty"}])
    try:
        ts = await chat.connections.test(principal.organization_id, data.text)
    except NotConnected as exc:
        raise Problem("not_connected", str(exc)) from None
    except NoDefaultChannel as exc:
        raise Problem("no_default_channel", str(exc)) from None
    except ChatRefused as refusal:
        return TestAnswer(TestResult(ok=False, ts="", error=refusal.code, message=str(refusal)))
    return TestAnswer(TestResult(ok=True, ts=ts))


def chat_router(host: Host, guard: RouteGuard, chat: Chat | NotConfigured, dashboard_url: str) -> Router:
    """Make the router of the chat connection.

    Args:
        host: tells which agents use the connection, and who comes back from the provider.
        guard: decides who may call.
        chat: the chat part, or why there is none; then every route answers 503.
        dashboard_url: the page on which an install ends.
    """

    async def any_chat() -> Chat:
        if isinstance(chat, NotConfigured):
            raise NotConfigured(str(chat))  # anew: one that is raised again and again would grow
        return chat

    refusals = RefusalLog("flowactions.chat", f"POST {BASE_PATH}/events")

    return Router(
        BASE_PATH,
        route_handlers=documented(
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
            "chat": Provide(any_chat),
            "host": Provide(lambda: host, sync_to_thread=False),
            "dashboard_url": Provide(lambda: dashboard_url, sync_to_thread=False),
            "refusals": Provide(lambda: refusals, sync_to_thread=False),
        },
        guards=[guard.guard()],
        request_max_body_size=BODY_BYTES,
        exception_handlers=HANDLERS,
        tags=["Chat connection"],
    )


async def _card(host: Host, connections: Connections, organization_id: str) -> CardAnswer:
    stored = await connections.get(organization_id)
    if stored is None:
        return CardAnswer(None)
    agents = await ask(host, "agents_using", Sequence[Agent], organization_id, NODE_TYPE)
    missing = list(missing_scopes(stored))
    scopes = [scope for scope in read_scopes(stored.scopes) if scope not in missing]
    reason = connections.reason(stored)
    hint = advice(reason) if reason else advice("missing_scope") if missing else None
    return CardAnswer(
        Card(
            status="active" if reason is None else "revoked" if stored.status == "revoked" else "unusable",
            status_reason=reason,
            advice=hint,
            workspace=Named(stored.team_id, stored.team_name),
            bot_user_id=stored.bot_user_id,
            scopes=scopes,
            missing_scopes=missing,
            installed_by=Named(stored.installed_by_id, stored.installed_by_name),
            installed_at=to_iso(stored.installed_at),
            default_channel=stored.default_channel,
            agents=[_named(agent) for agent in agents],
        )
    )


def _named(agent: Agent) -> Named:
    return Named(agent.id, agent.name)
