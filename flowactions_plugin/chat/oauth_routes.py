"""The routes of an OAuth install: to the provider's consent page and back (§4.1.1, §4.1.2, §5.2)."""

from __future__ import annotations

from typing import Annotated, Any, Final
from urllib.parse import urlencode

import msgspec
from litestar import Request, Response, get
from litestar.datastructures import Cookie
from litestar.di import NamedDependency
from litestar.params import FromQuery, QueryParameter
from litestar.response import Redirect

from flowactions_hookspecs import DashboardPrincipal, Host, ScopeRequest
from flowactions_plugin.chat.app import CALLBACK
from flowactions_plugin.chat.oauth import FLOW_SECONDS, OAuthFailed
from flowactions_plugin.chat.service import Chat
from flowactions_plugin.host_answers import ask
from flowactions_plugin.http.openapi import openapi_spec

PRIVATE_HEADERS: Final = {"Cache-Control": "no-store", "Referrer-Policy": "no-referrer"}


class InstallUrl(msgspec.Struct):
    """Where to send the browser."""

    url: str


class InstallAnswer(msgspec.Struct):
    """Where to send the browser, for callers that ask for JSON."""

    data: InstallUrl


@get(
    "/install",
    summary="Connect a workspace",
    **openapi_spec(
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
    if "application/json" in request.headers.get("accept", ""):
        return Response(InstallAnswer(InstallUrl(started.url)), cookies=[cookie], headers=PRIVATE_HEADERS)
    return Redirect(started.url, status_code=302, cookies=[cookie], headers=PRIVATE_HEADERS)


@get(
    CALLBACK,
    summary="Where the provider sends the browser back",
    status_code=303,
    **openapi_spec(
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
    """End the install, and send the browser to the dashboard with what came of it (§4.1.2)."""
    outcome = {"chat": "connected"}
    try:
        await chat.installer.finish(
            code=code,
            state=signed_state,
            error=error,
            cookies=request.cookies,
            principal=await ask(
                host,
                "dashboard_principal",
                DashboardPrincipal | None,
                ScopeRequest(request.scope),
            ),
        )
    except OAuthFailed as exc:
        outcome = {"chat": "error", "reason": exc.reason}
    return Redirect(f"{dashboard_url}?{urlencode(outcome)}", status_code=303, headers=PRIVATE_HEADERS)
