"""The router of the operator pages. The host's OpenAPI document does not list them: they are for people."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from litestar import Router
from litestar.di import Provide

from flowactions_hookspecs import Host
from flowactions_plugin.http.auth import BODY_BYTES
from flowactions_plugin.http.openapi import of_one_host
from flowactions_plugin.http.problems import HANDLERS
from flowactions_plugin.pages.actions import (
    begin_action,
    list_actions,
    preview_action,
    show_action,
    stop_action,
    undo_action,
)
from flowactions_plugin.pages.context import VIEWER, PageContext
from flowactions_plugin.pages.deliveries import find_deliveries, list_deliveries, show_delivery
from flowactions_plugin.pages.destinations import (
    list_destinations,
    pause_destination,
    resume_destination,
)
from flowactions_plugin.pages.failures import page_handlers
from flowactions_plugin.pages.guard import PageGuard, must_run
from flowactions_plugin.pages.rendering import ROOT
from flowactions_plugin.pages.session_routes import begin_session, end_session, static_file
from flowactions_plugin.pages.sessions import Sessions
from flowactions_plugin.pages.viewers import Viewers
from flowactions_plugin.pages.watching import (
    show_audit,
    show_connections,
    show_inbound,
    show_overview,
)

PAGES = (
    show_overview,
    find_deliveries,
    list_deliveries,
    show_delivery,
    list_actions,
    preview_action,
    begin_action,
    show_action,
    undo_action,
    stop_action,
    list_destinations,
    pause_destination,
    resume_destination,
    show_connections,
    show_inbound,
    show_audit,
    end_session,
)
"""All handlers that the guard stands before."""


def pages_routers(
    host: Host,
    context: PageContext,
    sessions: Sessions,
    is_running: Callable[[], bool],
    *,
    origins: Sequence[str],
    secure: bool,
    login_url: str | None,
    show_operators: bool,
) -> Sequence[Router]:
    """Build the routers of the pages.

    Args:
        host: says who calls.
        context: what the pages use.
        sessions: seals and opens the session cookie.
        is_running: whether the lifespan is open.
        origins: at which browsers reach the routes, beside that of a request's ``Host``.
        secure: whether browsers reach them by https, so that cookies are never sent without.
        login_url: where people sign in; ``None``: the host has said nothing.
        show_operators: whether people of a dashboard are shown the names of operators.
    """
    viewers = Viewers(host, sessions, show_operators=show_operators)

    async def provided() -> PageContext:
        # All pages say when the database takes no writes.
        await context.queries.status.writes.refused()
        return context

    return [
        Router(
            ROOT,
            route_handlers=of_one_host(*PAGES),
            dependencies={
                "viewer": VIEWER,
                "context": Provide(provided),
                "secure": Provide(lambda: secure, sync_to_thread=False),
            },
            guards=[PageGuard(viewers, origins, is_running).guard()],
            request_max_body_size=BODY_BYTES,
            exception_handlers=page_handlers(context.renderer, login_url),
        ),
        Router(
            ROOT,
            route_handlers=of_one_host(begin_session),
            dependencies={
                "sessions": Provide(lambda: sessions, sync_to_thread=False),
                "viewers": Provide(lambda: viewers, sync_to_thread=False),
                "secure": Provide(lambda: secure, sync_to_thread=False),
            },
            guards=[must_run(is_running)],
            request_max_body_size=BODY_BYTES,
            exception_handlers=HANDLERS,
        ),
        Router(
            ROOT,
            route_handlers=of_one_host(static_file),
            dependencies={"renderer": Provide(lambda: context.renderer, sync_to_thread=False)},
            exception_handlers=HANDLERS,
        ),
    ]
