"""A request as a host's methods see it: small, and without a web framework."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Protocol, cast, runtime_checkable

if TYPE_CHECKING:
    from litestar.connection import ASGIConnection
    from litestar.types import Scope


@runtime_checkable
class Request(Protocol):
    """The argument of `Host.dashboard_principal`, `Host.api_principal` and `Host.operator`.

    Attributes:
        method: ``GET``, ``POST``, …
        path: the request's path as the server received it, decoded, ``root_path`` included.
        headers: name in any case → value.
        cookies: name → value.
        scope: the ASGI connection scope, with the values of the host's own middleware (``session``, ``user``,
            ``state``). You can make any framework's request object from it.
    """

    @property
    def method(self) -> str: ...  # noqa: D102
    @property
    def path(self) -> str: ...  # noqa: D102
    @property
    def headers(self) -> Mapping[str, str]: ...  # noqa: D102
    @property
    def cookies(self) -> Mapping[str, str]: ...  # noqa: D102
    @property
    def scope(self) -> Mapping[str, Any]: ...  # noqa: D102


class ScopeRequest:
    """A `Request` for an ASGI scope.

    Args:
        scope: the scope of an HTTP request.
    """

    def __init__(self, scope: Mapping[str, object]) -> None:
        from litestar.connection import ASGIConnection  # noqa: PLC0415  routes are served by Litestar, hosts need not be

        self._connection: ASGIConnection[Any, Any, Any, Any] = ASGIConnection(cast("Scope", scope))

    @property
    def scope(self) -> Mapping[str, Any]:
        """The ASGI scope."""
        return cast("Mapping[str, Any]", self._connection.scope)

    @property
    def method(self) -> str:
        """The HTTP method."""
        return str(self.scope.get("method", "GET"))

    @property
    def path(self) -> str:
        """The decoded path."""
        return str(self.scope.get("path", "/"))

    @property
    def headers(self) -> Mapping[str, str]:
        """The headers, by name in any case."""
        return self._connection.headers

    @property
    def cookies(self) -> Mapping[str, str]:
        """The cookies."""
        return self._connection.cookies
