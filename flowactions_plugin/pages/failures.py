"""Errors of the pages, as pages: with the status, title and advice that the JSON routes have for them (§7.3)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from urllib.parse import quote

from litestar import Request, Response
from litestar.response import Redirect
from litestar.types import ExceptionHandlersMap

from flowactions_plugin.errors import ActionForbidden, ActionInvalid, FilterInvalid, TooManyPauses
from flowactions_plugin.http.problems import HANDLERS, Problem
from flowactions_plugin.pages.guard import SignInNeeded
from flowactions_plugin.pages.rendering import HEADERS, Renderer

_KEPT = frozenset({"retry-after", "www-authenticate", "allow"})

_CODES = {ActionForbidden: "forbidden", TooManyPauses: "too_many_pauses"}
"""Errors of what people ask for, beside those of its form."""


def page_handlers(renderer: Renderer, login_url: str | None) -> ExceptionHandlersMap:
    """Return the exception handlers of the pages' router.

    Args:
        renderer: makes the pages.
        login_url: where people sign in; ``None``: the host has said nothing.
    """

    def as_page(handler: Any) -> Callable[[Request[Any, Any, Any], Any], Response[Any]]:
        def answer(request: Request[Any, Any, Any], exc: Any) -> Response[Any]:
            answer: Response[dict[str, Any]] = handler(request, exc)
            kept = {name: value for name, value in answer.headers.items() if name.lower() in _KEPT}
            return renderer.render(
                request, "problem.html", status=answer.status_code or 500, headers=kept, problem=answer.content
            )

        return answer

    def sign_in(request: Request[Any, Any, Any], _: SignInNeeded) -> Response[Any]:
        if login_url is not None and request.method == "GET":
            # The path only, with one slash in front: it leads nowhere else, whatever was asked for.
            path = "/" + request.scope["path"].lstrip("/")
            query = request.scope.get("query_string", b"").decode("latin-1")
            back = quote(f"{path}?{query}" if query else path, safe="")
            return Redirect(f"{login_url}?next={back}", status_code=303, headers=HEADERS)
        needed = Problem(
            "unauthorized",
            "Sign in to the dashboard, then open this page again.",
            headers={"WWW-Authenticate": 'Bearer realm="dashboard"'},
        )
        return as_page(HANDLERS[Problem])(request, needed)

    def unusable(_: Request[Any, Any, Any], exc: FilterInvalid | ActionInvalid) -> Response[Any]:
        code = next((code for kind, code in _CODES.items() if isinstance(exc, kind)), "invalid_request")
        return HANDLERS[Problem](_, Problem(code, str(exc)))

    handlers = {**HANDLERS, FilterInvalid: unusable, ActionInvalid: unusable}
    return {**{kind: as_page(handler) for kind, handler in handlers.items()}, SignInNeeded: sign_in}
