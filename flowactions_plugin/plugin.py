"""What a host sees: the hook implementations, and nothing else."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING, Any

from flowactions_hookspecs import BackgroundTask, FlowActions, LogicActionType, NodeType, Runtime, hookimpl
from flowactions_plugin.services import Services

if TYPE_CHECKING:
    from litestar.types import ControllerRouterHandler
else:
    ControllerRouterHandler = Any

flowactions_contract = (1, 0)


@hookimpl
def flowactions_runtime(actions: FlowActions) -> Runtime:
    """Provide the outbox, transactions and pacing."""
    return actions.plugin_state(Services).runtime


@hookimpl
def flowactions_node_types(actions: FlowActions) -> Sequence[NodeType]:
    """Offer ``chat_message`` and ``webhook``."""
    return actions.plugin_state(Services).node_types


@hookimpl
def flowactions_logic_action_types(actions: FlowActions) -> Sequence[LogicActionType]:
    """Offer the webhook action."""
    return actions.plugin_state(Services).logic_action_types


@hookimpl
def flowactions_route_handlers(actions: FlowActions) -> Sequence[ControllerRouterHandler]:
    """Serve the outbox, the chat connection, and what signs its requests."""
    return actions.plugin_state(Services).route_handlers()


@hookimpl
def flowactions_background_tasks(actions: FlowActions) -> Sequence[BackgroundTask]:
    """Deliver what is in the outbox."""
    return actions.plugin_state(Services).background_tasks()


@hookimpl
def flowactions_lifespan(actions: FlowActions) -> Callable[[], AbstractAsyncContextManager[None]]:
    """Open the database before requests come, and close it after they end."""
    services = actions.plugin_state(Services)
    return lambda: services
