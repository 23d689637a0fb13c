"""`FlowActions`: the typed facade through which a host uses its flow-action plugins."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from datetime import datetime
from typing import TYPE_CHECKING, Any, TypeVar

from flowactions_hookspecs.checks import (
    check_firing,
    check_node,
    check_run,
    check_step,
    check_walk,
    check_webhook,
)
from flowactions_hookspecs.core import Core
from flowactions_hookspecs.editing import Editing, unknown_type
from flowactions_hookspecs.errors import TransactionInvalid
from flowactions_hookspecs.hooks import returned
from flowactions_hookspecs.host import Host
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
from flowactions_hookspecs.webhooks import OutboundWebhook, PreparedWebhook, Receipt

if TYPE_CHECKING:
    from litestar.types import ControllerRouterHandler
    from sqlalchemy.ext.asyncio import AsyncConnection

    from flowactions_hookspecs.wrap import ASGIApp, Wrapped
else:
    # Frameworks resolve annotations at run time, and the contract imports neither Litestar nor SQLAlchemy.
    ASGIApp = AsyncConnection = ControllerRouterHandler = Wrapped = Any

log = logging.getLogger("flowactions")

T = TypeVar("T")


class FlowActions(Editing):
    """The node types, routes and background work of every installed plugin, for one host.

    Build it with `load`, mount `route_handlers` or use `wrap`, open `lifespan`, then call `reach`, `advance` and
    `dispatch` from the flow walker. It is used from the event loop of its lifespan; `call` is for threads. Two of them,
    for two hosts, are independent.
    """

    def __init__(self, host: Host, plugins: Iterable[object] = (), *, prefix: str = "") -> None:
        """Loads the plugins. `FlowActions.load` is the same and reads better."""
        self._core = Core(host, prefix)
        self._caller = "host"
        self._core.load(plugins, lambda plugin: {"host": host, "actions": self._for_plugin(plugin)})

    @classmethod
    def load(cls, host: Host, *, plugins: Iterable[object] = (), prefix: str = "") -> FlowActions:
        """Loads every installed plugin for ``host``. One host object has one `FlowActions`.

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
        """Returns what a plugin's hooks are given: the same, with the plugin as the caller."""
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
        """What stands before the path of every plugin route."""
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
        """The plugins that were loaded, in the order in which they are asked."""
        return self._core.plugin_names

    @property
    def signing_secrets(self) -> Mapping[tuple[str, str], Callable[[PluginOrigin], Any]]:
        """Plugin and origin name → what resolves the signing secret; for the runtime."""
        return self._core.signing_secrets

    def plugin_state(self, factory: Callable[[Host, FlowActions], T]) -> T:
        """Returns the one object that ``factory`` made for this host, making it at the first call.

        A plugin keeps what belongs to a host here rather than at module level, so two hosts in one
        process do not see each other.

        Args:
            factory: ``factory(host, actions)``; called once.
        """
        return self._core.state(factory, self.host, self)

    @asynccontextmanager
    async def lifespan(self, app: object = None, *, tasks: bool = True) -> AsyncIterator[None]:  # noqa: ARG002  frameworks pass it
        """Opens what the plugins need and runs their background tasks until the context is left.

        Open it once per process, before the first request. It can be opened again after it was left. The facade is
        then used from this event loop.

        Args:
            app: ignored; frameworks pass themselves here.
            tasks: whether to run the background tasks; not in schedulers, queue workers and management commands.

        Raises:
            AlreadyStarted: it is open.
            StartFailed: a plugin could not be opened; the message names it.
        """
        async with self._core.lifespan(tasks=tasks):
            yield

    def wrap(self, app: ASGIApp, *, lifespan: bool = True) -> Wrapped:
        """Returns an ASGI app that serves the plugins' routes and passes everything else on to ``app``.

        For hosts that are not Litestar apps: ``api.add_middleware(actions.wrap)`` in Starlette and FastAPI, before the
        session's, so that the session is known in it; ``app = actions.wrap(app)`` for any other.

        Args:
            app: the host's ASGI app. It starts first and stops last.
            lifespan: whether the server's lifespan also opens and closes the plugins. Without, enter `lifespan` yourself.
        """
        from flowactions_hookspecs.wrap import Wrapped  # noqa: PLC0415  imports Litestar

        return Wrapped(app, self.route_handlers, self.lifespan if lifespan else None)

    def openapi(self) -> dict[str, Any]:
        """Returns the OpenAPI document of the plugins' routes, JSON-ready, for hosts that are not Litestar apps."""
        from flowactions_hookspecs.openapi import openapi_document  # noqa: PLC0415  imports Litestar

        return openapi_document(self.route_handlers)

    def call(self, coroutine: Coroutine[Any, Any, T], *, timeout: float | None = None) -> T:
        """Runs one of this object's coroutines from another thread, and waits for its result.

        Args:
            coroutine: for example ``actions.enqueue(webhook)``.
            timeout: how many seconds to wait; ``None``: as long as it takes.

        Raises:
            NotStarted: the lifespan is not open, or was closed before the call had ended.
            WrongLoop: this thread runs the lifespan's event loop: await the coroutine instead.
            TimeoutError: it took longer; the coroutine is cancelled.
        """
        return self._core.call(coroutine, timeout)

    async def reach(self, walk: Walk, node: Node, transaction: AsyncConnection | None = None) -> NodeResult:
        """Runs the action node that the walk has reached, or records it when the pacing is `Deferred` (§3.2).

        Nothing that a config, a provider or a receiver can cause raises. Stop the walk when the
        result says ``halt``.

        Args:
            walk: the run, as it stands at the node.
            node: the node.
            transaction: an open `AsyncConnection` of `Host.database`'s database that nobody else uses meanwhile. What
                is written joins its transaction and commits or rolls back with it; whatever is answered, the
                transaction stays usable.

        Raises:
            NotStarted: the lifespan is not open.
            WrongLoop: it is open in another event loop.
            TypeError, ValueError: an id or a field of the walk or the node cannot be used.
            TransactionInvalid: the transaction cannot be joined; a `ValueError`.
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
        """Runs what was recorded against the content step that the user advanced to, once (§3.2).

        Call it on ``flow.next``, before the walk moves, and do what the state says. Of the walk, only organization,
        run and flow are used: nodes run with the walk as it was when they were recorded.

        Args:
            walk: the run, as it stands now.
            step_id: the content step; ``None`` is the end of the flow.
            transaction: as for `reach`.

        Raises:
            NotStarted: the lifespan is not open.
            WrongLoop: it is open in another event loop.
            TypeError, ValueError: an id cannot be used.
            TransactionInvalid: the transaction cannot be joined; a `ValueError`.
        """
        self._core.check_usable()
        check_run(walk)
        check_step("step_id", step_id)
        try:
            return returned(
                await self._core.runtime.advance(walk, step_id, transaction), Advanced, "the runtime"
            )
        except TransactionInvalid:
            raise
        except Exception:
            log.exception("the runtime failed to advance a run", extra={"event": "runtime.advance_failed"})
            return Advanced(state="unavailable")

    async def dispatch(
        self,
        ref: LogicActionRef,
        *,
        firing_id: str,
        occurred_at: datetime,
        transaction: AsyncConnection | None = None,
        action_type: str = "webhook",
    ) -> Receipt:
        """Runs a logic action that fired on the server: enqueues its webhook (§2.8).

        Args:
            ref: the action.
            firing_id: names this firing among all of the action's. Dispatching again with the same one and the same
                ``occurred_at`` enqueues the same bytes under the same event id, so that receivers can dedupe.
            occurred_at: when it fired, with time zone.
            transaction: as for `reach`.
            action_type: the name of a `LogicActionType`.

        Raises:
            NotStarted: the lifespan is not open.
            WrongLoop: it is open in another event loop.
            TypeError, ValueError: an argument cannot be used.
            TransactionInvalid: the transaction cannot be joined; a `ValueError`.
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
        """Enqueues a webhook of the caller's own, through the same outbox. Not fail-open.

        Args:
            webhook: what to send.
            transaction: as for `reach`; the webhook is due when it commits.

        Returns:
            ``queued``, ``duplicate`` (of the first delivery with this key, whose ids it has) or ``skipped`` (refused
            URL, too large).

        Raises:
            NotQueued: the database failed. Nothing was written, unless the database has committed and could not say so:
                with an idempotency key, calling again is safe in any case.
            NotStarted: the lifespan is not open.
            WrongLoop: it is open in another event loop.
            TypeError, ValueError: a field of the webhook cannot be used.
            TransactionInvalid: the transaction cannot be joined; a `ValueError`.
        """
        self._core.check_usable()
        check_webhook(webhook, self._caller, self.signing_secrets)
        return await self._core.runtime.enqueue(webhook, self._caller, transaction)

    async def prepare(self, webhook: OutboundWebhook) -> PreparedWebhook:
        """Applies the egress rules to a webhook and fixes its bytes; no SQL, nothing is written.

        For a node type of a plugin's own: ``return InTransaction(prepared.write)`` makes its node as durable as
        ``webhook``.

        Args:
            webhook: what to send.

        Raises:
            NotStarted: the lifespan is not open.
            WrongLoop: it is open in another event loop.
            TypeError, ValueError: a field of the webhook cannot be used.
        """
        self._core.check_usable()
        check_webhook(webhook, self._caller, self.signing_secrets)
        return await self._core.runtime.prepare(webhook, self._caller)
