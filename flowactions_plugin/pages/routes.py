"""The routers of the operator pages, with their sessions, style and script.

The host's OpenAPI document does not list them: they are for people.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final

from litestar import Request, Response, Router, get, post
from litestar.datastructures import Cookie
from litestar.di import NamedDependency, Provide
from litestar.params import FromPath

from flowactions_plugin.http.openapi import OPEN, plugin_router
from flowactions_plugin.http.problems import NO_STORE, Problem
from flowactions_plugin.pages.actions import (
    begin_action,
    list_actions,
    preview_action,
    show_action,
    stop_action,
)
from flowactions_plugin.pages.context import PageContext, Visit
from flowactions_plugin.pages.deliveries import list_deliveries, show_delivery
from flowactions_plugin.pages.finding import find
from flowactions_plugin.pages.guard import FOR_EVERYBODY, must_run, page_guard
from flowactions_plugin.pages.rendering import ROOT, page_handlers
from flowactions_plugin.pages.sessions import COOKIE, SESSION_SECONDS, TOKEN_BYTES
from flowactions_plugin.pages.watching import (
    list_destinations,
    pause_destination,
    resume_destination,
    show_audit,
    show_connections,
    show_inbound,
    show_overview,
)

FOREVER: Final = "public, max-age=31536000, immutable"
"""The name of a file changes with its content."""


@post("/session", status_code=204)
async def begin_session(
    request: Request[Any, Any, Any], context: NamedDependency[PageContext]
) -> Response[None]:
    """Set the session's cookie from the bearer token of this request, for dashboards that have no cookie (§5.1).

    A page of another site cannot send the token, so nothing else is asked. The cookie has no ``Path``: a browser then
    takes the folder of this route, where the pages are, under whatever prefix it sees.
    """
    scheme, _, token = request.headers.get("authorization", "").partition(" ")
    token = token.strip()
    challenge = {"WWW-Authenticate": 'Bearer realm="dashboard"'}
    if scheme.lower() != "bearer" or not token:
        raise Problem("unauthorized", "Send the dashboard's bearer token.", headers=challenge)
    if len(token) > TOKEN_BYTES:
        raise Problem(
            "invalid_request",
            f"The token is longer than a cookie can hold ({TOKEN_BYTES} characters): use a shorter one, or a cookie of"
            " the host's own.",
        )
    if await context.find_viewer(request) is None:
        raise Problem("unauthorized", "The host does not know this token.", headers=challenge)
    cookie = _cookie(request, context, context.sessions.seal(token), SESSION_SECONDS)
    return Response(None, status_code=204, cookies=[cookie], headers=NO_STORE)


@post("/sign-out", opt=FOR_EVERYBODY)
async def end_session(request: Request[Any, Any, Any], visit: NamedDependency[Visit]) -> Response[Any]:
    """End the session: its cookie expires, with the same attributes and in the same folder as `begin_session` has set it."""
    answer = visit.redirect("")
    answer.set_cookie(_cookie(request, visit.context, "", 0))
    return answer


def _cookie(request: Request[Any, Any, Any], context: PageContext, value: str, seconds: int) -> Cookie:
    """Return the session's cookie, to be set or to expire: browsers match one with the other by these attributes."""
    return Cookie(
        key=COOKIE,
        value=value,
        path=None,  # type: ignore[arg-type]
        max_age=seconds,
        httponly=True,
        samesite="strict",
        secure=context.secure or request.scope["scheme"] == "https",
    )


@get("/static/{name:str}", opt=OPEN)
async def static_file(
    request: Request[Any, Any, Any], context: NamedDependency[PageContext], name: FromPath[str]
) -> Response[bytes]:
    """Serve the style or the script of the pages, which hold nothing of anybody's."""
    file = context.renderer.files.get(name)
    if file is None:
        raise Problem("not_found", "No file has this name.")
    content, media_type = file
    headers = {"cache-control": FOREVER, "etag": f'"{name}"', "X-Content-Type-Options": "nosniff"}
    if request.headers.get("if-none-match") == headers["etag"]:
        return Response(b"", status_code=304, media_type=media_type, headers=headers)
    return Response(content, media_type=media_type, headers=headers)


PAGES = (
    show_overview,
    find,
    list_deliveries,
    show_delivery,
    list_actions,
    preview_action,
    begin_action,
    show_action,
    stop_action,
    list_destinations,
    pause_destination,
    resume_destination,
    show_connections,
    show_inbound,
    show_audit,
    end_session,
)
"""All handlers that the guard stands before."""


def pages_routers(
    context: PageContext, is_running: Callable[[], bool], *, origins: Sequence[str], login_url: str | None
) -> Sequence[Router]:
    """Build the routers of the pages.

    Args:
        context: what the pages use.
        is_running: whether the lifespan is open.
        origins: at which browsers reach the routes, beside that of a request's ``Host``.
        login_url: where people sign in; ``None``: the host has said nothing.
    """
    dependencies = {"context": context, "visit": Provide(Visit, sync_to_thread=False)}
    router = partial(plugin_router, ROOT, dependencies=dependencies, include_in_schema=False)
    guard = page_guard(context.find_viewer, origins, is_running)
    return [
        router(*PAGES, guards=[guard], errors=page_handlers(context.renderer, login_url)),
        router(begin_session, guards=[must_run(is_running)]),
        router(static_file),
    ]
