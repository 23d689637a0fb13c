"""What the routes ask of a request, and how they describe it in a host's OpenAPI document."""

from __future__ import annotations

import inspect
import re
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Final, Literal, NamedTuple, TypeAlias

import msgspec
from litestar.datastructures import ResponseHeader
from litestar.handlers import BaseRouteHandler, HTTPRouteHandler
from litestar.openapi.datastructures import ResponseSpec
from litestar.openapi.spec import Example
from msgspec import Meta

from flowactions_plugin.http.problems import MEDIA_TYPE, NO_STORE, TITLES
from flowactions_plugin.http.query import Check
from flowactions_plugin.http.strict_json import StrictJSON

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

EVERYWHERE: Final = ("not_started", "storage_unavailable", "internal_error")
"""Problems that any route may answer with. One that asks for a credential may answer ``unauthorized``, too."""

_RULES: Final = "flowactions_rules"


class BodyRule(NamedTuple):
    """The body that a route needs.

    Attributes:
        kind: the struct that it is.
        hint: what to send, for a request that has none.
    """

    kind: type[msgspec.Struct]
    hint: str


class RouteRules(NamedTuple):
    """What a route asks of a request before it reads the body.

    Attributes:
        caller: whose credential; ``None``: anybody's.
        changes: whether it changes something, so that no foreign page may send it.
        navigable: whether a person may all the same come to it by a link on a foreign page.
        reads: whether it changes nothing all the same, so that who may only look may call it. It has a body, and is
            protected like what changes something: what it answers costs something, and is the organization's.
        query: name → what its value has to be, when no other name is taken; ``None``: other names are ignored.
        body: what to send, when a body is needed.
    """

    caller: Caller | None = None
    changes: bool = False
    navigable: bool = False
    query: Mapping[str, Check] | None = None
    body: str | None = None
    reads: bool = False

    @classmethod
    def of(cls, handler: BaseRouteHandler) -> RouteRules:
        """Give the rules that `described` has laid down for a handler."""
        rules: RouteRules = handler.opt.get(_RULES, cls())
        return rules


def described(
    caller: Caller | None,
    answers: Mapping[int, tuple[type[msgspec.Struct] | None, str]],
    *problems: str,
    changes: bool = False,
    navigable: bool = False,
    query: Mapping[str, Check] | None = None,
    body: BodyRule | None = None,
    reads: bool = False,
) -> dict[str, Any]:
    """Make the keyword arguments of a route handler that say what it asks for and what may come back.

    Args:
        caller: whose credential it asks for; ``None``: anybody's.
        answers: further statuses than the handler's own → body and meaning.
        problems: the codes of the other problems that it may answer with.
        changes: as in `RouteRules`.
        navigable: as in `RouteRules`.
        query: as in `RouteRules`.
        body: the body that it needs.
        reads: as in `RouteRules`.
    """
    codes: dict[str, None] = dict.fromkeys(["unauthorized"] if caller else [])
    if changes and caller == "dashboard":
        codes |= dict.fromkeys(["cross_site"] if reads else ["forbidden", "cross_site"])
    if changes and caller in {"dashboard", "api"}:
        codes |= dict.fromkeys(["unsupported_media_type", "too_large", "invalid_request"])
    if query is not None:
        codes["invalid_request"] = None
    by_status: dict[int, list[str]] = {}
    for code in codes | dict.fromkeys([*problems, *EVERYWHERE]):
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
    rules = RouteRules(caller, changes, navigable, query, body.hint if body else None, reads)
    keywords: dict[str, Any] = {
        "responses": responses,
        "security": [{caller: []}] if caller else [],
        "opt": {_RULES: rules},
    }
    if caller == "dashboard":
        keywords["response_headers"] = [
            ResponseHeader(name=name, value=value) for name, value in NO_STORE.items()
        ]
    if body is not None:
        keywords |= {"dto": StrictJSON[body.kind], "return_dto": None}  # type: ignore[name-defined]
    return keywords


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
