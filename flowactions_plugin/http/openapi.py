"""The requirements of routes, and their description in a host's OpenAPI document."""

from __future__ import annotations

import inspect
import re
from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import replace
from typing import Annotated, Any, Final, Literal, NamedTuple, TypeAlias, get_type_hints

import msgspec
from litestar import Request, Response, Router
from litestar.datastructures import ResponseHeader
from litestar.di import Provide
from litestar.handlers import BaseRouteHandler, HTTPRouteHandler
from litestar.openapi.datastructures import ResponseSpec
from litestar.openapi.spec import Example
from litestar.params import QueryParameter
from litestar.types import ExceptionHandlersMap, Guard

from flowactions_plugin.http.problems import HANDLERS, MEDIA_TYPE, NO_STORE, TITLES, ProblemDetails
from flowactions_plugin.http.strict import Check, StrictJSON

Caller: TypeAlias = Literal["dashboard", "api", "chatSignature", "authSignature"]
"""Names of the security schemes in the contract's `OPENAPI_COMPONENTS`."""


_CLAUSES = re.compile(r" \(§[^)]*\)")
"""References to the specification, which are removed from descriptions."""

EVERYWHERE: Final = ("not_started", "storage_unavailable", "internal_error")
"""Problems of every route. A route that requires a credential may also answer ``unauthorized``."""

BODY_BYTES: Final = 64 * 1024
"""The size limit of a body of an authenticated request."""

OPEN: Final = {"exclude_from_auth": True}
"""The ``opt`` of routes that need no credential of the host's: Litestar's middleware for authentication lets them pass."""

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
        "opt": {_RULES: rules, **({} if caller in {"dashboard", "api"} else OPEN)},
    }
    if caller == "dashboard":
        keywords["response_headers"] = [
            ResponseHeader(name=name, value=value) for name, value in NO_STORE.items()
        ]
    if body is not None:
        keywords |= {"dto": StrictJSON, "return_dto": None}
    return keywords


def plugin_router(
    path: str,
    *handlers: HTTPRouteHandler,
    dependencies: Mapping[str, Any],
    guards: Sequence[Guard] = (),
    errors: ExceptionHandlersMap = HANDLERS,
    body_bytes: int = BODY_BYTES,
    **options: Any,
) -> Router:
    """Return a router for the routes of one host, whose answers do not depend on what the host sets for its whole app.

    Litestar notes on a handler which router it belongs to, and copies it then. So each handler is copied first: otherwise a
    host could get the router of another one that is made in another thread at the same time.

    Args:
        path: of the router.
        handlers: described by their docstrings.
        dependencies: name → the object, or a `Provide`.
        guards: of all routes.
        errors: the exception handlers.
        body_bytes: the size limit of a request's body.
        options: further arguments of a `Router`.
    """
    copies = [copy(handler) for handler in handlers]
    for handler in copies:
        _resolve_types(handler.fn)
        handler.description = _CLAUSES.sub("", inspect.getdoc(handler.fn) or "").replace("``", "`")
    return Router(
        path,
        route_handlers=copies,
        dependencies={name: _provide(value) for name, value in dependencies.items()},
        guards=guards,
        exception_handlers=errors,
        # The nearest of these applies, so those of the host's app do not.
        before_request=_do_nothing,
        after_request=_as_it_is,
        return_dto=None,
        request_class=Request,
        response_class=Response,
        request_max_body_size=body_bytes,
        # The plugin checks itself who sends a request that changes something.
        opt={"exclude_from_csrf": True},
        **options,
    )


def _resolve_types(function: Any) -> None:
    """Replace the names in annotations by types, because a host's ``signature_namespace`` may have others of these names.

    A query parameter gets its own name explicitly. With it, Litestar refuses an app that has a dependency of this name, which
    otherwise would be given in place of the parameter.
    """
    hints = get_type_hints(function, include_extras=True)
    for name, hint in hints.items():
        for kind in getattr(hint, "__metadata__", ()):
            if isinstance(kind, QueryParameter) and kind.name is None:
                hints[name] = Annotated[hint.__origin__, replace(kind, name=name)]
    function.__annotations__ = hints


def _provide(value: Any) -> Provide:
    if not isinstance(value, Provide):
        return Provide(lambda: value, sync_to_thread=False)
    given: Any = value.dependency
    _resolve_types(vars(given)["__init__"] if isinstance(given, type) else given)
    return value


async def _do_nothing(_: Request[Any, Any, Any]) -> None:
    pass


async def _as_it_is(response: Response[Any]) -> Response[Any]:
    return response


def _example(code: str) -> Example:
    """Return an answer with a problem."""
    status, title = TITLES[code]
    details = ProblemDetails("about:blank", title, status, "…", code)
    return Example(id=code, summary=code, value=msgspec.to_builtins(details))
