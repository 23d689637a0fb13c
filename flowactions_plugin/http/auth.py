"""What is asked of a request before its body is read: who calls, from where, and in which form (§5.1)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection
from typing import Any, Final, TypeAlias, TypeVar, cast

from litestar import Request
from litestar.connection import ASGIConnection
from litestar.di import Provide
from litestar.exceptions import InternalServerException
from litestar.handlers import BaseRouteHandler
from litestar.types import Guard

from flowactions_hookspecs import ApiPrincipal, DashboardPrincipal, Host, NotStarted, ScopeRequest
from flowactions_plugin.host_answers import checked
from flowactions_plugin.http.cross_site import Fetch, is_cross_site
from flowactions_plugin.http.openapi import RouteRules
from flowactions_plugin.http.problems import Problem
from flowactions_plugin.http.query import check_query

Principal = TypeVar("Principal", DashboardPrincipal, ApiPrincipal)
AnyConnection: TypeAlias = ASGIConnection[Any, Any, Any, Any]
AnyRequest: TypeAlias = Request[Any, Any, Any]
TenantCheck: TypeAlias = Callable[[AnyConnection], Awaitable[None]]
"""Raises the problem of a caller who addresses what is another tenant's."""

BODY_BYTES: Final = 64 * 1024
"""The longest body that is read of callers who are signed in."""

_PRINCIPAL: Final = "flowactions.principal"
"""Where the principal is kept: in the scope itself, of which there is one a request."""


class RouteGuard:
    """Decides on a request, in this order, before anything of its body is decoded.

    The lifespan runs (503), the caller is known (401), no foreign page sends it (403), it addresses nothing of
    another tenant's (404), its query is understood (400), its body is JSON (415), not too large (413) and there when
    it is needed (400). What a route asks for is in its `RouteRules`.

    Args:
        host: tells who calls.
        origins: further origins whose pages may change something, as `parse_origin` writes them.
        is_running: whether the lifespan is open.
    """

    def __init__(self, host: Host, origins: Collection[str], is_running: Callable[[], bool]) -> None:
        self._host = host
        self._origins = frozenset(origins)
        self._is_running = is_running

    def guard(self, check_tenant: TenantCheck | None = None) -> Guard:
        """Make the guard of a router.

        Args:
            check_tenant: called once the caller is known.
        """

        async def check(connection: AnyConnection, handler: BaseRouteHandler) -> None:
            if connection.scope.get("method") == "OPTIONS":
                return  # Litestar's own answer, which says what methods there are
            rules = RouteRules.of(handler)
            if not self._is_running():
                raise NotStarted
            await self._authenticate(connection, rules)
            if rules.caller == "dashboard" and rules.changes:
                self._check_site(connection, rules)
            if check_tenant is not None:
                await check_tenant(connection)
            if rules.query is not None:
                check_query(connection.scope.get("query_string", b""), rules.query)
            if rules.caller in {"dashboard", "api"} and rules.changes:
                await _check_body(cast("AnyRequest", connection), rules)

        return check

    async def _authenticate(self, connection: AnyConnection, rules: RouteRules) -> None:
        found: DashboardPrincipal | ApiPrincipal | None
        request = ScopeRequest(cast("dict[str, Any]", connection.scope))
        if rules.caller == "dashboard":
            answer = await self._host.dashboard_principal(request)
            found = checked(self._host, "dashboard_principal", DashboardPrincipal | None, answer)
            otherwise = "This needs a dashboard session."
        elif rules.caller == "api":
            found = checked(
                self._host, "api_principal", ApiPrincipal | None, await self._host.api_principal(request)
            )
            otherwise = "This needs an access token."
        else:
            return
        if found is None:
            realm = {"WWW-Authenticate": f'Bearer realm="{rules.caller}"'}
            raise Problem("unauthorized", otherwise, headers=realm)
        must_change = rules.changes and not rules.reads
        if isinstance(found, DashboardPrincipal) and must_change and not found.may_change:
            raise Problem("forbidden", "You may look at this, and not change it.")
        cast("dict[str, Any]", connection.scope)[_PRINCIPAL] = found

    def _check_site(self, connection: AnyConnection, rules: RouteRules) -> None:
        # Only the host's own pages can send a Bearer token. A browser adds Basic and Negotiate by itself.
        if _is_bearer(connection):
            return
        if is_cross_site(Fetch.of(connection), self._origins, navigable=rules.navigable):
            raise Problem(
                "cross_site",
                "A page of another origin sent this. If that page is your dashboard, add its origin to"
                " FLOWACTIONS_DASHBOARD_ORIGINS.",
            )


def principal_of(connection: AnyConnection) -> Any:
    """Give the principal that the guard has found."""
    return cast("dict[str, Any]", connection.scope)[_PRINCIPAL]


def _principal(request: AnyRequest) -> Any:
    return principal_of(request)


PRINCIPAL: Final = Provide(_principal, sync_to_thread=False)
"""The dependency that gives the principal."""


async def read_body(request: AnyRequest) -> bytes:
    """Read a request's body.

    Raises:
        RequestEntityTooLarge: it is longer than the route reads.
        Problem: 400, the connection has ended before the body.
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
    # A foreign page can send a body without a type, but no Bearer token with it.
    if kinds != ["application/json"] and (kinds or not (rules.caller == "api" or _is_bearer(request))):
        raise Problem("unsupported_media_type", "Send the body as application/json.")


def _is_bearer(connection: AnyConnection) -> bool:
    scheme, _, token = connection.headers.get("authorization", "").partition(" ")
    return scheme.lower() == "bearer" and bool(token.strip())
