"""Who calls: the host's own principals, as Litestar dependencies (§5.1)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, TypeAlias, TypeVar

from litestar import Request
from litestar.di import Provide

from flowactions_hookspecs import ApiPrincipal, DashboardPrincipal, Host
from flowactions_plugin.http.problems import Problem

Principal = TypeVar("Principal")
AnyRequest: TypeAlias = Request[Any, Any, Any]


def dashboard_principal(host: Host) -> Provide:
    """Make the dependency that gives the `DashboardPrincipal`, or answers 401."""

    async def provide(request: AnyRequest) -> DashboardPrincipal:
        return await _known(host.dashboard_principal, request, "dashboard", "This needs a dashboard session.")

    return Provide(provide)


def api_principal(host: Host) -> Provide:
    """Make the dependency that gives the `ApiPrincipal`, or answers 401."""

    async def provide(request: AnyRequest) -> ApiPrincipal:
        return await _known(host.api_principal, request, "api", "This needs an access token.")

    return Provide(provide)


async def _known(
    ask: Callable[[AnyRequest], Awaitable[Principal | None]], request: AnyRequest, realm: str, otherwise: str
) -> Principal:
    principal = await ask(request)
    if principal is None:
        raise Problem("unauthorized", otherwise, headers={"WWW-Authenticate": f'Bearer realm="{realm}"'})
    return principal
