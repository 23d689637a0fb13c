"""The kit's list of routes is the plugin's own."""

from __future__ import annotations

import re

from flowactions_conformance.kit.support.routes import NOWHERE, ROUTES
from flowactions_hookspecs import DashboardPrincipal, FlowActions, Host, Node, Request


class _Host(Host):
    def __init__(self) -> None:
        self.settings = {}

    async def dashboard_principal(self, request: Request) -> DashboardPrincipal | None:
        return None

    async def node(self, organization_id: str, flow_id: str, node_id: str) -> Node | None:
        return None


def test_every_route_of_the_plugin_is_in_the_list() -> None:
    """A route that is added to the plugin is one that the kit asks a host for."""
    paths = FlowActions.load(_Host()).openapi()["paths"]
    declared = {
        (method.upper(), re.sub(r"\{[^}]+\}", "*", path))
        for path, methods in paths.items()
        for method in methods
    }
    listed = {
        (
            route.method,
            route.path.partition("?")[0].replace(NOWHERE, "*").replace("/experiences/e/", "/experiences/*/"),
        )
        for route in ROUTES
    }
    assert listed == declared


def test_what_changes_something_is_marked() -> None:
    """The routes that a person who may only look is refused at are those that change something, or send."""
    looking = {(route.method, route.path.rpartition("/")[2]) for route in ROUTES if not route.changes}
    assert {name for method, name in looking if method == "POST"} == {
        "auth",
        "check",
        "events",
        "logic-webhook",
        "preview",
    }
