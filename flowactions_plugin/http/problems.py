"""Errors of the routes as RFC 9457 problem details."""

from __future__ import annotations

import logging
import re
from typing import Annotated, Any, Final

import msgspec
from litestar import Request, Response
from litestar.exceptions import HTTPException, ValidationException
from litestar.types import ExceptionHandlersMap
from msgspec import Meta

from flowactions_hookspecs import AgentNotFound, FlowActionsError, NotStarted
from flowactions_plugin.errors import HostFailed, NotConfigured, RequestInvalid, StorageUnavailable

log = logging.getLogger("flowactions.http")

MEDIA_TYPE: Final = "application/problem+json"

TITLES: Final = {
    "unauthorized": (401, "Sign in first"),
    "forbidden": (403, "Not allowed"),
    "cross_site": (403, "The request comes from another site"),
    "not_found": (404, "Not found"),
    "method_not_allowed": (405, "The method is not allowed"),
    "invalid_request": (400, "The request cannot be used"),
    "unknown_action": (400, "No such webhook action"),
    "blocked_url": (400, "The action's URL is not allowed"),
    "body_too_large": (400, "The webhook's body is too large"),
    "headers_too_large": (400, "The action's headers are too large"),
    "too_large": (413, "The body is too large"),
    "unsupported_media_type": (415, "The body is not JSON"),
    "rate_limited": (429, "Too many calls"),
    "not_connected": (409, "No chat workspace is connected"),
    "changed": (412, "Somebody else has changed it"),
    "too_many_pauses": (409, "Too many destinations are paused"),
    "no_default_channel": (409, "The connection has no default channel"),
    "chat_refused": (502, "The chat provider refused"),
    "not_configured": (503, "A setting is missing"),
    "not_started": (503, "The host has not started the plugin"),
    "storage_unavailable": (503, "The database did not answer"),
    "internal_error": (500, "Something went wrong here"),
}
"""Stable code → status and title of its problem."""

LOOK_IN_LOG: Final = "The server's log has the details."
WRONG_FORM: Final = "The request does not have the right form."
A_MOMENT: Final = "a date and time with time zone such as 2030-01-31T12:00:00Z"

NO_STORE: Final = {"cache-control": "no-store"}
"""For private answers, and for problems, which may be temporary. In small letters, as Litestar writes this header where a host's app
sets it, so that an answer does not have both."""

_WORDS: Final = {
    ">=": "at least",
    "<=": "at most",
    ">": "more than",
    "<": "less than",
    "str": "text",
    "int": "a whole number",
    "float": "a number",
    "bool": "true or false",
    "object": "an object",
    "array": "a list",
}
_RULES: Final = (
    (r"Expected `(?:int|float)` (?P<bound>[<>]=?) (?P<given>\S+)", "must be {bound} {given}"),
    (r"Expected `str` of length (?P<bound>[<>]=?) (?P<given>\d+)", "must have {bound} {given} characters"),
    (r"Expected `array` of length (?P<bound>[<>]=?) (?P<given>\d+)", "must have {bound} {given} items"),
    (r"Object contains unknown field `(?P<given>.+)`", "has no field {given}"),
    (r"Object missing required field `(?P<given>.+)`", "needs the field {given}"),
    (r"Invalid RFC3339.*|Expected `datetime.*", "must be " + A_MOMENT),
    (r"Expected `(?P<kinds>[^`]+)`(?:, got `[^`]+`)?", "must be {kinds}"),
    (r"Invalid enum value .*", "is none of the values that are known"),
)
"""What the decoder says of a value → the same in words that name no type of Python."""

_OF_STATUS: Final = {
    401: "unauthorized",
    403: "forbidden",
    404: "not_found",
    405: "method_not_allowed",
    413: "too_large",
    415: "unsupported_media_type",
    429: "rate_limited",
}
"""Status of an exception of Litestar's → code. Other 4xx statuses are ``invalid_request``."""


class Problem(FlowActionsError):
    """An answer other than success (§7.3).

    Args:
        code: one of `TITLES`.
        detail: what is wrong and what to do.
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


def wrong_form(errors: list[dict[str, str]]) -> Problem:
    """Return the problem of fields or parameters that cannot be used; an answer names fifty of them."""
    return Problem("invalid_request", WRONG_FORM, errors[:50])


def error_message(message: str) -> str:
    """Return what the decoder says of a value, in words that name no type of Python."""
    for pattern, words in _RULES:
        if found := re.fullmatch(pattern, message, re.DOTALL):
            parts = {name: part.split(" | ") for name, part in found.groupdict().items() if name != "given"}
            said = {name: " or ".join(_WORDS.get(each, each) for each in part) for name, part in parts.items()}
            return words.format_map({**found.groupdict(), **said})
    return "does not have the right form"


class FieldError(msgspec.Struct):
    """A field that cannot be used."""

    path: Annotated[str, Meta(description="The field, as clients write it.", examples=["idempotencyKey"])]
    message: str


class ProblemDetails(msgspec.Struct, omit_defaults=True):
    """Why a request was not carried out (RFC 9457)."""

    type: str
    title: str
    status: int
    detail: Annotated[str, Meta(description="What is wrong here, and what to do.")]
    code: Annotated[str, Meta(description="Stable, for programs.", examples=["invalid_request"])]
    errors: list[FieldError] | None = None


def _answer(problem: Problem, status: int | None = None) -> Response[ProblemDetails]:
    """Return the answer of a problem, with its own status or another one."""
    usual, title = TITLES[problem.code]
    errors = [FieldError(**error) for error in problem.errors or ()] or None
    body = ProblemDetails("about:blank", title, status or usual, problem.detail, problem.code, errors)
    headers = {**(problem.headers or {}), **NO_STORE}
    return Response(body, status_code=body.status, media_type=MEDIA_TYPE, headers=headers)


def _on_validation(_: Request[Any, Any, Any], exc: ValidationException) -> Response[ProblemDetails]:
    """Answer what Litestar finds wrong in a request."""
    extra = exc.extra if isinstance(exc.extra, list) else []
    errors = [
        {"path": _client_name(str(item.get("key", ""))), "message": error_message(str(item.get("message", "")))}
        for item in extra
        if isinstance(item, dict)
    ]
    return _answer(wrong_form(errors))


def _client_name(key: str) -> str:
    """Return a field's name as clients write it. Litestar reports a query parameter by its name in Python."""
    first, *rest = key.split("_")
    return first + "".join(part.capitalize() for part in rest)


def _on_http(request: Request[Any, Any, Any], exc: HTTPException) -> Response[ProblemDetails]:
    """Answer an exception of Litestar or of the host's guards: with its status, and the title of its code."""
    if isinstance(exc, ValidationException):
        return _on_validation(request, exc)
    if exc.status_code >= 500:
        return _on_anything(request, exc, exc.status_code)
    code = _OF_STATUS.get(exc.status_code, "invalid_request")
    detail = "Send less at once." if code == "too_large" else exc.detail or TITLES[code][1]
    return _answer(Problem(code, detail, headers=dict(exc.headers or {})), exc.status_code)


def _on_storage(_: Request[Any, Any, Any], exc: StorageUnavailable) -> Response[ProblemDetails]:
    """Answer that the database failed."""
    log.error("%s", exc, extra={"event": "http.storage_unavailable"})
    return _answer(Problem("storage_unavailable", "Try again in a moment.", headers={"Retry-After": "5"}))


def _on_not_started(_: Request[Any, Any, Any], exc: NotStarted) -> Response[ProblemDetails]:
    """Answer that the lifespan is not open."""
    log.error("%s", exc, extra={"event": "http.not_started"})
    return _answer(Problem("not_started", str(exc)))


def _on_anything(
    request: Request[Any, Any, Any], exc: Exception, status: int | None = None
) -> Response[ProblemDetails]:
    """Log an error, and answer that there was one."""
    log.error("%s %s failed", request.method, request.url.path, exc_info=exc, extra={"event": "http.failed"})
    return _answer(Problem("internal_error", LOOK_IN_LOG), status)


HANDLERS: Final[ExceptionHandlersMap] = {
    Problem: lambda _, exc: _answer(exc),
    RequestInvalid: lambda _, exc: _answer(Problem("invalid_request", str(exc))),
    HTTPException: _on_http,
    # Litestar prefers a handler of the status, which a host's app may have.
    **dict.fromkeys(range(400, 600), _on_http),
    StorageUnavailable: _on_storage,
    NotConfigured: lambda _, exc: _answer(Problem("not_configured", str(exc))),
    # It was logged where it was detected. Callers do not learn details of the host.
    HostFailed: lambda _, _exc: _answer(Problem("internal_error", LOOK_IN_LOG)),
    NotStarted: _on_not_started,
    AgentNotFound: lambda _, exc: _answer(Problem("not_found", str(exc))),
    Exception: _on_anything,
}
"""For the plugin's routers only; the host's error handling is not changed."""
