"""Answers to requests whose body, path or headers the framework refuses, in words for people."""

from __future__ import annotations

import re
from typing import Any, Final

import msgspec
from litestar import Request, Response
from litestar.exceptions import ClientException, SerializationException, ValidationException
from litestar.exceptions.responses import create_exception_response
from litestar.types import ExceptionHandlersMap

FIELDS: Final = {
    "name": "Give the flow a name of 1 to 200 characters.",
    "agentId": "Say in agentId which of your agents the flow belongs to.",
    "kind": 'The kind is "single_shot" or "client_paced".',
    "items": "The items are a list of at most 200 objects.",
    "userId": "The userId is a text of at most 200 characters.",
    "content": "The content is a text of at most 10,000 characters.",
    "from": "The value of from is the id of a step, or null.",
}
"""Field of a body → what belongs there."""


def _refuse(request: Request[Any, Any, Any], exc: ClientException) -> Response[Any]:
    """Answer which field is wrong and what belongs there, or what a route takes; what the host refuses keeps its words."""
    detail, more = _wanted(request), {}
    if isinstance(exc, ValidationException):
        first = exc.extra[0] if isinstance(exc.extra, list) and exc.extra else {}
        named = re.search(r"field `([^`]{1,80})", first.get("message", ""))
        field = named[1] if named else re.split(r"[.\[]", first.get("key", ""))[0]
        if field in FIELDS:
            detail = FIELDS[field]
        elif named:
            detail = f"The field {field!r} is not known. Leave it out. {detail}"
        more = {"extra": [{"key": field}]}
    elif isinstance(exc.__cause__, SerializationException):
        detail = f"The body is not valid JSON. {detail}"
    else:
        return create_exception_response(request, exc)
    return Response({"status_code": 400, "detail": detail, **more}, status_code=400)


def _wanted(request: Request[Any, Any, Any]) -> str:
    """Say what a route takes."""
    data = request.route_handler.parsed_data_field
    if data is None:
        return "The path or a header of the request cannot be read."
    *others, last = (each.encode_name for each in msgspec.structs.fields(data.annotation))
    return f"Send a JSON object with {' and '.join(filter(None, (', '.join(others), last)))}."


HANDLERS: Final[ExceptionHandlersMap] = {ClientException: _refuse}
