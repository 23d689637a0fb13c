"""Who calls: the host's own principals, as Litestar dependencies (§5.1)."""

from __future__ import annotations

from typing import Any, TypeAlias, TypeVar

from litestar import Request
from litestar.di import Provide

from flowactions_hookspecs import ApiPrincipal, DashboardPrincipal, Host
from flowactions_plugin.host_answers import checked
from flowactions_plugin.http.problems import Problem

Principal = TypeVar("Principal")
AnyRequest: TypeAlias = Request[Any, Any, Any]


def dashboard_principal(host: Host) -> Provide:
    """Make the dependency that gives the `DashboardPrincipal`, or answers 401."""

    async def provide(request: AnyRequest) -> DashboardPrincipal:
        principal = await host.dashboard_principal(request)
        known = checked(host, "dashboard_principal", DashboardPrincipal | None, principal)
        return _known(known, "dashboard", "This needs a dashboard session.")

    return Provide(provide)


def api_principal(host: Host) -> Provide:
    """Make the dependency that gives the `ApiPrincipal`, or answers 401."""

    async def provide(request: AnyRequest) -> ApiPrincipal:
        principal = await host.api_principal(request)
        known = checked(host, "api_principal", ApiPrincipal | None, principal)
        return _known(known, "api", "This needs an access token.")

    return Provide(provide)


def _known(principal: Principal | None, realm: str, otherwise: str) -> Principal:
    if principal is None:
        raise Problem("unauthorized", otherwise, headers={"WWW-Authenticate": f'Bearer realm="{realm}"'})
    return principal
