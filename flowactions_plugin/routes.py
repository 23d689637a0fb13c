"""The routes of one host. Only processes that serve them import this, and with it the web framework."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from litestar import Router

from flowactions_hookspecs import FlowActions
from flowactions_plugin.api.routes import Ports, outbox_router
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
from flowactions_plugin.pages.guard import viewers
from flowactions_plugin.pages.rendering import Renderer
from flowactions_plugin.pages.routes import pages_routers
from flowactions_plugin.pages.sessions import Sessions
from flowactions_plugin.queue.keys import IdempotencyKeys
from flowactions_plugin.settings.model import Settings
from flowactions_plugin.storage.database import Database
from flowactions_plugin.telemetry.telemetry import Telemetry
from flowactions_plugin.watch.readiness import Health
from flowactions_plugin.watch.routes import health_router


def build(
    actions: FlowActions,
    settings: Settings,
    database: Database,
    *,
    is_running: Callable[[], bool],
    chat: Chat | NotConfigured,
    insights: Insights,
    logic: LogicActions,
    auth_events: AuthEvents,
    keys: IdempotencyKeys,
    telemetry: Telemetry,
    health: Health,
) -> Sequence[Router]:
    """Return the routers of all parts, which the arguments are; chat may be the error because of which its routes answer 503."""
    host, public_url = actions.host, settings.public_url or ""
    own = origin_of(public_url)
    guard = RouteGuard(host, [*settings.dashboard_origins, *([own] if own else [])], is_running)
    operations = Operations(database)
    unreadable = _not_configured if isinstance(chat, NotConfigured) else chat.connections.unreadable
    login_url = None if settings.login_path is None else public_url + settings.login_path
    connections_url = public_url + settings.connections_path
    home = None if isinstance(chat, NotConfigured) else connections_url
    sessions = Sessions(partial(keys_of, settings, database), database.clock)
    find_viewer = viewers(host, sessions, show_operators=settings.show_operators)
    pages = PageContext(
        insights,
        operations,
        Renderer(home),
        database.clock,
        unreadable,
        sessions,
        find_viewer,
        secure=public_url.startswith("https:"),
    )
    verifier = Verifier(settings.auth_secrets) if settings.auth_secrets else None
    return [
        outbox_router(guard, Ports(insights, operations, keys)),
        nodes_router(guard, actions),
        chat_router(host, guard, chat, connections_url, login_url, database, telemetry),
        logic_router(host, guard, logic),
        auth_events_router(guard, auth_events, verifier, database, telemetry),
        *pages_routers(pages, is_running, origins=[own] if own else [], login_url=login_url),
        health_router(health, needs_writes=settings.ready_needs_writes),
    ]


def _not_configured(_organization_id: str, _sealed_token: bytes) -> str:
    return "not_configured"
