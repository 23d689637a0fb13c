"""The routes of one host. Only processes that serve them import this, and with it the web framework."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

from litestar import Router

from flowactions_hookspecs import FlowActions, Host
from flowactions_plugin.api.routes import outbox_router
from flowactions_plugin.chat.routes import chat_router
from flowactions_plugin.chat.service import Chat, keys_of
from flowactions_plugin.errors import NotConfigured
from flowactions_plugin.http.auth import RouteGuard
from flowactions_plugin.inbound.auth_events import AuthEvents, Verifier
from flowactions_plugin.inbound.routes import auth_events_router
from flowactions_plugin.insights.port import Insights
from flowactions_plugin.logic.dispatch import LogicActions
from flowactions_plugin.logic.routes import logic_router
from flowactions_plugin.nodes.routes import nodes_router
from flowactions_plugin.operations.port import Operations
from flowactions_plugin.origins import origin_of
from flowactions_plugin.pages.context import PageContext
from flowactions_plugin.pages.rendering import Renderer
from flowactions_plugin.pages.routes import pages_routers
from flowactions_plugin.pages.sessions import Sessions
from flowactions_plugin.queue.keys import IdempotencyKeys
from flowactions_plugin.settings.model import Settings
from flowactions_plugin.storage.database import Database
from flowactions_plugin.telemetry.telemetry import Telemetry
from flowactions_plugin.watch.readiness import Health
from flowactions_plugin.watch.routes import health_router


class RouteContext(NamedTuple):
    """What the routes use.

    Attributes:
        host: authenticates, and answers what routes ask.
        actions: the host's facade.
        settings: those of the host.
        is_running: whether the lifespan is open.
        chat: the chat part, or the error because of which its routes answer 503.
        insights: what routes and operator pages search and show.
        logic: takes logic-webhook calls.
        auth_events: processes the auth provider's events.
        database: what the operator pages show and change.
        keys: the idempotency keys of callers.
        telemetry: counts inbound requests.
        health: says whether this process can work.
    """

    host: Host
    actions: FlowActions
    settings: Settings
    is_running: Callable[[], bool]
    chat: Chat | NotConfigured
    insights: Insights
    logic: LogicActions
    auth_events: AuthEvents
    database: Database
    keys: IdempotencyKeys
    telemetry: Telemetry
    health: Health

    def __repr__(self) -> str:
        return "RouteContext(…)"


def build(context: RouteContext) -> Sequence[Router]:
    """Return the routers of all parts."""
    host, settings = context.host, context.settings
    own = origin_of(settings.public_url or "")
    origins = [*settings.dashboard_origins, *([own] if own else [])]
    guard = RouteGuard(host, origins, context.is_running)
    database = context.database
    operations = Operations(database)
    connections = None if isinstance(context.chat, NotConfigured) else context.chat.connections
    pages = PageContext(
        context.insights,
        operations,
        Renderer(),
        database.clock,
        _not_configured if connections is None else connections.unreadable,
    )
    dashboard_url = (settings.public_url or "") + settings.connections_path
    login_url = None if settings.login_path is None else (settings.public_url or "") + settings.login_path
    return [
        outbox_router(guard, context.insights, operations, context.keys),
        nodes_router(guard, context.actions),
        chat_router(host, guard, context.chat, dashboard_url, login_url, database, context.telemetry),
        logic_router(host, guard, context.logic),
        auth_events_router(
            guard,
            context.auth_events,
            Verifier(settings.auth_secrets) if settings.auth_secrets else None,
            database,
            context.telemetry,
        ),
        *pages_routers(
            host,
            pages,
            Sessions(partial(keys_of, settings, database), database.clock),
            context.is_running,
            origins=[own] if own else [],
            secure=(settings.public_url or "").startswith("https:"),
            login_url=login_url,
            show_operators=settings.show_operators,
        ),
        health_router(context.health, needs_writes=settings.ready_needs_writes),
    ]


def _not_configured(_organization_id: str, _sealed_token: bytes) -> str:
    return "not_configured"
