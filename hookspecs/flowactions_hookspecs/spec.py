"""The hooks. Each is sync, called once when a host loads its plugins, and only declares.

A plugin implements any of them with `hookimpl`, in a module (or object) that its distribution names in the
entry-point group ``flowactions``. A hook names the arguments that it needs: ``host``, ``actions`` or both.
``actions`` is the plugin's own `FlowActions`; it works when the lifespan is open (`NotStarted` before). Hooks
do no async work: the objects that they return do it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING, Any, TypeAlias

from flowactions_hookspecs.host import Host
from flowactions_hookspecs.logic import LogicActionType
from flowactions_hookspecs.markers import hookspec
from flowactions_hookspecs.nodes import NodeType
from flowactions_hookspecs.origins import PluginOrigin
from flowactions_hookspecs.runtime import Runtime
from flowactions_hookspecs.tasks import BackgroundTask

if TYPE_CHECKING:
    from litestar.types import ControllerRouterHandler
else:
    ControllerRouterHandler = Any  # the contract imports no web framework

FlowActions: TypeAlias = Any
"""`flowactions_hookspecs.FlowActions`, whose module finds the plugins by these hooks, and so is not imported here."""


@hookspec
def flowactions_node_types(host: Host, actions: FlowActions) -> Sequence[NodeType]:  # type: ignore[empty-body]
    """Declare node types for the flow editor.

    Called once per plugin at load. A node type's ``reach`` is awaited each time such a node runs. If two
    plugins declare one name, an error names both.
    """


@hookspec
def flowactions_logic_action_types(host: Host, actions: FlowActions) -> Sequence[LogicActionType]:  # type: ignore[empty-body]
    """Declare kinds of logic action.

    Called once per plugin at load. ``dispatch`` is awaited by `FlowActions.dispatch` each time an action of
    that kind fires on the server. If two plugins declare one name, an error names both.
    """


@hookspec
def flowactions_runtime(host: Host, actions: FlowActions) -> Runtime:  # type: ignore[empty-body]
    """Declare the one `Runtime`: transactions, preparing a webhook, recording, advancing, recovering.

    Called once per plugin at load. If no plugin or two plugins declare one, an error names the plugins.
    """


@hookspec
def flowactions_signing_secrets(  # type: ignore[empty-body]
    host: Host, actions: FlowActions
) -> Mapping[str, Callable[[PluginOrigin], Awaitable[str | None]]]:
    """Declare the functions that return the signing secrets of the plugin's own webhooks.

    Called once per plugin at load. Return a mapping of `PluginOrigin.name` to an async callable. The callable is awaited
    before each attempt of such a delivery. It returns the present secret, or ``None``: send unsigned. If the object of
    the delivery no longer exists, it raises `OriginGone`, and the delivery ends ``dead``.
    """


@hookspec
def flowactions_route_handlers(host: Host, actions: FlowActions) -> Sequence[ControllerRouterHandler]:  # type: ignore[empty-body]
    """Declare Litestar HTTP routes under ``/integrations/<plugin>/``, with their own guards and error handling.

    Called once per plugin at load. The plugin that provides the runtime is called when the routes are first
    used. So a process that serves no routes imports no web framework. ``chat``, ``webhooks``, ``health`` and
    ``nodes`` are reserved. Mounting the routes must change nothing in the host. If two plugins declare one path
    and method, an error names both.
    """


@hookspec
def flowactions_background_tasks(host: Host, actions: FlowActions) -> Sequence[BackgroundTask]:  # type: ignore[empty-body]
    """Declare tasks that run in the host's process, once per process.

    Called once per plugin at load. Each task is started when the lifespan opens, after every plugin's
    `flowactions_lifespan`. If it crashes, it is restarted with backoff. On shutdown, it is cancelled and drained.
    """


@hookspec
def flowactions_lifespan(  # type: ignore[empty-body]
    host: Host, actions: FlowActions
) -> Callable[[], AbstractAsyncContextManager[object]]:
    """Declare a context that is opened before tasks start and requests come, and closed after they end.

    Called once per plugin at load. Return a factory, which is called at every start of the host: a function decorated
    with `contextlib.asynccontextmanager`, not its result.
    """
