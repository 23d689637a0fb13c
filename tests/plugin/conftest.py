from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cache
from types import CodeType
from typing import Any

import pytest
from litestar import Router
from litestar.routes import HTTPRoute
from litestar.utils.signature import ParsedSignature
from sqlalchemy import event
from sqlalchemy.engine import Connection, Engine

from flowactions_hookspecs import core
from flowactions_hookspecs.hooks import Owned
from flowactions_hookspecs.routes import check_routes
from flowactions_plugin.pages.rendering import Renderer


@pytest.fixture(scope="session", autouse=True)
def routes_checked_once() -> Iterator[None]:
    """Each host that is loaded has its routes checked, which takes most of the time of loading: the same ones once.

    The check builds a Litestar app. These tests load thousands of hosts, nearly all of them with the plugin's own routes;
    those about the check itself are elsewhere (tests/contract).
    """
    checked: set[object] = set()

    def check(declared: Sequence[Owned[Any]], runtime_plugin: str) -> None:
        table = [_table(owned) for owned in declared]
        known = (runtime_plugin, *table)
        if None in table or known not in checked:
            check_routes(declared, runtime_plugin)
            checked.add(known)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(core, "check_routes", check)
        yield


@pytest.fixture(scope="session", autouse=True)
def signatures_parsed_once() -> Iterator[None]:
    """Each app of Litestar's parses the signatures of its handlers, which takes half of its time: the same function's once.

    A parsed signature is frozen, and depends on the function's code and its module alone.
    """
    parsed: dict[CodeType, ParsedSignature] = {}
    parse = ParsedSignature.from_fn

    def from_fn(fn: Callable[..., Any], signature_namespace: dict[str, Any]) -> ParsedSignature:
        code = getattr(fn, "__code__", None)
        if code is None:
            return parse(fn, signature_namespace)
        if code not in parsed:
            parsed[code] = parse(fn, signature_namespace)
        return parsed[code]

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(ParsedSignature, "from_fn", from_fn)
        yield


@pytest.fixture(scope="session", autouse=True)
def templates_compiled_once() -> Iterator[None]:
    """Each host compiles the templates of the pages: one set of them serves all."""
    make = vars(Renderer)["_environment"].func
    made = cache(lambda: make(Renderer()))
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(Renderer, "_environment", property(lambda _: made()))
        yield


class _Statements(dict[Any, Any]):
    """Compiled statements of all engines: what an engine keeps for itself, by the kind of its dialect in place of its own."""

    def get(self, key: Any, default: Any = None) -> Any:
        return super().get(_by_kind(key), default)

    def __setitem__(self, key: Any, compiled: Any) -> None:
        super().__setitem__(_by_kind(key), compiled)


def _by_kind(key: Any) -> Any:
    dialect, *others = key
    return type(dialect), getattr(dialect, "server_version_info", None), *others


@pytest.fixture(scope="session", autouse=True)
def statements_compiled_once() -> Iterator[None]:
    """Each test has an engine of its own, which compiles each statement once more: the same ones once for all."""
    shared = _Statements()

    def share(connection: Connection) -> None:
        connection.engine._compiled_cache = shared

    event.listen(Engine, "engine_connect", share)
    yield
    event.remove(Engine, "engine_connect", share)


def _table(owned: Owned[Any]) -> object:
    """Give what the check looks at in a router of HTTP routes; nothing for other handlers."""
    router = owned.value
    if not isinstance(router, Router) or not all(isinstance(route, HTTPRoute) for route in router.routes):
        return None
    routes = [
        (route.path, frozenset(route.methods), *(handler.fn.__code__ for handler in route.route_handlers))
        for route in router.routes
        if isinstance(route, HTTPRoute)
    ]
    return (owned.plugin, router.path, *routes)
