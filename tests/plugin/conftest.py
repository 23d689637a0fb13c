from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from litestar import Router
from litestar.routes import HTTPRoute

from flowactions_hookspecs import core
from flowactions_hookspecs.hooks import Owned
from flowactions_hookspecs.routes import check_routes
from flowactions_plugin.storage import sqlite, waiting
from tests.waiting import SAFETY_SECONDS


@pytest.fixture(scope="session", autouse=True)
def databases_have_time() -> Iterator[None]:
    """A database that answers slowly on a busy machine is not away: tests about these limits set their own."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(waiting, "ANSWER_SECONDS", SAFETY_SECONDS)
        patched.setattr(sqlite, "WAIT_SECONDS", SAFETY_SECONDS)
        yield


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
