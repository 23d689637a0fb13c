"""The route for the chat provider's events (§1.6, §4.1.4)."""

from __future__ import annotations

import time
from typing import Any

from litestar import Request, post
from litestar.di import NamedDependency

from flowactions_plugin.chat.events import Challenge, check_signature, read_event
from flowactions_plugin.chat.paths import EVENTS
from flowactions_plugin.chat.service import Chat
from flowactions_plugin.errors import EventInvalid, NotConfigured, StorageUnavailable
from flowactions_plugin.http.auth import read_body
from flowactions_plugin.http.openapi import openapi_spec
from flowactions_plugin.http.problems import Problem
from flowactions_plugin.inbound.counting import Count
from flowactions_plugin.inbound.refusals import RefusalLog
from flowactions_plugin.inbound.requests import (
    EVENT_BYTES,
    EventAnswer,
    EventReceived,
    NotAuthentic,
)


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
    refusals: NamedDependency[RefusalLog],
    count: NamedDependency[Count],
) -> EventAnswer | Challenge:
    """Take the provider's signed events: an uninstalled app and revoked tokens end the connection (§5.4, §6.2)."""
    if chat.signing_secret is None:
        raise NotConfigured("Set CHAT_SIGNING_SECRET to take the chat provider's events.")
    body = await read_body(request)
    timestamp = request.headers.get("x-slack-request-timestamp")
    signature = request.headers.get("x-slack-signature")
    now = time.time()
    try:
        check_signature(chat.signing_secret, timestamp, signature, body, now)
    except NotAuthentic as exc:
        refusals.record(exc)
        count("refused")
        raise Problem("unauthorized", "The signature is missing, wrong or too old.") from None
    try:
        event = read_event(body, now)
    except EventInvalid as exc:
        count("invalid")
        raise Problem("invalid_request", str(exc)) from None
    if isinstance(event, Challenge):
        return event
    try:
        duplicate = event is not None and await chat.events.revoke(event)
    except StorageUnavailable:
        count("failed")
        raise
    count("acknowledged" if event is None else "duplicate" if duplicate else "processed")
    return EventAnswer(EventReceived(received=True, duplicate=duplicate))
