"""The endpoint for the auth provider's events, and what it shares with the chat provider's."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final, Literal

import msgspec
from litestar import Request, Router, post
from litestar.di import NamedDependency, Provide

from flowactions_plugin.errors import EventInvalid, HandlerFailed, NotConfigured, StorageUnavailable
from flowactions_plugin.http.auth import RouteGuard, read_body
from flowactions_plugin.http.openapi import openapi_spec, with_description
from flowactions_plugin.http.problems import HANDLERS, Problem
from flowactions_plugin.inbound.auth_events import AuthEvents, Verifier
from flowactions_plugin.inbound.requests import (
    EVENT_BYTES,
    EventAnswer,
    EventReceived,
    NotAuthentic,
    RefusalLog,
)
from flowactions_plugin.log_text import printable
from flowactions_plugin.telemetry import names
from flowactions_plugin.telemetry.telemetry import Telemetry

log = logging.getLogger("flowactions.auth_events")

PATH: Final = "/webhooks/auth"


class Intake:
    """Counts a provider's requests by what became of them, and answers the ones that are refused.

    Args:
        telemetry: where they are counted.
        source: the provider.
        logger: the name of the logger of refusals.
        path: of the route.
    """

    def __init__(self, telemetry: Telemetry, source: Literal["auth", "chat"], logger: str, path: str) -> None:
        self._telemetry = telemetry
        self._source = source
        self._refusals = RefusalLog(logger, f"POST {path}")

    def count(
        self, result: Literal["processed", "duplicate", "acknowledged", "refused", "invalid", "failed"]
    ) -> None:
        """Count a request."""
        self._telemetry.meters.count(names.INBOUND, source=self._source, result=result)

    @contextmanager
    def refusing(self) -> Iterator[None]:
        """Count a request that is not authentic, not valid or not processed, and answer it with a problem."""
        try:
            yield
        except NotAuthentic as exc:
            self._refusals.record(exc)
            self.count("refused")
            raise Problem("unauthorized", "The signature is missing, wrong or too old.") from None
        except EventInvalid as exc:
            self.count("invalid")
            raise Problem("invalid_request", str(exc)) from None
        except (StorageUnavailable, HandlerFailed):
            self.count("failed")
            raise


class Receiver(msgspec.Struct):
    """What the route uses; no verifier when no secret is configured."""

    events: AuthEvents
    verifier: Verifier | None
    intake: Intake


@post(
    PATH,
    status_code=200,
    summary="Events of the auth provider",
    request_max_body_size=EVENT_BYTES,
    **openapi_spec("authSignature", {}, "invalid_request", "too_large", "not_configured"),
)
async def receive(request: Request[Any, Any, Any], receiver: NamedDependency[Receiver]) -> EventAnswer:
    """Take a signed event on an organization, a user or a session, and have the host handle it once (§4.4).

    The signature is Svix's (``svix-id``, ``svix-timestamp``, ``svix-signature``, or the same under ``webhook-``),
    at most five minutes off. An event that was handled before is acknowledged (§1.6).
    """
    if receiver.verifier is None:
        raise NotConfigured(
            "Set AUTH_WEBHOOK_SIGNING_SECRET to take the auth provider's events; the host needs a method auth_event, too."
        )
    body = await read_body(request)
    with receiver.intake.refusing():
        parsed = receiver.verifier.verify(request.headers, body)
    try:
        with receiver.intake.refusing():
            duplicate = await receiver.events.receive(parsed)
    except HandlerFailed:
        log.exception(
            "the host could not handle event %s (%s.%s)",
            parsed.event_id,
            parsed.kind,
            printable(parsed.action),
            extra={"event": "inbound.not_handled"},
        )
        message = "The event could not be handled and is not noted: send it again."
        raise Problem("internal_error", message) from None
    receiver.intake.count("duplicate" if duplicate else "processed")
    return EventAnswer(EventReceived(received=True, duplicate=duplicate))


def auth_events_router(
    guard: RouteGuard, events: AuthEvents, verifier: Verifier | None, telemetry: Telemetry
) -> Router:
    """Return the router of the auth provider's events.

    Args:
        guard: refuses requests while the plugin is not started.
        events: processes them.
        verifier: ``None`` when no secret is configured; then the route answers 503.
        telemetry: counts the requests.
    """
    receiver = Receiver(events, verifier, Intake(telemetry, "auth", "flowactions.auth_events", PATH))
    return Router(
        "/",
        route_handlers=with_description(receive),
        dependencies={"receiver": Provide(lambda: receiver, sync_to_thread=False)},
        guards=[guard.guard()],
        exception_handlers=HANDLERS,
        tags=["Inbound events"],
    )
