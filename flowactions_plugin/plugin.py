"""What a host sees: the hook implementations, and nothing else."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager

from litestar.types import ControllerRouterHandler

from flowactions_hookspecs import (
    BackgroundTask,
    Host,
    LogicActionType,
    NodeType,
    StepListener,
    hookimpl,
)
from flowactions_plugin.services import Services


@hookimpl
def flowactions_node_types(host: Host) -> Sequence[NodeType]:
    """Offer ``chat_message`` and ``webhook``."""
    return host.plugin_state(Services).node_types()


@hookimpl
def flowactions_step_listeners(host: Host) -> Sequence[StepListener]:
    """Run deferred nodes when the user gets to their step."""
    return host.plugin_state(Services).step_listeners()


@hookimpl
def flowactions_logic_action_types(host: Host) -> Sequence[LogicActionType]:
    """Offer the webhook action."""
    return host.plugin_state(Services).logic_action_types()


@hookimpl
def flowactions_route_handlers(host: Host) -> Sequence[ControllerRouterHandler]:
    """Serve the outbox and the chat connection."""
    return host.plugin_state(Services).route_handlers()


@hookimpl
def flowactions_background_tasks(host: Host) -> Sequence[BackgroundTask]:
    """Deliver what is in the outbox."""
    return host.plugin_state(Services).background_tasks()


@hookimpl
def flowactions_lifespan(host: Host) -> AbstractAsyncContextManager[None]:
    """Open the database before requests come, and close it after they end."""
    return host.plugin_state(Services)
