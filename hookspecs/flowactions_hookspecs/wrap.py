"""Wraps an ASGI app of any framework: adds the plugins' routes and their lifespan.

Requests for other paths and methods reach the app unchanged.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping, MutableMapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any, Final, TypeAlias

from litestar import Litestar
from litestar.exceptions import HTTPException
from litestar.routes import HTTPRoute
from litestar.types import ControllerRouterHandler
from litestar.utils import normalize_path

from flowactions_hookspecs.wrapped_lifespan import WrappedLifespan

Scope: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send: TypeAlias = Callable[[MutableMapping[str, Any]], Awaitable[None]]
ASGIApp: TypeAlias = Callable[[Any, Any, Any], Awaitable[None]]
"""Of any framework: each has types of its own for the arguments."""

log = logging.getLogger("flowactions")

_HOST_APP: Final = "flowactions.host_app"

NO_LIFESPAN: Final = (
    "The server sends the wrapped app no lifespan, so the plugins are not started: calls raise NotStarted, and their routes "
    "answer 503. Use a server that sends it (Uvicorn without --lifespan off, Hypercorn, Granian; not Daphne). If the app is "
    "mounted in another one, enter actions.lifespan() in that one's lifespan, and wrap with lifespan=False."
)


class Wrapped:
    """An ASGI app that serves the plugins' routes, and passes everything else on to the app that it wraps.

    The plugins answer a request only if Litestar would route its path **and** its method to one of their
    handlers. The OPTIONS handler that Litestar adds to each route does not count, so the host answers
    preflights. WebSockets and unknown scope types are passed on.
    """

    def __init__(
        self,
        app: ASGIApp,
        route_handlers: Sequence[ControllerRouterHandler],
        lifespan: Callable[[], AbstractAsyncContextManager[None]] | None,
        is_open: Callable[[], bool] = lambda: True,
    ) -> None:
        """Build the plugins' routes around an app; without a ``lifespan``, its messages are passed on unchanged.

        ``is_open`` tells whether the lifespan is open; a host may have entered it itself.
        """
        self._app = app
        self._is_open = is_open
        self._looked = lifespan is None
        plugins = Litestar(
            route_handlers=list(route_handlers),
            middleware=[_keep_host_app],
            openapi_config=None,
            logging_config=None,
        )
        self._plugins: Any = plugins  # Litestar's types of ASGI are other ones
        self._routes = _Routes(plugins)
        self._lifespan = lifespan

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one connection, or the lifespan."""
        kind = scope["type"]
        if kind == "http":
            if not self._looked:
                self._look_for_a_lifespan()
            own = self._own_scope(scope)
            if own is not None:
                await self._plugins(own, receive, send)
                return
        elif kind == "lifespan" and self._lifespan is not None:
            await WrappedLifespan(self._app, self._lifespan, receive, send).run(scope)
            return
        await self._app(scope, receive, send)

    def _look_for_a_lifespan(self) -> None:
        """Log once, at the first request, if the server has sent no lifespan and nobody has entered it."""
        self._looked = True
        if not self._is_open():
            log.error("%s", NO_LIFESPAN, extra={"event": "wrap.no_lifespan_sent"})

    def _own_scope(self, scope: Scope) -> Scope | None:
        """Return the scope for the plugins' app; ``None``: the request is not theirs.

        It is a copy, because Litestar writes into scope and state. It contains what the host's middleware has put there
        (session, user, state, app).
        """
        try:
            root, path = _split(scope)
            if not self._routes.serve(path, scope["method"]):
                return None
            own = dict(scope)
            state = scope.get("state")
            own["state"] = dict(state) if isinstance(state, Mapping) else {}
            # Litestar cuts at the first occurrence of the root path, so the path must begin with it.
            own["root_path"] = root
            own["path"] = root + path
            if "app" in scope:
                own[_HOST_APP] = scope["app"]
        except Exception:
            log.exception(
                "a request could not be routed, and is passed on to the app",
                extra={"event": "wrap.routing_failed"},
            )
            return None
        return own


def _keep_host_app(app: Any) -> Any:
    """Restore the host's app in the scope, because Litestar replaces it; a host reads its state there."""

    async def served(scope: Scope, receive: Receive, send: Send) -> None:
        if _HOST_APP in scope:
            scope["app"] = scope[_HOST_APP]
        await app(scope, receive, send)

    return served


class _Routes:
    """Decides which requests a Litestar app would route to a handler.

    Litestar's own router decides. Its refusal takes ten times as long as its acceptance, and a host's own requests also
    pass here. So paths with another start than each of the plugins' are refused before.
    """

    def __init__(self, app: Litestar) -> None:
        self._route: Callable[..., Any] = app.asgi_router.handle_routing
        self._starts = tuple({route.path.partition("{")[0] for route in app.routes})

    def serve(self, path: str, method: str) -> bool:
        """Return whether a plugin's handler answers; the path is decoded, without the root path."""
        if "//" in path or path[-1:] == "/" or path[:1] != "/":
            path = normalize_path(path)
        if not path.startswith(self._starts):
            return False
        try:
            handler = self._route(path=path, method=method)[1]
        except HTTPException:  # not found, or another method
            return False
        return method != "OPTIONS" or not _is_added(handler)


def _is_added(handler: Any) -> bool:
    """Return whether Litestar itself added a handler; it adds one for OPTIONS to every route."""
    return bool(handler.fn.__module__ == HTTPRoute.__module__)


def _split(scope: Scope) -> tuple[str, str]:
    """Return the root path and the path below it; if the path is not below it, the whole path, as Starlette does."""
    path: str = scope["path"]
    root: str = (scope.get("root_path") or "").rstrip("/")
    if root and path.startswith(root) and path[len(root) : len(root) + 1] in {"", "/"}:
        path = path[len(root) :]
    return root, path
