"""The hooks. Each is sync, called once when a host loads its plugins, and only declares.

A plugin implements any of them with `hookimpl` in a module (or object) that its distribution names in
the entry-point group ``flowactions``. A hook names the arguments that it wants out of ``host`` and ``actions``;
``actions`` is the plugin's own `FlowActions`, which works once the lifespan is open (`NotStarted` before).
Async work lives in what the hooks return.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING, Any

from flowactions_hookspecs.host import Host
from flowactions_hookspecs.logic import LogicActionType
from flowactions_hookspecs.markers import hookspec
from flowactions_hookspecs.nodes import NodeType
from flowactions_hookspecs.origins import PluginOrigin
from flowactions_hookspecs.runtime import Runtime
from flowactions_hookspecs.tasks import BackgroundTask

if TYPE_CHECKING:
    from litestar.types import ControllerRouterHandler

    from flowactions_hookspecs.actions import FlowActions
else:
    # actions.py imports this module, and the contract imports no web framework.
    ControllerRouterHandler = FlowActions = Any


@hookspec
def flowactions_node_types(host: Host, actions: FlowActions) -> Sequence[NodeType]:  # type: ignore[empty-body]
    """Declares node types for the flow editor.

    Called once per plugin at load. A node type's ``reach`` is awaited each time such a node is to run. A name declared
    twice is an error that names both plugins.
    """


@hookspec
def flowactions_logic_action_types(host: Host, actions: FlowActions) -> Sequence[LogicActionType]:  # type: ignore[empty-body]
    """Declares kinds of logic action.

    Called once per plugin at load. ``dispatch`` is awaited by `FlowActions.dispatch` each time an action
    of that kind fires on the server. A name declared twice is an error that names both plugins.
    """


@hookspec
def flowactions_runtime(host: Host, actions: FlowActions) -> Runtime:  # type: ignore[empty-body]
    """Declares the one `Runtime`: transactions, preparing a webhook, recording, advancing, recovering.

    Called once per plugin at load. None, or two, is an error that names the plugins.
    """


@hookspec
def flowactions_signing_secrets(  # type: ignore[empty-body]
    host: Host, actions: FlowActions
) -> Mapping[str, Callable[[PluginOrigin], Awaitable[str | None]]]:
    """Declares where the signing secrets of the plugin's own webhooks are found.

    Called once per plugin at load. Returns a mapping of `PluginOrigin.name` to an async callable, which is awaited
    before each attempt of such a delivery and returns the secret as it is now; ``None``: unsigned. It raises
    `OriginGone` when what the delivery belongs to no longer exists; the delivery then ends ``dead``.
    """


@hookspec
def flowactions_route_handlers(host: Host, actions: FlowActions) -> Sequence[ControllerRouterHandler]:  # type: ignore[empty-body]
    """Declares Litestar HTTP routes under ``/integrations/<plugin>/``, with their own guards and error handling.

    Called once per plugin at load. The plugin that provides the runtime is called when routes are first asked for, so
    that a process that serves none imports no web framework. ``chat``, ``webhooks``, ``health`` and ``nodes`` are
    reserved. Mounting them must change nothing in the host. A path and method that two plugins declare is an error that
    names both.
    """


@hookspec
def flowactions_background_tasks(host: Host, actions: FlowActions) -> Sequence[BackgroundTask]:  # type: ignore[empty-body]
    """Declares tasks that run beside the host, once per process.

    Called once per plugin at load. Each task is started when the lifespan opens, after every plugin's
    `flowactions_lifespan`; restarted with backoff when it crashes; cancelled and drained on shutdown.
    """


@hookspec
def flowactions_lifespan(  # type: ignore[empty-body]
    host: Host, actions: FlowActions
) -> Callable[[], AbstractAsyncContextManager[object]]:
    """Declares what to open before tasks start and requests come, and to close after they end.

    Called once per plugin at load. Returns a factory, which is called at every start of the host: a function decorated
    with `contextlib.asynccontextmanager`, not its result.
    """
