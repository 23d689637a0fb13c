"""`FlowActions`: the typed facade through which a host uses its flow-action plugins."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from datetime import datetime
from typing import TYPE_CHECKING, Any, TypeVar, cast

from flowactions_hookspecs.base import AsyncConnection
from flowactions_hookspecs.checks import (
    check_firing,
    check_node,
    check_optional_id,
    check_run,
    check_walk,
    check_webhook,
)
from flowactions_hookspecs.core import Core
from flowactions_hookspecs.editing import Editing, unknown_type
from flowactions_hookspecs.errors import TransactionInvalid
from flowactions_hookspecs.hooks import returned
from flowactions_hookspecs.host import Host, provides
from flowactions_hookspecs.logic import Firing
from flowactions_hookspecs.nodes import (
    PLUGIN_ERROR_MESSAGE,
    Advanced,
    Node,
    NodeResult,
    NodeType,
    Walk,
    plugin_failed,
)
from flowactions_hookspecs.origins import LogicActionRef, PluginOrigin
from flowactions_hookspecs.runtime import PreparedWebhook
from flowactions_hookspecs.webhooks import OutboundWebhook, Receipt

if TYPE_CHECKING:
    from litestar.types import ControllerRouterHandler

    from flowactions_hookspecs.wrap import ASGIApp, Wrapped
else:
    # Frameworks resolve annotations at run time, and the contract imports no Litestar.
    ASGIApp = ControllerRouterHandler = Wrapped = Any

log = logging.getLogger("flowactions")

T = TypeVar("T")


class FlowActions(Editing):
    """The node types, routes and background tasks of every installed plugin, for one host.

    Build it with `load`, mount `route_handlers` or use `wrap`, open `lifespan`, then call `reach`, `advance` and
    `dispatch` from the flow walker. The objects of two hosts are independent.

    Use it from the event loop of its lifespan; `call` is for threads. Each coroutine raises `NotStarted` if the lifespan
    is not open, `WrongLoop` if it is open in another event loop, and `TypeError` or `ValueError` if an argument cannot be
    used.

    A ``transaction`` is an open `AsyncConnection` of `Host.database`'s database that no other code uses meanwhile. What
    the plugin writes joins it, and is committed or rolled back with it. It stays usable after any result. If it cannot
    be joined, the call raises `TransactionInvalid`, a `ValueError`.
    """

    def __init__(self, host: Host, plugins: Iterable[object] = (), *, prefix: str = "") -> None:
        """Load the plugins; `FlowActions.load` does the same, and is the usual way."""
        self._core = Core(host, prefix)
        self._caller = "host"
        self._core.load(plugins, lambda plugin: {"host": host, "actions": self._for_plugin(plugin)})

    @classmethod
    def load(cls, host: Host, *, plugins: Iterable[object] = (), prefix: str = "") -> FlowActions:
        """Load every installed plugin for ``host``. One host object has one `FlowActions`.

        Args:
            host: an instance of a `Host` subclass.
            plugins: further plugins that are not installed as distributions.
            prefix: before the path of every plugin route, for example ``/api``.

        Raises:
            HostInvalid: the host lacks something, or was loaded before; the message lists what.
            PluginInvalid: a plugin breaks the contract; the message names it.
            SettingsInvalid: the host's settings cannot be used; the message lists every one.
            TypeError, ValueError: the prefix is not a path such as ``/api``.
        """
        return cls(host, plugins, prefix=prefix)

    def _for_plugin(self, plugin: str) -> FlowActions:
        """Return the `FlowActions` for a plugin's hooks: the same core, with the plugin as the caller."""
        own = object.__new__(FlowActions)
        own._core = self._core
        own._caller = f"plugin:{plugin}"
        return own

    @property
    def host(self) -> Host:
        """The host."""
        return self._core.host

    @property
    def prefix(self) -> str:
        """The prefix of every plugin route's path."""
        return self._core.prefix

    @property
    def node_types(self) -> Mapping[str, NodeType]:
        """Name → node type, for the flow editor."""
        return self._core.node_types

    @property
    def route_handlers(self) -> Sequence[ControllerRouterHandler]:
        """Litestar routes to mount, under the prefix; `wrap` is for other frameworks."""
        return self._core.route_handlers

    @property
    def plugin_names(self) -> Sequence[str]:
        """The names of the loaded plugins, in the order in which their hooks are called."""
        return self._core.plugin_names

    @property
    def signing_secrets(self) -> Mapping[tuple[str, str], Callable[[PluginOrigin], Any]]:
        """Plugin and origin name → the function that returns the signing secret; for the runtime."""
        return self._core.signing_secrets

    def plugin_state(self, factory: Callable[[Host, FlowActions], T]) -> T:
        """Return the one object that ``factory`` made for this host, making it at the first call.

        A plugin stores its data for a host here, not at module level, so that two hosts in one process are
        independent. The factory is called once, as ``factory(host, actions)``.
        """
        states = self._core.states
        if factory not in states:
            states[factory] = factory(self.host, self)
        return cast("T", states[factory])

    @asynccontextmanager
    async def lifespan(self, app: object = None, *, tasks: bool = True) -> AsyncIterator[None]:  # noqa: ARG002  frameworks pass it
        """Open the plugins' lifespans and run their background tasks until the context is left.

        Enter it once per process, before the first request. After it was left, you can enter it again. While it is open,
        use the facade from this event loop.

        Args:
            app: ignored; frameworks pass themselves here.
            tasks: whether to run the background tasks; ``False`` in schedulers, queue workers and management commands.

        Raises:
            AlreadyStarted: it is already open.
            StartFailed: a plugin could not be opened; the message names it.
        """
        async with self._core.lifespan(tasks=tasks):
            yield

    def wrap(self, app: ASGIApp, *, lifespan: bool = True) -> Wrapped:
        """Return an ASGI app that serves the plugins' routes and passes all other requests to ``app``.

        For hosts that are not Litestar apps. In Starlette and FastAPI: ``api.add_middleware(actions.wrap)``, before the
        session's middleware, so that the plugins' routes have the session. In others: ``app = actions.wrap(app)``.

        Args:
            app: the host's ASGI app. It starts first and stops last.
            lifespan: whether the server's lifespan also opens and closes the plugins. If not, enter `lifespan` yourself.
        """
        from flowactions_hookspecs.wrap import Wrapped  # noqa: PLC0415  imports Litestar

        opens = self.lifespan if lifespan else None
        return Wrapped(app, self.route_handlers, opens, lambda: self._core.is_open)

    def openapi(self) -> dict[str, Any]:
        """Return the OpenAPI document of the plugins' routes, as JSON values, for hosts that are not Litestar apps."""
        from flowactions_hookspecs.openapi import openapi_document  # noqa: PLC0415  imports Litestar

        return openapi_document(self.route_handlers)

    def call(self, coroutine: Coroutine[Any, Any, T], *, timeout: float | None = None) -> T:
        """Run one of this object's coroutines from another thread, and wait for its result.

        Args:
            coroutine: for example ``actions.enqueue(webhook)``.
            timeout: seconds to wait; ``None``: no limit.

        Raises:
            NotStarted: the lifespan is not open, or was closed before the call had ended.
            WrongLoop: this thread runs the lifespan's event loop: await the coroutine instead.
            TimeoutError: it took longer; the coroutine is cancelled.
        """
        return self._core.call(coroutine, timeout)

    async def reach(self, walk: Walk, node: Node, transaction: AsyncConnection | None = None) -> NodeResult:
        """Run the action node that the walk has reached, or record it when the pacing is `Deferred` (§3.2).

        It does not raise for anything that a config, a provider or a receiver causes. If the result's ``halt``
        is true, stop the walk.

        Args:
            walk: the run at this node.
            node: the node.
            transaction: the host's; ``None``: one of the plugin's own.
        """
        self._core.check_usable()
        check_walk(walk)
        check_node(node)
        if node.type not in self.node_types:
            log.error(
                "no plugin offers node type %r of node %r",
                node.type,
                node.id,
                extra={"event": "node.unknown_type"},
            )
            problem = unknown_type(node.type)
            return NodeResult(node_id=node.id, status="failed", reason=problem.code, message=problem.message)
        try:
            return returned(await self._core.runtime.reach(walk, node, transaction), NodeResult, "the runtime")
        except TransactionInvalid:
            raise
        except Exception:
            log.exception(
                "node %r of type %r failed in its plugin", node.id, node.type, extra={"event": "node.failed"}
            )
            return plugin_failed(node.id)

    async def advance(
        self, walk: Walk, step_id: str | None, transaction: AsyncConnection | None = None
    ) -> Advanced:
        """Run the nodes that were recorded for the content step that the user comes to, once (§3.2).

        Call it on ``flow.next``, before the walk moves, and do what the state says. Of the walk, only organization,
        run and flow are used: nodes run with the walk as it was recorded. Without ``transaction``, the plugin repeats
        what failed.

        Args:
            walk: the run, as it is now.
            step_id: the content step; ``None`` is the end of the flow.
            transaction: as for `reach`.
        """
        self._core.check_usable()
        check_run(walk)
        check_optional_id("step_id", step_id)
        try:
            return returned(
                await self._core.runtime.advance(walk, step_id, transaction), Advanced, "the runtime"
            )
        except TransactionInvalid:
            raise
        except Exception:
            log.exception("the runtime failed to advance a run", extra={"event": "runtime.advance_failed"})
            return Advanced(state="done" if transaction is None else "unavailable")

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
            firing_id: the id of this firing, unique for the action. If you dispatch again with the same id and
                the same ``occurred_at``, the same bytes are enqueued with the same event id, so that receivers
                can dedupe.
            occurred_at: when it fired, with time zone.
            transaction: as for `reach`.
            action_type: the name of a `LogicActionType`.
        """
        self._core.check_usable()
        firing = Firing(ref=ref, firing_id=firing_id, occurred_at=occurred_at)
        check_firing(firing)
        kind = self._core.logic_action_types.get(action_type)
        if kind is None:
            log.error(
                "no plugin offers logic action type %r",
                action_type,
                extra={"event": "logic_action.unknown_type"},
            )
            message = f"No installed plugin offers the logic action type {action_type!r}."
            return Receipt(status="failed", reason="unknown_action_type", message=message)
        try:
            return returned(await kind.dispatch(firing, transaction), Receipt, kind.name)
        except TransactionInvalid:
            raise
        except Exception:
            log.exception(
                "logic action of type %s failed in its plugin",
                action_type,
                extra={"event": "logic_action.failed"},
            )
            return Receipt(status="failed", reason="plugin_error", message=PLUGIN_ERROR_MESSAGE)

    async def enqueue(self, webhook: OutboundWebhook, transaction: AsyncConnection | None = None) -> Receipt:
        """Enqueue a webhook of the caller's own, through the same outbox. Not fail-open.

        With a ``transaction``, it is due when that commits.

        Returns:
            ``queued``, ``duplicate`` (with the ids of the first delivery with this key) or ``skipped`` (refused URL, too
            large).

        Raises:
            NotQueued: the database failed. Nothing was written, unless the answer to a commit was lost. With an
                idempotency key, calling again is safe in any case.
        """
        self._core.check_usable()
        self._check_webhook(webhook)
        return await self._core.runtime.enqueue(webhook, self._caller, transaction)

    async def prepare(self, webhook: OutboundWebhook) -> PreparedWebhook:
        """Apply the egress rules to a webhook and make its final bytes; no SQL, nothing is written.

        For a plugin's own node type: ``return InTransaction(prepared.write)`` makes its node as durable as ``webhook``.
        For a transaction that is not async: `PreparedWebhook.statements`.
        """
        self._core.check_usable()
        self._check_webhook(webhook)
        return await self._core.runtime.prepare(webhook, self._caller)

    def _check_webhook(self, webhook: OutboundWebhook) -> None:
        host_signs = provides(self.host, "signing_secret")
        check_webhook(webhook, self._caller, self.signing_secrets, host_signs=host_signs)
