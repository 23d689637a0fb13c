"""`FlowActions`: the typed facade through which a host uses its flow-action plugins."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import datetime
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from litestar.types import ControllerRouterHandler

from flowactions_hookspecs import plugins as registry
from flowactions_hookspecs.errors import AlreadyStarted, NotStarted, StartFailed, TransactionInvalid
from flowactions_hookspecs.host import Host
from flowactions_hookspecs.ids import check_firing, check_node, check_run, check_step, check_walk
from flowactions_hookspecs.logic import Firing, LogicActionRef, LogicActionType, Receipt
from flowactions_hookspecs.nodes import Advanced, AdvancedState, Node, NodeResult, NodeType, Walk
from flowactions_hookspecs.openapi import openapi_document
from flowactions_hookspecs.tasks import Supervisor
from flowactions_hookspecs.wrap import ASGIApp, Wrapped

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncConnection

log = logging.getLogger("flowactions")

PLUGIN_ERROR_MESSAGE = "The plugin failed unexpectedly; the server's log has the details."


class FlowActions:
    """The node types, routes and background work of every installed plugin, for one host.

    Build it with `load`, mount `route_handlers`, enter `lifespan`, then call `reach`, `advance` and
    `dispatch` from the flow walker. Two of them, for two hosts, are independent.

    Attributes:
        host: the host.
        node_types: name → node type, for the flow editor.
        route_handlers: Litestar routes to mount; for other frameworks there is `wrap`.
        plugin_names: the plugins that were loaded, in the order in which they are asked.
    """

    def __init__(self, host: Host, plugins: Iterable[object] = ()) -> None:
        """Load the plugins. `FlowActions.load` is the same and reads better."""
        self.host = registry.check_host(host)
        manager = registry.plugin_manager(plugins)

        def collect(hook: str, kind: str, accepts: Any) -> list[registry.Owned[Any]]:
            return registry.collect(manager, self.host, hook, kind, accepts)

        node_types = collect("flowactions_node_types", "NodeType", registry.is_node_type)
        registry.unique(node_types, "node type")
        actions = collect("flowactions_logic_action_types", "LogicActionType", registry.is_logic_action_type)
        registry.unique(actions, "logic action type")
        tasks = collect("flowactions_background_tasks", "BackgroundTask", registry.is_background_task)
        registry.unique(tasks, "background task")

        self.plugin_names: Sequence[str] = tuple(name for name, _ in reversed(manager.list_name_plugin()))
        self.node_types: Mapping[str, NodeType] = MappingProxyType(
            {node_type.name: node_type for _, node_type in node_types}
        )
        self.route_handlers: Sequence[ControllerRouterHandler] = tuple(
            handler
            for _, handler in collect(
                "flowactions_route_handlers", "Litestar routers or handlers", registry.is_route_handler
            )
        )
        self._step_listeners = collect("flowactions_step_listeners", "async callables", callable)
        self._logic_action_types: Mapping[str, LogicActionType] = {action.name: action for _, action in actions}
        self._tasks = tuple(task for _, task in tasks)
        self._lifespans = registry.collect_lifespans(manager, self.host)
        self._running = False

    @classmethod
    def load(cls, host: Host, *, plugins: Iterable[object] = ()) -> FlowActions:
        """Load every installed plugin for ``host``.

        Args:
            host: an instance of a `Host` subclass.
            plugins: further plugins that are not installed as distributions.

        Raises:
            HostInvalid: the host lacks something; the message lists what.
            PluginInvalid: a plugin breaks the contract; the message names it.
            SettingsInvalid: the host's settings cannot be used; the message lists every one.
        """
        return cls(host, plugins)

    @asynccontextmanager
    async def lifespan(self, app: object = None) -> AsyncIterator[None]:  # noqa: ARG002  frameworks pass it
        """Open what the plugins need and run their background tasks until the context is left.

        Enter it once per process, before the first request. It can be entered again after it was left.

        Args:
            app: ignored; frameworks pass themselves here.

        Raises:
            AlreadyStarted: it is open.
            StartFailed: a plugin could not be opened; the message names it.
        """
        if self._running:
            raise AlreadyStarted
        self._running = True
        try:
            async with AsyncExitStack() as stack:
                for plugin, context in self._lifespans:
                    try:
                        await stack.enter_async_context(context)
                    except Exception as exc:
                        message = f"plugin {plugin!r} could not be started: {type(exc).__name__}: {exc}"
                        raise StartFailed(message) from exc
                await stack.enter_async_context(Supervisor(self._tasks))
                yield
        finally:
            self._running = False

    def wrap(self, app: ASGIApp, *, lifespan: bool = True) -> Wrapped:
        """Give an ASGI app that serves the plugins' routes and passes everything else on to ``app``.

        For hosts that are not Litestar apps: ``api.add_middleware(actions.wrap)`` in Starlette and FastAPI, before the
        session's, so that the session is known in it; ``app = actions.wrap(app)`` for any other.

        Args:
            app: the host's ASGI app. It starts first and stops last.
            lifespan: whether the server's lifespan also opens and closes the plugins. Without, enter `lifespan` yourself.
        """
        return Wrapped(app, self.route_handlers, self.lifespan if lifespan else None)

    def openapi(self) -> dict[str, Any]:
        """Give the OpenAPI document of the plugins' routes, JSON-ready, for hosts that are not Litestar apps."""
        return openapi_document(self.route_handlers)

    async def reach(self, walk: Walk, node: Node, transaction: AsyncConnection | None = None) -> NodeResult:
        """Run the action node that the walk has reached, or record it when the pacing is deferred (§3.2).

        Nothing that a config, a provider or a receiver can cause raises. Stop the walk when the
        result says ``halt``.

        Args:
            walk: the run, as it stands at the node.
            node: the node.
            transaction: an open `AsyncConnection` of `Host.database`'s database that nobody else uses meanwhile. What
                is written joins its transaction and commits or rolls back with it.

        Raises:
            NotStarted: the lifespan is not open.
            TransactionInvalid: the transaction cannot be joined; a `ValueError`.
        """
        self._check_running()
        check_walk(walk)
        check_node(node)
        node_type = self.node_types.get(node.type)
        if node_type is None:
            log.error("no plugin offers node type %r of node %r", node.type, node.id)
            return NodeResult(
                node_id=node.id,
                status="failed",
                reason="unknown_node_type",
                message=f"No installed plugin offers the node type {node.type!r}.",
            )
        try:
            return registry.returned(await node_type.reach(walk, node, transaction), NodeResult, node_type.name)
        except TransactionInvalid:
            raise
        except Exception:
            log.exception("node %r of type %r failed in its plugin", node.id, node.type)
            return _failed(node.id)

    async def advance(
        self, walk: Walk, step_id: str | None, transaction: AsyncConnection | None = None
    ) -> Advanced:
        """Run what was recorded against the content step that the user advanced to, once (§3.2).

        Call it on ``flow.next``, before the walk moves, and do what the state says. Of the walk, only organization,
        run and flow are used: nodes run with the walk as it was when they were recorded.

        Args:
            walk: the run, as it stands now.
            step_id: the content step; ``None`` is the end of the flow.
            transaction: as for `reach`.

        Raises:
            NotStarted: the lifespan is not open.
            TransactionInvalid: the transaction cannot be joined; a `ValueError`.
        """
        self._check_running()
        check_run(walk)
        check_step("step_id", step_id)
        results: list[NodeResult] = []
        states: list[AdvancedState] = []
        for plugin, listener in self._step_listeners:
            try:
                given = await listener(walk, step_id, transaction)
                advanced = registry.returned(given, Advanced, "a step listener")
            except TransactionInvalid:
                raise
            except Exception:
                log.exception("a step listener of plugin %s failed", plugin)
                advanced = Advanced(state="unavailable", results=(_failed(""),))
            results += advanced.results
            states.append(advanced.state)
            if advanced.state in {"halted", "running"}:
                return Advanced(state=advanced.state, results=tuple(results))
        return Advanced(state="unavailable" if "unavailable" in states else "done", results=tuple(results))

    async def dispatch(
        self,
        ref: LogicActionRef,
        *,
        firing_id: str,
        occurred_at: datetime,
        transaction: AsyncConnection | None = None,
        action_type: str = "webhook",
    ) -> Receipt:
        """Run a logic action that fired on the server: enqueue its webhook (§2.8).

        Args:
            ref: the action.
            firing_id: names this firing among all of the action's. Dispatching again with the same one and the same
                ``occurred_at`` enqueues the same bytes under the same event id, so that receivers can dedupe.
            occurred_at: when it fired, with time zone.
            transaction: as for `reach`.
            action_type: the name of a `LogicActionType`.

        Raises:
            NotStarted: the lifespan is not open.
            TransactionInvalid: the transaction cannot be joined; a `ValueError`.
        """
        self._check_running()
        firing = Firing(ref=ref, firing_id=firing_id, occurred_at=occurred_at)
        check_firing(firing)
        kind = self._logic_action_types.get(action_type)
        if kind is None:
            log.error("no plugin offers logic action type %r", action_type)
            message = f"No installed plugin offers the logic action type {action_type!r}."
            return Receipt(status="failed", reason="unknown_action_type", message=message)
        try:
            return registry.returned(await kind.dispatch(firing, transaction), Receipt, kind.name)
        except TransactionInvalid:
            raise
        except Exception:
            log.exception("logic action of type %s failed in its plugin", action_type)
            return Receipt(status="failed", reason="plugin_error", message=PLUGIN_ERROR_MESSAGE)

    def _check_running(self) -> None:
        if not self._running:
            raise NotStarted


def _failed(node_id: str) -> NodeResult:
    return NodeResult(node_id=node_id, status="failed", reason="plugin_error", message=PLUGIN_ERROR_MESSAGE)
