"""Errors of the routes as RFC 9457 problem details."""

from __future__ import annotations

import logging
from typing import Any, Final

from litestar import Request, Response
from litestar.exceptions import HTTPException, ValidationException
from litestar.types import ExceptionHandlersMap

from flowactions_hookspecs import FlowActionsError
from flowactions_plugin.errors import NotConfigured, StorageUnavailable

log = logging.getLogger("flowactions.http")

MEDIA_TYPE: Final = "application/problem+json"

TITLES: Final = {
    "unauthorized": (401, "Sign in first"),
    "not_found": (404, "Not found"),
    "invalid_request": (400, "The request cannot be used"),
    "unknown_action": (400, "There is no such action"),
    "blocked_url": (400, "The action's URL is not allowed"),
    "body_too_large": (400, "The webhook's body is too large"),
    "headers_too_large": (400, "The action's headers are too large"),
    "too_large": (413, "The body is too large"),
    "rate_limited": (429, "Too many calls"),
    "not_connected": (409, "No chat workspace is connected"),
    "no_default_channel": (409, "The connection has no default channel"),
    "chat_refused": (502, "The chat provider refused"),
    "not_configured": (503, "A setting is missing"),
    "storage_unavailable": (503, "The database did not answer"),
    "internal_error": (500, "Something went wrong here"),
}
"""Stable code → status and title of its problem."""


class Problem(FlowActionsError):
    """An answer other than success.

    Args:
        code: one of `TITLES`.
        detail: what is wrong here and what to do.
        errors: for validation, the fields: ``{"path", "message"}``.
        headers: further response headers.
    """

    def __init__(
        self,
        code: str,
        detail: str,
        errors: list[dict[str, str]] | None = None,
        headers: dict[str, str] | None = None,
    ) -> None:
        super().__init__(detail)
        self.code = code
        self.detail = detail
        self.errors = errors
        self.headers = headers


def _answer(problem: Problem) -> Response[dict[str, Any]]:
    status, title = TITLES[problem.code]
    body: dict[str, Any] = {
        "type": "about:blank",
        "title": title,
        "status": status,
        "detail": problem.detail,
        "code": problem.code,
    }
    if problem.errors:
        body["errors"] = problem.errors
    return Response(body, status_code=status, media_type=MEDIA_TYPE, headers=problem.headers)


def _on_problem(_: Request[Any, Any, Any], exc: Problem) -> Response[dict[str, Any]]:
    return _answer(exc)


def _on_validation(_: Request[Any, Any, Any], exc: ValidationException) -> Response[dict[str, Any]]:
    extra = exc.extra if isinstance(exc.extra, list) else []
    errors = [
        {"path": _on_the_wire(str(item.get("key", ""))), "message": str(item.get("message", ""))}
        for item in extra
        if isinstance(item, dict)
    ]
    return _answer(Problem("invalid_request", "The request does not have the right form.", errors))


def _on_the_wire(key: str) -> str:
    """Give a field's name as clients write it: a query parameter is reported by its name in Python."""
    first, *rest = key.split("_")
    return first + "".join(part.capitalize() for part in rest)


def _on_http(_: Request[Any, Any, Any], exc: HTTPException) -> Response[dict[str, Any]]:
    if exc.status_code == 413:
        return _answer(Problem("too_large", "Send less at once."))
    body = {
        "type": "about:blank",
        "title": exc.detail or "Refused",
        "status": exc.status_code,
        "detail": exc.detail,
        "code": "invalid_request" if exc.status_code < 500 else "internal_error",
    }
    return Response(body, status_code=exc.status_code, media_type=MEDIA_TYPE, headers=exc.headers)


def _on_storage(_: Request[Any, Any, Any], exc: StorageUnavailable) -> Response[dict[str, Any]]:
    log.error("%s", exc)
    return _answer(Problem("storage_unavailable", "Try again in a moment.", headers={"Retry-After": "5"}))


def _on_not_configured(_: Request[Any, Any, Any], exc: NotConfigured) -> Response[dict[str, Any]]:
    return _answer(Problem("not_configured", str(exc)))


def _on_recursion(_: Request[Any, Any, Any], _exc: RecursionError) -> Response[dict[str, Any]]:
    # Raised by the reader of JSON bodies; no code here calls itself.
    return _answer(Problem("invalid_request", "The body is nested too deeply."))


def _on_anything(request: Request[Any, Any, Any], exc: Exception) -> Response[dict[str, Any]]:
    log.error("%s %s failed", request.method, request.url.path, exc_info=exc)
    return _answer(Problem("internal_error", "The server's log has the details."))


HANDLERS: Final[ExceptionHandlersMap] = {
    Problem: _on_problem,
    ValidationException: _on_validation,
    HTTPException: _on_http,
    StorageUnavailable: _on_storage,
    NotConfigured: _on_not_configured,
    RecursionError: _on_recursion,
    Exception: _on_anything,
}
"""For the plugin's routers only: the host's own error handling is not touched."""
