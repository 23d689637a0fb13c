"""Composition root: builds everything for one host, opens it and closes it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from functools import partial
from typing import cast

from litestar import Router

from flowactions_hookspecs import (
    BackgroundTask,
    FlowActions,
    Host,
    LogicActionType,
    NodeType,
    Runtime,
    provides,
)
from flowactions_plugin.auth_events.receive import AuthEvents
from flowactions_plugin.auth_events.routes import auth_events_router
from flowactions_plugin.auth_events.verify import Verifier
from flowactions_plugin.chat.picker_routes import CHANNELS_PATH, MEMBERS_PATH
from flowactions_plugin.chat.routes import chat_router
from flowactions_plugin.chat.service import build_chat
from flowactions_plugin.chat.store import ConnectionStore
from flowactions_plugin.clock import lease_clock
from flowactions_plugin.errors import NotConfigured
from flowactions_plugin.http.auth import RouteGuard
from flowactions_plugin.logic.dispatch import Dispatcher
from flowactions_plugin.logic.enqueue import Enqueuer
from flowactions_plugin.logic.routes import logic_router
from flowactions_plugin.logic.store import CallStore
from flowactions_plugin.nodes import chat_message, webhook
from flowactions_plugin.nodes.drafts import ChatDrafts, WebhookDrafts
from flowactions_plugin.nodes.pacing import Pacing, keep_recovering
from flowactions_plugin.nodes.routes import nodes_router
from flowactions_plugin.nodes.store import DeferredStore
from flowactions_plugin.nodes.testing import TESTS_A_MINUTE, NodeTests
from flowactions_plugin.origins import origin_of
from flowactions_plugin.outbox.bell import CHANNEL, Bell, keep_listening
from flowactions_plugin.outbox.continuous import ContinuousWorker
from flowactions_plugin.outbox.courier import Courier
from flowactions_plugin.outbox.deadline import StallMonitor
from flowactions_plugin.outbox.delivery import Timing
from flowactions_plugin.outbox.egress import EgressGuard, Resolve
from flowactions_plugin.outbox.host_transport import HostTransport
from flowactions_plugin.outbox.queue import Outbox
from flowactions_plugin.outbox.resolver import CachingResolver, Resolver
from flowactions_plugin.outbox.routes import outbox_router
from flowactions_plugin.outbox.sender import Sender, Transport
from flowactions_plugin.outbox.store import OutboxStore
from flowactions_plugin.outbox.transport import OutboundTransport
from flowactions_plugin.outbox.worker import Worker
from flowactions_plugin.runtime import PluginRuntime
from flowactions_plugin.settings import read_settings
from flowactions_plugin.storage import inbound
from flowactions_plugin.storage.database import Connection, Database
from flowactions_plugin.storage.retention import DAY_MS, DEAD_DAYS, Prune, keep_pruning

CHAT_PICKERS = {"chatChannelId": CHANNELS_PATH, "chatUserId": MEMBERS_PATH}


ENQUEUE_RESOLVER_THREADS = 64
"""A name that finds no thread within a second is checked at delivery only."""

DELIVERY_RESOLVER_THREADS = 4
"""For each delivery at once: a name that hangs keeps its thread three times as long as an attempt lasts."""

MOST_RESOLVER_THREADS = 1024

CONTINUOUS_DESTINATION_LIMIT = 10

HOUR_MS = 3600 * 1000


class Services:
    """Everything that the plugin does for one host; an async context manager that can be entered again.

    Args:
        host: the host. Its settings are read here; its engine and transport when the lifespan opens.
        actions: the host's facade; its node types are of all plugins.

    Raises:
        SettingsInvalid: the settings cannot be used.
    """

    def __init__(self, host: Host, actions: FlowActions) -> None:
        self._host = host
        self._actions = actions
        # Tests give their hosts other times.
        self._timing = timing = cast("Timing", getattr(host, "_flowactions_timing", Timing()))
        self._settings = read_settings(host.settings)
        self._database = Database(self._settings.database_url, lambda: host.database)
        self._chat = build_chat(self._settings, self._database)
        self._guard = self._egress_guard(CachingResolver(Resolver(ENQUEUE_RESOLVER_THREADS)))
        self._store = OutboxStore(self._database, timing.lease_seconds)
        self._outbox = Outbox(self._store, self._guard, self._database.clock, self._settings.max_body_bytes)
        self._bell: Bell | None = None
        connections = None if isinstance(self._chat, NotConfigured) else self._chat.connections
        chat_drafts = ChatDrafts(
            self._chat if isinstance(self._chat, NotConfigured) else self._chat.connections
        )
        webhook_drafts = WebhookDrafts(self._outbox, self._guard)
        self._nodes = (
            chat_message.node_type(
                chat_message.ChatMessageNode(connections),
                CHAT_PICKERS,
                self._chat if isinstance(self._chat, NotConfigured) else None,
                chat_drafts.check,
                chat_drafts.preview,
            ),
            webhook.node_type(webhook.WebhookNode(self._outbox), webhook_drafts.check, webhook_drafts.preview),
        )
        # Those of all plugins are known when all are loaded.
        self._deferred = DeferredStore(self._database, lambda: actions.node_types)
        self._pacing = Pacing(self._database, self._deferred, lambda: actions.node_types, host)
        self._calls = CallStore(self._database, self._settings.idempotency_hours * HOUR_MS)
        tests = NodeTests(
            self._pacing.reach, self._store, partial(self._calls.count_test, limit=TESTS_A_MINUTE), host
        )
        self.runtime: Runtime = PluginRuntime(self._pacing, self._outbox, tests)
        self._dispatcher = Dispatcher(host, self._outbox)
        self._open = AsyncExitStack()
        self._is_running = False

    def __repr__(self) -> str:
        return "Services(…)"

    def _egress_guard(self, resolve: Resolve) -> EgressGuard:
        return EgressGuard(
            development=self._settings.environment == "development",
            allow=self._settings.egress_allow,
            resolve=resolve if self._settings.egress_resolve == "local" else None,
        )

    def node_types(self) -> Sequence[NodeType]:
        """Returns the two node types."""
        return self._nodes

    def logic_action_types(self) -> Sequence[LogicActionType]:
        """Give the webhook action."""
        return [LogicActionType(name="webhook", dispatch=self._dispatcher.dispatch)]

    def route_handlers(self) -> Sequence[Router]:
        """Give the routes."""
        dashboard_url = (self._settings.public_url or "") + self._settings.connections_path
        own = origin_of(self._settings.public_url or "")
        origins = [*self._settings.dashboard_origins, *([own] if own else [])]
        guard = RouteGuard(self._host, origins, lambda: self._is_running)
        return [
            outbox_router(guard, self._store),
            nodes_router(guard, self._actions),
            chat_router(self._host, guard, self._chat, dashboard_url),
            logic_router(
                self._host, guard, Enqueuer(self._database, self._calls, self._dispatcher, self._outbox)
            ),
            auth_events_router(
                guard,
                AuthEvents(self._host, self._database, self._organization_deleted),
                Verifier(self._settings.auth_secrets) if self._settings.auth_secrets else None,
            ),
        ]

    async def _organization_deleted(
        self, organization_id: str, connection: Connection
    ) -> Callable[[], Awaitable[None]] | None:
        if isinstance(self._chat, NotConfigured):
            # A connection of earlier times goes all the same; its token cannot be revoked without the settings.
            await ConnectionStore(self._database).take(organization_id, connection)
            return None
        return await self._chat.connections.organization_deleted(organization_id, connection)

    def background_tasks(self) -> Sequence[BackgroundTask]:
        """Give what runs inside the host: everything, or nothing when ``flowactions worker`` does it."""
        return self.worker_tasks() if self._settings.host_worker else []

    def tasks_left_to_workers(self) -> Sequence[BackgroundTask]:
        """Returns what `background_tasks` does not hold: ``flowactions worker`` runs it."""
        return [] if self._settings.host_worker else self.worker_tasks()

    def worker_tasks(self) -> Sequence[BackgroundTask]:
        """Give the delivery worker, what takes deferred nodes over from processes that are gone, and retention."""
        return [
            # A tick that is running is finished first, and none takes longer than its claims hold.
            BackgroundTask(
                name="flowactions delivery", run=self._deliver, drain_seconds=self._timing.lease_seconds
            ),
            BackgroundTask(name="flowactions pacing", run=partial(keep_recovering, self._pacing)),
            BackgroundTask(name="flowactions retention", run=partial(keep_pruning, self._prunes())),
        ]

    def _prunes(self) -> Sequence[Prune]:
        kept = self._settings.retention_days * DAY_MS
        dead = max(kept, DEAD_DAYS * DAY_MS)
        return [
            partial(self._store.prune, "delivered", kept),
            partial(self._store.prune, "dead", dead),
            partial(self._deferred.prune, kept),
            partial(self._deferred.prune_halted, kept),
            partial(inbound.prune, self._database, kept),
            self._calls.prune_keys,
            self._calls.prune_rates,
        ]

    async def _deliver(self) -> None:
        settings = self._settings
        at_once = settings.concurrency if settings.delivery == "continuous" else settings.claim_limit
        proxy = settings.egress_proxy
        # Of its own: names that hang at enqueue take no thread from deliveries, and nothing is cached.
        guard = self._egress_guard(Resolver(min(MOST_RESOLVER_THREADS, at_once * DELIVERY_RESOLVER_THREADS)))
        transport: Transport
        if self._host.transport is not None:
            transport = HostTransport(self._host.transport)
        else:
            transport = OutboundTransport(guard, at_once, proxy, settings.egress_ca)
        # Our own transport checks every address that it dials. What another one dials, nobody here sees.
        looks_itself = self._host.transport is None and proxy is None
        look = guard.read if looks_itself else guard.require
        monitor = StallMonitor(lease_clock)
        sender = Sender(transport, look, self._database.clock, time.monotonic, monitor, self._timing)
        listens = provides(self._host, "delivery_finished")
        courier = Courier(
            self._store,
            sender,
            self._host.signing_secret,
            self._host.delivery_finished if listens else None,
        )
        listening: asyncio.Task[None] | None = None
        worker: Worker
        if settings.delivery == "continuous":
            per_destination = settings.destination_limit or CONTINUOUS_DESTINATION_LIMIT
            worker = continuous = ContinuousWorker(
                self._store, courier, slots=at_once, per_destination=per_destination, timing=self._timing
            )
            self._outbox.call_on_commit(continuous.wake)
            if self._bell is not None:
                listen = partial(self._database.listen, CHANNEL, continuous.wake)
                listening = asyncio.create_task(keep_listening(listen, continuous.wake))
        else:
            worker = Worker(
                self._store,
                courier,
                tick_seconds=settings.tick_seconds,
                claim_limit=at_once,
                per_destination=settings.destination_limit,
                timing=self._timing,
            )
        try:
            with monitor:
                await worker.run()
        finally:
            self._outbox.call_on_commit(self._bell.ring if self._bell is not None else None)
            if listening is not None:
                listening.cancel()
                await asyncio.wait({listening})
            await sender.aclose()

    async def __aenter__(self) -> None:
        await self._open.enter_async_context(self._database)
        self._bell = None
        if self._settings.delivery == "continuous" and self._database.dialect == "postgresql":
            self._bell = Bell(partial(self._database.notify, CHANNEL))
            self._outbox.call_on_commit(self._bell.ring)
        if not isinstance(self._chat, NotConfigured):
            self._open.push_async_callback(self._chat.provider.aclose)
            self._open.push_async_callback(self._chat.connections.aclose)
        if self._bell is not None:
            await self._open.enter_async_context(self._bell)
        self._is_running = True

    async def __aexit__(self, *_exc: object) -> None:
        self._is_running = False
        await self._open.aclose()
