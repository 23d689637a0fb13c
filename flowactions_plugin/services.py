"""Composition root: builds everything for one host, opens it and closes it."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from functools import partial
from typing import TYPE_CHECKING

from flowactions_hookspecs import (
    BackgroundTask,
    DeliveryAlert,
    FlowActions,
    Host,
    LogicActionType,
    NodeType,
    Runtime,
    provides,
)
from flowactions_plugin.alerts.queue import NAME, PLUGIN, Alerts, alerts_of
from flowactions_plugin.alerts.watch import AlertWatch
from flowactions_plugin.chat.queued import NOT_CONNECTED, QueuedSender
from flowactions_plugin.chat.service import build_chat
from flowactions_plugin.chat.store import ConnectionStore
from flowactions_plugin.clock import timer
from flowactions_plugin.errors import NotConfigured
from flowactions_plugin.host_answers import has_agent
from flowactions_plugin.housekeeper import Entry, Housekeeper
from flowactions_plugin.inbound.auth_events import AuthEvents
from flowactions_plugin.insights.gauges import Gauges
from flowactions_plugin.insights.port import Insights
from flowactions_plugin.loggers import take_over
from flowactions_plugin.logic.dispatch import LogicActions
from flowactions_plugin.logic.store import CallStore
from flowactions_plugin.nodes import chat_message, webhook
from flowactions_plugin.nodes.drafts import TESTS_A_MINUTE, NodeTests
from flowactions_plugin.nodes.pacing import Pacing
from flowactions_plugin.nodes.store import DeferredStore
from flowactions_plugin.operations.automatic import AutomaticPauses
from flowactions_plugin.operations.changes import end_messages
from flowactions_plugin.operations.engine import acting
from flowactions_plugin.operations.retention import Retention, prune_actions, prune_audit
from flowactions_plugin.origins import CHAT
from flowactions_plugin.queue.claimed import Completion
from flowactions_plugin.queue.host_calls import SecretSource
from flowactions_plugin.queue.prepared import OwnWebhooks
from flowactions_plugin.queue.rules import Timing, timing_of
from flowactions_plugin.queue.service import OutboxService
from flowactions_plugin.settings.advice import pace_of, warnings_of
from flowactions_plugin.settings.model import read_settings
from flowactions_plugin.storage import schema
from flowactions_plugin.storage.database import Database, Transaction
from flowactions_plugin.storage.retention import DAY_MS, DEAD_DAYS, HOUR_MS, Prune, Pruning
from flowactions_plugin.telemetry.telemetry import Telemetry
from flowactions_plugin.watch.fleet import WORKERS_KEPT_MS
from flowactions_plugin.watch.monitor import Monitor
from flowactions_plugin.watch.readiness import Health
from flowactions_plugin.watch.statistics_store import STATISTICS_KEPT_MS

if TYPE_CHECKING:
    from litestar import Router

log = logging.getLogger("flowactions")


class PluginRuntime:
    """The contract's `Runtime`: each method calls its part: pacing (§3.2), the outbox, tests of drafts."""

    def __init__(self, pacing: Pacing, webhooks: OwnWebhooks, tests: NodeTests, host: Host) -> None:
        self.reach, self.advance = pacing.reach, pacing.advance
        self.prepare, self.enqueue = webhooks.prepare, webhooks.enqueue
        self.test = tests.test
        self._host = host

    async def has_agent(self, organization_id: str, agent_id: str) -> bool:
        """Return whether an agent is the organization's; ``True`` if the host has no method that says so."""
        return not provides(self._host, "agent") or await has_agent(self._host, organization_id, agent_id)


class Services:
    """All parts of the plugin for one host; an async context manager that can be entered again.

    Args:
        host: the host. Its settings are read here; its engine and transport when the lifespan opens.
        actions: the host's facade; its node types are of all plugins.
        timing: how long claims, attempts and quarantines last; tests alone set it.
        telemetry: its metrics and spans; ``None``: those of OpenTelemetry's global providers.

    Raises:
        SettingsInvalid: the settings cannot be used.
    """

    def __init__(
        self,
        host: Host,
        actions: FlowActions,
        *,
        timing: Timing | None = None,
        telemetry: Telemetry | None = None,
    ) -> None:
        take_over()
        self._host = host
        self._actions = actions
        self._telemetry = telemetry = telemetry or Telemetry()
        self._settings = settings = read_settings(host.settings, host)
        self._timing = timing or timing_of(settings.delivery_timeout)
        for words, advice in warnings_of(settings):
            log.warning("%s: %s", words, advice, extra={"event": "settings.unlikely"})
        self._database = database = Database(
            settings.database_url, lambda: host.database, connections=settings.database_connections
        )
        self._open = AsyncExitStack()
        self._opened_at = timer()
        self._is_running = False

        # Chat, or the error that says which setting is missing.
        self._chat = build_chat(settings, database, actions.prefix, self._end_messages)

        # Deliveries, and what watches them. What finds alerts is made before what queues them.
        self._alerts: Alerts | None = None
        alerted = host.delivery_alert if provides(host, "delivery_alert") else None
        queue_alerts = None if settings.alerts_url is None else self._queue_alerts
        runs_with = settings.delivery, settings.slots
        self._monitor = Monitor(database, *runs_with, alerted, queue_alerts, settings.delivery_timeout)
        self._delivery = OutboxService(
            host,
            settings,
            database,
            self._timing,
            self._secret_source,
            observer=self._monitor,
            telemetry=telemetry,
            others={CHAT: QueuedSender(self._chat, database.clock).send},
            ended=self._ended,
        )
        self._outbox = self._delivery.outbox
        self._automatic = AutomaticPauses(database, settings.auto_pause, self._monitor.tell)
        self._alerts = alerts_of(settings, self._outbox)
        self._retention = Retention(database)
        self._health = Health(database, lambda: self._is_running)
        self._insights = Insights(database, settings, lambda: int((timer() - self._opened_at) * 1000))

        # Logic actions.
        self._calls = CallStore(database)
        self._logic = LogicActions(host, self._outbox, self._calls)
        self.logic_action_types = [LogicActionType(name="webhook", dispatch=self._logic.dispatch)]

        # Nodes. The types of all plugins are known when all are loaded.
        queue = self._outbox if settings.chat_delivery == "queued" else None
        self._chat_node = chat_message.ChatMessageNode(self._chat, telemetry, queue)
        self.node_types: Sequence[NodeType] = (
            chat_message.node_type(self._chat_node),
            webhook.node_type(webhook.WebhookNode(self._outbox, self._delivery.guard), settings),
        )
        self._deferred = DeferredStore(database, lambda: actions.node_types)
        self._pacing = Pacing(database, self._deferred, lambda: actions.node_types, host, telemetry)
        self.tests = NodeTests(
            self._pacing.reach,
            self._insights,
            partial(self._calls.count_test, limit=TESTS_A_MINUTE),
            host,
            settings.delivery_timeout + 2,
        )
        webhooks = OwnWebhooks(self._outbox)
        self.runtime: Runtime = PluginRuntime(self._pacing, webhooks, self.tests, host)

    def __repr__(self) -> str:
        return "Services(…)"

    async def _queue_alerts(self, transaction: Transaction, alerts: Sequence[DeliveryAlert]) -> None:
        """Queue alerts."""
        if self._alerts is not None:
            await self._alerts.of_destinations(transaction, alerts)

    def _secret_source(self) -> SecretSource:
        """Return what signs, of the host, of all plugins, and of alerts."""
        secrets = self._actions.signing_secrets
        if self._alerts is not None:
            secrets = {**secrets, (PLUGIN, NAME): self._alerts.signing_secret}
        unsigned = set(self._actions.plugin_names) - {plugin for plugin, _ in secrets}
        return SecretSource(self._host.signing_secret, secrets, unsigned)

    def route_handlers(self) -> Sequence[Router]:
        """Build and return the routes, and import what only they need."""
        from flowactions_plugin import routes  # noqa: PLC0415  imports Litestar

        return routes.build(
            self._actions,
            self._settings,
            self._database,
            is_running=lambda: self._is_running,
            chat=self._chat,
            insights=self._insights,
            logic=self._logic,
            auth_events=AuthEvents(self._host, self._database, self._organization_deleted),
            keys=self._outbox.keys,
            telemetry=self._telemetry,
            health=self._health,
        )

    def _ended(self, completions: Sequence[Completion]) -> None:
        """Tell of queued chat messages that have ended."""
        self._chat_node.ended(completions)

    async def _end_messages(self, organization_id: str, connection: Transaction) -> None:
        """End an organization's queued chat messages: its connection is removed."""
        for row in await end_messages(self._database, connection, organization_id, NOT_CONNECTED):
            ended = partial(
                self._chat_node.message_ended, row.node_id, organization_id, row.body, NOT_CONNECTED
            )
            self._database.transactions.after_commit(connection, ended)

    async def _organization_deleted(
        self, organization_id: str, connection: Transaction
    ) -> Callable[[], Awaitable[None]] | None:
        """Delete an organization's chat connection; return what is called after the commit."""
        if isinstance(self._chat, NotConfigured):
            # A connection that was made when chat was configured is deleted all the same; its token cannot be revoked without the settings.
            await ConnectionStore(self._database, self._end_messages).pop(organization_id, connection)
            return None
        return await self._chat.connections.organization_deleted(organization_id, connection)

    def background_tasks(self) -> Sequence[BackgroundTask]:
        """Return what runs inside the host: everything, or what reports gauges when ``flowactions worker`` does the rest."""
        gauges = Gauges(self._telemetry.meters, self._insights, lambda: self._delivery.load)
        delivers = [] if self._settings.host_worker == "off" else self._delivery_tasks()
        return [*delivers, BackgroundTask(name="flowactions gauges", run=gauges.reading_loop)]

    def tasks_left_to_workers(self) -> Sequence[BackgroundTask]:
        """Have this process claim whatever is due, and return what `background_tasks` does not hold.

        ``flowactions worker`` calls it before anything runs.
        """
        self._delivery.claims_all = True
        return self._delivery_tasks() if self._settings.host_worker == "off" else []

    def _delivery_tasks(self) -> Sequence[BackgroundTask]:
        """Return what delivers, and what a worker does beside it."""
        return [
            BackgroundTask(
                name="flowactions delivery",
                run=self._delivery.deliver,
                drain_seconds=self._timing.stop_seconds,
            ),
            BackgroundTask(name="flowactions housekeeper", run=self._keep_house),
        ]

    async def _keep_house(self) -> None:
        """Do what a worker does beside delivering."""
        reach = self._delivery.claims.touch
        await Housekeeper(self.housekeeping(), self._database.outage_log, reach).run()

    def housekeeping(self) -> Sequence[Entry]:
        """Return what a worker does beside delivering: name, seconds, work, and how many seconds it may take at the most.

        A statement is given up earlier than any of them ends, so an outage of the database is noticed as one.
        """
        delivery = self._delivery
        entries = [
            Entry("contact with the queue", self._timing.spare_seconds / 10, delivery.claims.touch, 90),
            Entry("statistics", 5, self._monitor.report, 300, always=True),
        ]
        if not delivery.claims_all:
            return entries
        entries += [
            Entry("probes", 5, delivery.probe, 300),
            Entry("automatic pauses", 5, self._automatic.look, 300),
            Entry("bulk actions", 2, acting(self._database), 600),
            Entry("deliveries one after another", 1, delivery.outbox.sequences.look, 600),
            Entry("deferred nodes", 5, self._pacing.recover_more, 600),
            Entry("retention", 3600, Pruning(self._prunes()).prune, 600),
        ]
        if not isinstance(self._chat, NotConfigured):
            entries.append(Entry("refused chat tokens", 5, self._chat.calls.ask_again, 90))
        if self._alerts is not None:
            watch = AlertWatch(self._alerts, self._database, delivery.send_now)
            entries.append(Entry("alerts", 10, watch.look, 300))
        return entries

    def _prunes(self) -> Sequence[Prune]:
        """Return what deletes rows after their retention."""
        kept = self._settings.retention_days * DAY_MS
        dead = max(kept, DEAD_DAYS * DAY_MS)
        database = self._database
        return [
            partial(self._retention.prune, "delivered", kept),
            partial(self._retention.prune, "dead", dead),
            partial(database.prune, schema.deferred.c.created_at, kept),
            partial(database.prune, schema.halted_runs.c.halted_at, kept),
            partial(database.prune, schema.inbound_events.c.received_at, kept),
            partial(database.prune, schema.inbound_requests.c.last_at, kept),
            partial(database.prune, schema.enqueue_rates.c.updated_at, HOUR_MS),
            self._outbox.keys.prune,
            partial(database.prune, schema.statistics.c.bucket, STATISTICS_KEPT_MS),
            partial(database.prune, schema.destinations.c.updated_at, kept),
            partial(database.prune, schema.workers.c.last_seen_at, WORKERS_KEPT_MS),
            partial(prune_audit, self._database),
            partial(prune_actions, self._database),
        ]

    async def __aenter__(self) -> None:
        self._opened_at = timer()
        await self._open.enter_async_context(self._database)
        pace = pace_of(self._settings)
        if self._database.made_tables and self._settings.environment == "production" and pace is not None:
            log.warning("%s: %s", *pace, extra={"event": "settings.pace"})
        if not isinstance(self._chat, NotConfigured):
            self._open.push_async_callback(self._chat.aclose)
        await self._open.enter_async_context(self._delivery)
        self._open.push_async_callback(self._pacing.aclose)  # before what its nodes use
        self._open.enter_context(self._telemetry)
        self._is_running = True

    async def __aexit__(self, *_exc: object) -> None:
        self._is_running = False
        await self._open.aclose()
