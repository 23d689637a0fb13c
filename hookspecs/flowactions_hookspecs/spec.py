"""The hooks. Each is sync, called once when a host loads its plugins, and only declares.

A plugin implements any of them with `hookimpl` in a module (or object) that its distribution names in
the entry-point group ``flowactions``. Async work lives in what the hooks return.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager

from litestar.types import ControllerRouterHandler

from flowactions_hookspecs.host import Host
from flowactions_hookspecs.logic import LogicActionType
from flowactions_hookspecs.markers import hookspec
from flowactions_hookspecs.nodes import NodeType, StepListener
from flowactions_hookspecs.tasks import BackgroundTask


@hookspec
def flowactions_node_types(host: Host) -> Sequence[NodeType]:  # type: ignore[empty-body]
    """Declare node types for the flow editor.

    Called once per plugin at load. A node type's ``reach`` is awaited each time a walk reaches such a
    node. A name declared twice is an error that names both plugins.
    """


@hookspec
def flowactions_step_listeners(host: Host) -> Sequence[StepListener]:  # type: ignore[empty-body]
    """Declare listeners for a client-paced flow's progress (§3.2).

    Called once per plugin at load. Each listener is awaited by `FlowActions.advance` with the walk and
    the content step that the user advanced to (``None``: the end of the flow), and returns what came of it.
    """


@hookspec
def flowactions_logic_action_types(host: Host) -> Sequence[LogicActionType]:  # type: ignore[empty-body]
    """Declare kinds of logic action.

    Called once per plugin at load. ``dispatch`` is awaited by `FlowActions.dispatch` each time an action
    of that kind fires on the server. A name declared twice is an error that names both plugins.
    """


@hookspec
def flowactions_route_handlers(host: Host) -> Sequence[ControllerRouterHandler]:  # type: ignore[empty-body]
    """Declare Litestar routes, with their own guards and error handling.

    Called once per plugin at load. Mounting them must change nothing in the host.
    """


@hookspec
def flowactions_background_tasks(host: Host) -> Sequence[BackgroundTask]:  # type: ignore[empty-body]
    """Declare tasks that run beside the host.

    Called once per plugin at load. Each task is started when the lifespan opens, after every plugin's
    `flowactions_lifespan`; restarted with backoff when it crashes; cancelled and drained on shutdown.
    """


@hookspec
def flowactions_lifespan(host: Host) -> AbstractAsyncContextManager[None]:  # type: ignore[empty-body]
    """Declare what to open before tasks start and requests come, and to close after they end.

    Called once per plugin at load. The context manager is entered at every start of the host and left
    at every stop, so it must be usable again after it was left.
    """
