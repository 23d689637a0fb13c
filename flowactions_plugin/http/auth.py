"""Checks a request before its body is read: the caller, the site, the form."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection
from typing import Any, Final, NamedTuple, TypeAlias, cast
from urllib.parse import quote

from litestar import Request
from litestar.connection import ASGIConnection
from litestar.di import Provide
from litestar.exceptions import InternalServerException
from litestar.handlers import BaseRouteHandler
from litestar.types import Guard

from flowactions_hookspecs import ApiPrincipal, DashboardPrincipal, Host, NotStarted, ScopeRequest
from flowactions_plugin.host_answers import ask
from flowactions_plugin.http.openapi import RouteRules
from flowactions_plugin.http.problems import Problem
from flowactions_plugin.http.strict import check_query
from flowactions_plugin.origins import parse_origin

ASGIRequest: TypeAlias = ASGIConnection[Any, Any, Any, Any]
AnyRequest: TypeAlias = Request[Any, Any, Any]
TenantCheck: TypeAlias = Callable[[ASGIRequest], Awaitable[None]]
"""Raises a problem when the caller addresses a resource of another tenant."""

BODY_BYTES: Final = 64 * 1024
"""The size limit of a body of an authenticated request."""

_PRINCIPAL: Final = "flowactions.principal"
"""Key of the principal in the request's ASGI scope."""


class RouteGuard:
    """Checks a request, in this order, before any of its body is decoded (§5.1).

    The lifespan runs (503), the caller is authenticated (401), no page of another site sends it (403), it addresses no
    resource of another tenant (404), its query is valid (400), its body is JSON (415), not too large (413) and present
    when it is required (400). A route's requirements are in its `RouteRules`.

    Args:
        host: authenticates callers.
        origins: further origins whose pages may send changes, as `parse_origin` writes them.
        is_running: whether the lifespan is open.
    """

    def __init__(self, host: Host, origins: Collection[str], is_running: Callable[[], bool]) -> None:
        self._host = host
        self._origins = frozenset(origins)
        self._is_running = is_running

    def guard(self, check_tenant: TenantCheck | None = None) -> Guard:
        """Return the guard of a router.

        Args:
            check_tenant: called when the caller is authenticated.
        """

        async def check(request: ASGIRequest, handler: BaseRouteHandler) -> None:
            if request.scope.get("method") == "OPTIONS":
                return  # Litestar answers with the allowed methods
            rules = RouteRules.of(handler)
            if not self._is_running():
                raise NotStarted
            await self._authenticate(request, rules)
            if rules.caller == "dashboard" and rules.changes:
                self._check_site(request, rules)
            if check_tenant is not None:
                await check_tenant(request)
            if rules.query is not None:
                check_query(request.scope.get("query_string", b""), rules.query)
            if rules.caller in {"dashboard", "api"} and rules.changes:
                await _check_body(cast("AnyRequest", request), rules)

        return check

    async def _authenticate(self, request: ASGIRequest, rules: RouteRules) -> None:
        found: DashboardPrincipal | ApiPrincipal | None
        seen = ScopeRequest(request.scope)
        if rules.caller == "dashboard":
            found = await ask(self._host, "dashboard_principal", DashboardPrincipal | None, seen)
            otherwise = "This needs a dashboard session."
        elif rules.caller == "api":
            found = await ask(self._host, "api_principal", ApiPrincipal | None, seen)
            otherwise = "This needs an access token."
        else:
            return
        if found is None:
            realm = {"WWW-Authenticate": f'Bearer realm="{rules.caller}"'}
            raise Problem("unauthorized", otherwise, headers=realm)
        must_change = rules.changes and not rules.reads
        if isinstance(found, DashboardPrincipal) and must_change and not found.may_change:
            raise Problem("forbidden", "You may look at this, and not change it.")
        cast("dict[str, Any]", request.scope)[_PRINCIPAL] = found

    def _check_site(self, request: ASGIRequest, rules: RouteRules) -> None:
        # Only the host's own pages can send a Bearer token. A browser sends Basic and Negotiate by itself.
        if _is_bearer(request):
            return
        if is_cross_site(Fetch.of(request), self._origins, navigable=rules.navigable):
            raise Problem(
                "cross_site",
                "A page of another origin sent this. If that page is your dashboard, add its origin to"
                " FLOWACTIONS_DASHBOARD_ORIGINS.",
            )


def principal_of(request: ASGIRequest) -> Any:
    """Return the principal that the guard has stored."""
    return cast("dict[str, Any]", request.scope)[_PRINCIPAL]


PRINCIPAL: Final = Provide(principal_of, sync_to_thread=False)
"""The dependency that provides the principal."""


def sign_in_url(request: AnyRequest, login_url: str) -> str:
    """Return the URL of the sign-in page, with what was asked for as ``next``."""
    # The path only, with one slash in front: it leads nowhere else, whatever was asked for.
    path = "/" + request.scope["path"].lstrip("/")
    query = request.scope.get("query_string", b"").decode("latin-1")
    return f"{login_url}?next={quote(f'{path}?{query}' if query else path, safe='')}"


async def read_body(request: AnyRequest) -> bytes:
    """Read a request's body.

    Raises:
        RequestEntityTooLarge: it is longer than the route allows.
        Problem: 400, the connection ended before the body.
    """
    try:
        return await request.body()
    except InternalServerException:
        raise Problem("invalid_request", "The connection has ended before the body.") from None


async def _check_body(request: AnyRequest, rules: RouteRules) -> None:
    body = await read_body(request)
    if not body:
        if rules.body is not None:
            raise Problem("invalid_request", f"The request has no body. Send {rules.body}.")
        return
    kinds = [kind.partition(";")[0].strip().lower() for kind in request.headers.getall("content-type", [])]
    # A page of another site can send a body without a type, but not with a Bearer token.
    if kinds != ["application/json"] and (kinds or not (rules.caller == "api" or _is_bearer(request))):
        raise Problem("unsupported_media_type", "Send the body as application/json.")


def _is_bearer(request: ASGIRequest) -> bool:
    scheme, _, token = request.headers.get("authorization", "").partition(" ")
    return scheme.lower() == "bearer" and bool(token.strip())


class Fetch(NamedTuple):
    """The headers that tell where a request comes from; a missing header is ``None``.

    Attributes:
        site: ``Sec-Fetch-Site``.
        mode: ``Sec-Fetch-Mode``.
        dest: ``Sec-Fetch-Dest``.
        origin: ``Origin``.
        host: ``Host``.
        scheme: the request's, as the server sees it: behind a proxy that terminates TLS it is ``http``.
    """

    site: str | None = None
    mode: str | None = None
    dest: str | None = None
    origin: str | None = None
    host: str | None = None
    scheme: str = "http"

    @classmethod
    def of(cls, connection: ASGIRequest) -> Fetch:
        """Return the headers of a request. A repeated header is not trusted, and its value matches nothing."""
        headers = connection.headers
        read = {
            field: ",".join(headers.getall(name)) if name in headers else None
            for field, name in (
                ("site", "sec-fetch-site"),
                ("mode", "sec-fetch-mode"),
                ("dest", "sec-fetch-dest"),
                ("origin", "origin"),
                ("host", "host"),
            )
        }
        return cls(**read, scheme=str(connection.scope.get("scheme", "http")))


def is_cross_site(fetch: Fetch, allowed: Collection[str], *, navigable: bool = False) -> bool:
    """Return whether a browser sends a request for a page that is not the dashboard's.

    A request with neither ``Sec-Fetch-Site`` nor ``Origin`` is not from a browser: browsers send at least one of them
    with requests that change something.

    Args:
        fetch: the request's headers.
        allowed: origins whose pages may send it, as `parse_origin` writes them.
        navigable: whether a user may follow a link from another site.
    """
    origin = None if fetch.origin is None else parse_origin(fetch.origin)
    if origin is not None and origin in allowed:
        return False
    if fetch.site is not None:
        if fetch.site in {"same-origin", "none"}:  # another subdomain may belong to someone else
            return False
        return not (navigable and (fetch.mode, fetch.dest) == ("navigate", "document"))
    return fetch.origin is not None and not _is_own(origin, fetch)


def is_own_page(fetch: Fetch, own: Collection[str]) -> bool:
    """Return whether a browser says that a page of the very origin of the request sends it.

    A form can be sent by any page, without a preflight, so what says nothing is refused. Browsers send ``Sec-Fetch-Site``
    to https and to loopback, and ``Origin`` with every POST, also on plain http.

    Args:
        fetch: the request's headers.
        own: origins at which browsers reach the routes, as `parse_origin` writes them, beside that of ``Host``.
    """
    if fetch.site is not None:
        return fetch.site == "same-origin"
    origin = None if fetch.origin is None else parse_origin(fetch.origin)
    return (origin is not None and origin in own) or _is_own(origin, fetch)


def _is_own(origin: str | None, fetch: Fetch) -> bool:
    """Return whether an origin is that of the request's ``Host``."""
    if origin is None or fetch.host is None:
        return False
    scheme = origin.partition("://")[0]
    if fetch.scheme == "https" and scheme != "https":
        return False
    return origin == parse_origin(f"{scheme}://{fetch.host}")
