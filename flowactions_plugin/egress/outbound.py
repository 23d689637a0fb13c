"""The way out that the settings of a host ask for: its rules, its transport, and what is checked before."""

from __future__ import annotations

from flowactions_plugin.egress.attempt import Transport
from flowactions_plugin.egress.guard import EgressGuard, Resolve
from flowactions_plugin.egress.host_transport import HostTransport
from flowactions_plugin.egress.pool import most_connections
from flowactions_plugin.egress.sender import Validate
from flowactions_plugin.egress.transport import OutboundTransport
from flowactions_plugin.settings.model import Settings


def guard_of(settings: Settings, resolve: Resolve) -> EgressGuard:
    """Return the rules on addresses; ``resolve`` looks up names, where they are looked up here."""
    return EgressGuard(
        development=settings.environment == "development",
        allow=settings.egress_allow,
        resolve=resolve if settings.egress_resolve == "local" else None,
    )


def outbound(
    settings: Settings, guard: EgressGuard, host_transport: object | None
) -> tuple[Transport, Validate]:
    """Return the transport, to be created in the event loop that it is used in, and what parses a URL before.

    The plugin's own transport checks each address that it dials. What a host's transport or a proxy dials is not seen here,
    so names are resolved and checked before.
    """
    if host_transport is not None:
        return HostTransport(host_transport), guard.resolve
    proxy = settings.egress_proxy
    tunnels_all = settings.egress_proxy_tunnel == "all"
    limit = most_connections(settings.slots)
    transport = OutboundTransport(guard, limit, proxy, settings.egress_ca, tunnels_all=tunnels_all)
    return transport, guard.validate if proxy is None else guard.resolve
