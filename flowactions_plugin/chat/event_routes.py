"""The route for the chat provider's events (§1.6, §4.1.4)."""

from __future__ import annotations

from typing import Any

from litestar import Request, post
from litestar.di import NamedDependency

from flowactions_plugin.chat.app import EVENTS
from flowactions_plugin.chat.events import Challenge, check_signature, read_event
from flowactions_plugin.chat.service import Chat
from flowactions_plugin.clock import system_clock
from flowactions_plugin.errors import NotConfigured
from flowactions_plugin.http.auth import read_body
from flowactions_plugin.http.openapi import openapi_spec
from flowactions_plugin.inbound.requests import EVENT_BYTES, EventAnswer, EventReceived
from flowactions_plugin.inbound.routes import Intake


@post(
    EVENTS,
    status_code=200,
    summary="Events of the chat provider",
    request_max_body_size=EVENT_BYTES,
    **openapi_spec("chatSignature", {}, "invalid_request", "too_large", "not_configured"),
)
async def events(
    request: Request[Any, Any, Any],
    chat: NamedDependency[Chat],
    intake: NamedDependency[Intake],
) -> EventAnswer | Challenge:
    """Take the provider's signed events: an uninstalled app and revoked tokens end the connection (§5.4, §6.2)."""
    if chat.signing_secret is None:
        raise NotConfigured("Set CHAT_SIGNING_SECRET to take the chat provider's events.")
    body = await read_body(request)
    timestamp = request.headers.get("x-slack-request-timestamp")
    signature = request.headers.get("x-slack-signature")
    now = system_clock()
    with intake.refusing():
        check_signature(chat.signing_secret, timestamp, signature, body, now)
        event = read_event(body, now)
        if isinstance(event, Challenge):
            return event
        duplicate = event is not None and await chat.connections.revoked(event)
    intake.count("acknowledged" if event is None else "duplicate" if duplicate else "processed")
    return EventAnswer(EventReceived(received=True, duplicate=duplicate))
