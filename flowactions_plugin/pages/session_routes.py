"""Begins and ends a session of the pages, and serves their style and script."""

from __future__ import annotations

from typing import Any, Final

from litestar import Request, Response, get, post
from litestar.datastructures import Cookie
from litestar.di import NamedDependency
from litestar.params import FromPath

from flowactions_plugin.http.problems import NO_STORE, Problem
from flowactions_plugin.pages.guard import FOR_EVERYBODY
from flowactions_plugin.pages.rendering import Renderer, redirect
from flowactions_plugin.pages.sessions import COOKIE, SESSION_SECONDS, TOKEN_BYTES, Sessions
from flowactions_plugin.pages.viewers import Viewers

FOREVER: Final = "public, max-age=31536000, immutable"
"""The name of a file changes with its content."""


@post("/session", status_code=204, include_in_schema=False)
async def begin_session(
    request: Request[Any, Any, Any],
    sessions: NamedDependency[Sessions],
    viewers: NamedDependency[Viewers],
    secure: NamedDependency[bool],
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
    if await viewers.find(request) is None:
        raise Problem("unauthorized", "The host does not know this token.", headers=challenge)
    cookie = _cookie(request, sessions.seal(token), SESSION_SECONDS, secure=secure)
    return Response(None, status_code=204, cookies=[cookie], headers=NO_STORE)


@post("/sign-out", opt=FOR_EVERYBODY, include_in_schema=False)
async def end_session(request: Request[Any, Any, Any], secure: NamedDependency[bool]) -> Response[Any]:
    """End the session: its cookie expires, with the same attributes and in the same folder as `begin_session` has set it."""
    answer = redirect(request, "")
    answer.set_cookie(_cookie(request, "", 0, secure=secure))
    return answer


def _cookie(request: Request[Any, Any, Any], value: str, seconds: int, *, secure: bool) -> Cookie:
    """Return the session's cookie, to be set or to expire: browsers match one with the other by these attributes."""
    return Cookie(
        key=COOKIE,
        value=value,
        path=None,  # type: ignore[arg-type]
        max_age=seconds,
        httponly=True,
        samesite="strict",
        secure=secure or request.scope["scheme"] == "https",
    )


@get("/static/{name:str}", include_in_schema=False)
async def static_file(
    request: Request[Any, Any, Any], renderer: NamedDependency[Renderer], name: FromPath[str]
) -> Response[bytes]:
    """Serve the style or the script of the pages, which hold nothing of anybody's."""
    file = renderer.files.get(name)
    if file is None:
        raise Problem("not_found", "There is no such file.")
    headers = {"Cache-Control": FOREVER, "ETag": f'"{name}"', "X-Content-Type-Options": "nosniff"}
    if request.headers.get("if-none-match") == headers["ETag"]:
        return Response(b"", status_code=304, media_type=file.media_type, headers=headers)
    return Response(file.content, media_type=file.media_type, headers=headers)
