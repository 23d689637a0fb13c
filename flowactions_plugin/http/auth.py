"""Checks a request before its body is read: the caller, the site, the form."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Mapping
from typing import Any, Final, Literal, TypeAlias, cast
from urllib.parse import quote

from litestar import Request
from litestar.connection import ASGIConnection
from litestar.di import Provide
from litestar.exceptions import InternalServerException
from litestar.handlers import BaseRouteHandler
from litestar.types import Guard

from flowactions_hookspecs import DashboardPrincipal, Host, NotStarted, ScopeRequest
from flowactions_plugin.host_answers import ask
from flowactions_plugin.http.openapi import RouteRules
from flowactions_plugin.http.problems import Problem
from flowactions_plugin.http.strict import check_query
from flowactions_plugin.origins import parse_origin

ASGIRequest: TypeAlias = ASGIConnection[Any, Any, Any, Any]
AnyRequest: TypeAlias = Request[Any, Any, Any]
TenantCheck: TypeAlias = Callable[[ASGIRequest], Awaitable[None]]
"""Raises a problem when the caller addresses a resource of another tenant."""

_PRINCIPAL: Final = "flowactions.principal"
"""Key of the principal in the request's ASGI scope."""

_CREDENTIALS: Final = {
    "dashboard": ("dashboard_principal", "This needs a dashboard session."),
    "api": ("api_principal", "This needs an access token."),
}
"""Caller → the host's method that authenticates it, and what is said to others."""


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
            if rules.caller in _CREDENTIALS and rules.changes:
                await _check_body(cast("AnyRequest", request), rules)

        return check

    async def _authenticate(self, request: ASGIRequest, rules: RouteRules) -> None:
        if rules.caller not in _CREDENTIALS:
            return
        method, otherwise = _CREDENTIALS[rules.caller]
        found = await ask(self._host, method, ScopeRequest(request.scope))
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
        if is_cross_site(fetch_headers(request), self._origins, navigable=rules.navigable):
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
    path = "/" + quote(request.scope["path"].lstrip("/"))
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


def fetch_headers(request: ASGIRequest) -> dict[str, str]:
    """Return the headers that tell where a request comes from, and its ``scheme`` as the server sees it.

    A repeated header is not trusted: its value matches nothing. Behind a proxy that terminates TLS, the scheme is ``http``.
    """
    names = ("sec-fetch-site", "sec-fetch-mode", "sec-fetch-dest", "origin", "host")
    read = {name: ",".join(request.headers.getall(name)) for name in names if name in request.headers}
    return {**read, "scheme": str(request.scope.get("scheme", "http"))}


def sender_of(fetch: Mapping[str, str], own: Collection[str]) -> Literal["own", "foreign", "unknown"]:
    """Return whose page sends a request, as the browser says: of the very origin of the request, or another one.

    Browsers send ``Sec-Fetch-Site`` to https and to loopback, and ``Origin`` with every request that changes something, also
    on plain http. What has neither is not from a browser. ``unknown`` is also what a user has typed.

    Args:
        fetch: the request's `fetch_headers`.
        own: origins at which browsers reach the routes, as `parse_origin` writes them, beside that of ``Host``.
    """
    site = fetch.get("sec-fetch-site")
    if site is not None:  # another subdomain may belong to someone else
        return "own" if site == "same-origin" else "unknown" if site == "none" else "foreign"
    if "origin" not in fetch:
        return "unknown"
    origin = parse_origin(fetch["origin"])
    if origin is None:
        return "foreign"
    scheme = origin.partition("://")[0]
    is_host = "host" in fetch and origin == parse_origin(f"{scheme}://{fetch['host']}")
    return "own" if origin in own or (is_host and (scheme, fetch["scheme"]) != ("http", "https")) else "foreign"


def is_cross_site(fetch: Mapping[str, str], allowed: Collection[str], *, navigable: bool = False) -> bool:
    """Return whether a browser sends a request for a page that is not the dashboard's.

    Args:
        fetch: the request's `fetch_headers`.
        allowed: origins whose pages may send it, as `parse_origin` writes them.
        navigable: whether a user may follow a link from another site.
    """
    if sender_of(fetch, allowed) != "foreign" or parse_origin(fetch.get("origin", "")) in allowed:
        return False
    is_link = (fetch.get("sec-fetch-mode"), fetch.get("sec-fetch-dest")) == ("navigate", "document")
    return not (navigable and "sec-fetch-site" in fetch and is_link)
