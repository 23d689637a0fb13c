"""The host of a benchmark's worker: what the contract requires and nothing else, so that its memory is the worker's."""

from __future__ import annotations

import os

from flowactions_hookspecs import DashboardPrincipal, Host, Node, Origin, Request

SECRET = "whsec_benchmark"


class BareHost(Host):
    """Signs everything with one secret, and does not ask to be told what has ended."""

    settings = os.environ

    async def dashboard_principal(self, request: Request) -> DashboardPrincipal | None:
        return None

    async def node(self, organization_id: str, flow_id: str, node_id: str) -> Node | None:
        return None

    async def signing_secret(self, origin: Origin) -> str | None:
        return SECRET
