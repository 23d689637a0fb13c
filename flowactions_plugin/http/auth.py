"""Who calls: the host's own principals, as Litestar dependencies (§5.1)."""

from __future__ import annotations

from typing import Any

from litestar import Request
from litestar.di import Provide

from flowactions_hookspecs import ApiPrincipal, DashboardPrincipal, Host
from flowactions_plugin.http.problems import Problem


def dashboard_principal(host: Host) -> Provide:
    """Make the dependency that gives the `DashboardPrincipal`, or answers 401."""

    async def provide(request: Request[Any, Any, Any]) -> DashboardPrincipal:
        principal = await host.dashboard_principal(request)
        if principal is None:
            raise Problem(
                "unauthorized",
                "This needs a dashboard session.",
                headers={"WWW-Authenticate": 'Bearer realm="dashboard"'},
            )
        return principal

    return Provide(provide)


def api_principal(host: Host) -> Provide:
    """Make the dependency that gives the `ApiPrincipal`, or answers 401."""

    async def provide(request: Request[Any, Any, Any]) -> ApiPrincipal:
        principal = await host.api_principal(request)
        if principal is None:
            raise Problem(
                "unauthorized",
                "This needs an access token.",
                headers={"WWW-Authenticate": 'Bearer realm="api"'},
            )
        return principal

    return Provide(provide)
