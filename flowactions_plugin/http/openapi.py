"""How the routes describe themselves in a host's OpenAPI document."""

from __future__ import annotations

import inspect
import re
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Final, Literal, TypeAlias

import msgspec
from litestar.handlers import HTTPRouteHandler
from litestar.openapi.datastructures import ResponseSpec
from litestar.openapi.spec import Example
from msgspec import Meta

from flowactions_plugin.http.problems import MEDIA_TYPE, TITLES

Caller: TypeAlias = Literal["dashboard", "api", "chatSignature", "authSignature"]
"""Names of the security schemes in the contract's `OPENAPI_COMPONENTS`."""


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


_CLAUSES = re.compile(r" \(§[^)]*\)")
"""References to the specification, which readers of the document do not have."""

EVERYWHERE: Final = ("storage_unavailable", "internal_error")
"""Problems that any route may answer with. One that asks for a credential may answer ``unauthorized``, too."""


def described(
    caller: Caller | None, answers: Mapping[int, tuple[type[msgspec.Struct] | None, str]], *problems: str
) -> dict[str, Any]:
    """Make the keyword arguments of a route handler that describe who calls and what may come back.

    Args:
        caller: whose credential it asks for; ``None``: anybody's.
        answers: further statuses than the handler's own → body and meaning.
        problems: the codes of the other problems that it may answer with.
    """
    by_status: dict[int, list[str]] = {}
    for code in (*(["unauthorized"] if caller else []), *problems, *EVERYWHERE):
        by_status.setdefault(TITLES[code][0], []).append(code)
    responses = {
        status: ResponseSpec(
            data_container=ProblemDetails,
            generate_examples=False,
            media_type=MEDIA_TYPE,
            description="; ".join(f"`{code}`: {TITLES[code][1].lower()}" for code in codes),
            examples=[_example(code) for code in codes],
        )
        for status, codes in by_status.items()
    }
    responses |= {
        status: ResponseSpec(data_container=body, generate_examples=False, description=meaning)
        for status, (body, meaning) in answers.items()
    }
    return {"responses": responses, "security": [{caller: []}] if caller else []}


def documented(*handlers: HTTPRouteHandler) -> Sequence[HTTPRouteHandler]:
    """Have each handler's docstring be its description, also in hosts that do not ask Litestar for that."""
    for handler in handlers:
        handler.description = _CLAUSES.sub("", inspect.getdoc(handler.fn) or "").replace("``", "`")
    return handlers


def _example(code: str) -> Example:
    status, title = TITLES[code]
    return Example(
        id=code,
        summary=code,
        value={"type": "about:blank", "title": title, "status": status, "detail": "…", "code": code},
    )
