"""The endpoint for the auth provider's events (§4.4)."""

from __future__ import annotations

import logging
from typing import Any, Final

import msgspec
from litestar import Request, Router, post
from litestar.di import NamedDependency, Provide

from flowactions_plugin.auth_events.receive import AuthEvents, HandlerFailed
from flowactions_plugin.auth_events.verify import Verifier
from flowactions_plugin.errors import NotConfigured
from flowactions_plugin.http.auth import RouteGuard, read_body
from flowactions_plugin.http.events import (
    EVENT_BYTES,
    EventAnswer,
    EventInvalid,
    EventReceived,
    NotAuthentic,
)
from flowactions_plugin.http.openapi import described, documented
from flowactions_plugin.http.problems import HANDLERS, Problem
from flowactions_plugin.http.refusals import RefusalLog
from flowactions_plugin.log_text import printable

log = logging.getLogger("flowactions.auth_events")

PATH: Final = "/webhooks/auth"


class Receiver(msgspec.Struct):
    """What the route works with; no verifier when no secret is configured."""

    events: AuthEvents
    verifier: Verifier | None
    refusals: RefusalLog


@post(
    PATH,
    status_code=200,
    summary="Events of the auth provider",
    request_max_body_size=EVENT_BYTES,
    **described("authSignature", {}, "invalid_request", "too_large", "not_configured"),
)
async def receive(request: Request[Any, Any, Any], receiver: NamedDependency[Receiver]) -> EventAnswer:
    """Take a signed event on an organization, a user or a session, and have the host handle it once.

    The signature is Svix's (``svix-id``, ``svix-timestamp``, ``svix-signature``, or the same under ``webhook-``),
    at most five minutes off. An event that was handled before is acknowledged.
    """
    if receiver.verifier is None:
        raise NotConfigured(
            "Set AUTH_WEBHOOK_SIGNING_SECRET to take the auth provider's events; the host needs a method auth_event, too."
        )
    body = await read_body(request)
    try:
        told = receiver.verifier.read(request.headers, body)
    except NotAuthentic as exc:
        receiver.refusals.note(exc)
        raise Problem("unauthorized", "The signature is missing, wrong or too old.") from None
    except EventInvalid as exc:
        raise Problem("invalid_request", str(exc)) from None
    try:
        duplicate = await receiver.events.receive(told)
    except HandlerFailed:
        log.exception(
            "the host could not handle event %s (%s.%s)", told.event_id, told.kind, printable(told.action)
        )
        message = "The event could not be handled and is not noted: send it again."
        raise Problem("internal_error", message) from None
    return EventAnswer(EventReceived(received=True, duplicate=duplicate))


def auth_events_router(guard: RouteGuard, events: AuthEvents, verifier: Verifier | None) -> Router:
    """Make the router of the auth provider's events.

    Args:
        guard: refuses requests while the plugin is not started.
        events: takes them.
        verifier: ``None`` when no secret is configured; then the route answers 503.
    """
    receiver = Receiver(events, verifier, RefusalLog("flowactions.auth_events", f"POST {PATH}"))
    return Router(
        "/",
        route_handlers=documented(receive),
        dependencies={"receiver": Provide(lambda: receiver, sync_to_thread=False)},
        guards=[guard.guard()],
        exception_handlers=HANDLERS,
        tags=["Inbound events"],
    )
