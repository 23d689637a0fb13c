"""Checks the routes that plugins declare, and the prefix before them.

It imports Litestar only if plugins declare routes. So processes that serve no routes do not import it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from copy import copy
from typing import Any, Final

from flowactions_hookspecs.errors import PluginInvalid
from flowactions_hookspecs.hooks import Owned

RESERVED: Final = frozenset({"chat", "webhooks", "health", "nodes"})
"""Names below ``/integrations`` that are reserved for the plugin that provides the runtime."""

_SEGMENT: Final = re.compile(r"[^/{}?#%\\\s\x00-\x1f\x7f]+")


def check_prefix(prefix: str) -> None:
    """Check the prefix of every plugin route's path, which may be empty; raise `TypeError` or `ValueError`."""
    if not isinstance(prefix, str):
        raise TypeError(f"prefix must be text, not {type(prefix).__name__}")
    if not prefix:
        return
    segments = prefix.split("/")
    if segments[0] or not all(
        _SEGMENT.fullmatch(segment) and segment not in {".", ".."} for segment in segments[1:]
    ):
        raise ValueError(
            f"prefix must be a path such as '/flows': it begins with a slash, does not end with one, and is decoded text "
            f"without path parameters, query or empty segments; not {prefix!r}"
        )


def prefixed(handlers: Sequence[Any], prefix: str) -> Sequence[Any]:
    """Return routes to mount in a Litestar app, nested under a prefix that was checked."""
    from litestar import Router  # noqa: PLC0415

    return (Router(path=prefix, route_handlers=handlers),) if prefix else tuple(handlers)


def is_route_handler(item: object) -> bool:
    """Tell whether Litestar can mount an item."""
    from litestar import Controller, Router  # noqa: PLC0415
    from litestar.handlers import BaseRouteHandler  # noqa: PLC0415

    if isinstance(item, type):
        return issubclass(item, Controller | BaseRouteHandler)
    return isinstance(item, Router | BaseRouteHandler)


def own_handler(item: Any) -> Any:
    """Return a copy of a handler, because Litestar changes it for one host; return other items unchanged."""
    from litestar.handlers import BaseRouteHandler  # noqa: PLC0415

    return copy(item) if isinstance(item, BaseRouteHandler) else item


def check_routes(declared: Sequence[Owned[Any]]) -> None:
    """Check that plugins other than the runtime's declare HTTP routes, each below a path of its own; the message names path and plugins.

    Paths are below ``/integrations/<plugin>/``, and not among those that are reserved for the runtime.
    """
    owners: dict[tuple[str, str], str] = {}
    for plugin in dict.fromkeys(owned.plugin for owned in declared):
        handlers = [owned.value for owned in declared if owned.plugin == plugin]
        for method, path in _routes(plugin, handlers):
            _check_place(plugin, path)
            first = owners.setdefault((method, path), plugin)
            if first != plugin:
                raise PluginInvalid(
                    f"plugins {first!r} and {plugin!r} both declare the route {method} {path}; uninstall one of them"
                )


def _routes(plugin: str, handlers: Sequence[Any]) -> Iterable[tuple[str, str]]:
    from litestar import Litestar  # noqa: PLC0415
    from litestar.routes import HTTPRoute  # noqa: PLC0415

    try:
        app = Litestar(route_handlers=list(handlers), openapi_config=None, logging_config=None)
    except Exception as exc:
        raise PluginInvalid(
            f"the routes of plugin {plugin!r} cannot be mounted: {type(exc).__name__}: {exc}"
        ) from exc
    for route in app.routes:
        if not isinstance(route, HTTPRoute):
            raise PluginInvalid(f"plugin {plugin!r} declares {route.path}, which is not an HTTP route")
        for method in route.route_handler_map:
            if method != "OPTIONS":  # Litestar's own answer
                yield method, route.path_format


def _check_place(plugin: str, path: str) -> None:
    parts = path.strip("/").split("/")
    if parts[0] != "integrations" or len(parts) < 3 or parts[1].startswith("{"):
        raise PluginInvalid(
            f"plugin {plugin!r} declares the route {path}: a plugin's routes are below /integrations/<plugin>/"
        )
    if parts[1] in RESERVED:
        raise PluginInvalid(
            f"plugin {plugin!r} declares the route {path}: /integrations/{parts[1]} is reserved"
        )
