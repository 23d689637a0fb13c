"""The requirements of routes, and their description in a host's OpenAPI document."""

from __future__ import annotations

import inspect
import re
from collections.abc import Mapping, Sequence
from copy import copy
from typing import Any, Final, Literal, NamedTuple, TypeAlias

import msgspec
from litestar.datastructures import ResponseHeader
from litestar.handlers import BaseRouteHandler, HTTPRouteHandler
from litestar.openapi.datastructures import ResponseSpec
from litestar.openapi.spec import Example

from flowactions_plugin.http.problems import MEDIA_TYPE, NO_STORE, TITLES, ProblemDetails
from flowactions_plugin.http.strict import Check, StrictJSON

Caller: TypeAlias = Literal["dashboard", "api", "chatSignature", "authSignature"]
"""Names of the security schemes in the contract's `OPENAPI_COMPONENTS`."""


_CLAUSES = re.compile(r" \(§[^)]*\)")
"""References to the specification, which are removed from descriptions."""

EVERYWHERE: Final = ("not_started", "storage_unavailable", "internal_error")
"""Problems of every route. A route that requires a credential may also answer ``unauthorized``."""

_RULES: Final = "flowactions_rules"


class RouteRules(NamedTuple):
    """A route's requirements that are checked before the body is read.

    Attributes:
        caller: the required credential; ``None``: the route is public.
        changes: whether it changes something, so that pages of other sites may not send it.
        navigable: whether a user may nevertheless follow a link to it from another site.
        reads: whether it changes nothing although it is protected like what does: it has a body, and its answer costs
            something and is the organization's. A person who may only look may call it.
        query: name → check of its value, when other names are errors; ``None``: unknown names are ignored.
        body: what to send, when a body is required.
    """

    caller: Caller | None = None
    changes: bool = False
    navigable: bool = False
    query: Mapping[str, Check] | None = None
    body: str | None = None
    reads: bool = False

    @classmethod
    def of(cls, handler: BaseRouteHandler) -> RouteRules:
        """Return the rules that `openapi_spec` has set for a handler."""
        rules: RouteRules = handler.opt.get(_RULES, cls())
        return rules


def openapi_spec(
    caller: Caller | None,
    answers: Mapping[int, tuple[type[msgspec.Struct] | None, str]],
    *problems: str,
    changes: bool = False,
    navigable: bool = False,
    query: Mapping[str, Check] | None = None,
    body: str | None = None,
    reads: bool = False,
) -> dict[str, Any]:
    """Return the keyword arguments of a route handler that declare its requirements, as in `RouteRules`, and answers.

    ``answers`` has the body and meaning of statuses other than the handler's own; ``problems`` are codes of further problems that
    it may answer with.
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
    rules = RouteRules(caller, changes, navigable, query, body, reads)
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
        keywords |= {"dto": StrictJSON, "return_dto": None}
    return keywords


def of_one_host(*handlers: HTTPRouteHandler) -> Sequence[HTTPRouteHandler]:
    """Return copies of handlers for the routes of one host, described by their docstrings, also where Litestar does not do it.

    Litestar notes on a handler which router it belongs to, and copies it then. Without a copy of its own, a host could get
    the router of another one that is made in another thread at the same time.
    """
    copies = [copy(handler) for handler in handlers]
    for handler in copies:
        handler.description = _CLAUSES.sub("", inspect.getdoc(handler.fn) or "").replace("``", "`")
    return copies


def _example(code: str) -> Example:
    """Return an answer with a problem."""
    status, title = TITLES[code]
    details = ProblemDetails("about:blank", title, status, "…", code)
    return Example(id=code, summary=code, value=msgspec.to_builtins(details))
