"""The endpoint for the auth provider's events, and what it shares with the chat provider's."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any, Final, Literal, TypeAlias

from litestar import Request, Router, post
from litestar.di import NamedDependency
from litestar.exceptions import HTTPException

from flowactions_plugin.clock import Clock, timer
from flowactions_plugin.errors import HostFailed, NotConfigured, RequestInvalid, StorageUnavailable
from flowactions_plugin.http.auth import RouteGuard, read_body
from flowactions_plugin.http.openapi import openapi_spec, plugin_router
from flowactions_plugin.http.problems import Problem
from flowactions_plugin.inbound import store
from flowactions_plugin.inbound.auth_events import HANDLER_SECONDS, AuthEvents, Verifier, claimed_id, type_of
from flowactions_plugin.inbound.requests import EVENT_BYTES, EventAnswer, EventReceived, NotAuthentic, Throttle
from flowactions_plugin.inbound.store import Unprocessed
from flowactions_plugin.log_text import printable, size
from flowactions_plugin.storage.database import Database
from flowactions_plugin.telemetry import names
from flowactions_plugin.telemetry.telemetry import Telemetry

PATH: Final = "/webhooks/auth"

MOST_RECORDED: Final = 20
"""So many requests of a cause are logged and recorded one by one within an hour, in each process."""

Event: TypeAlias = tuple[str | None, str | None]
"""The id and the type of an event, as far as they are known."""


class Intake:
    """Counts a provider's requests by what became of them, and records and answers those that process no event.

    Args:
        database: where they are recorded.
        telemetry: where they are counted.
        source: the provider.
        logger: the name of the logger of refusals.
        path: of the route.
        clock: monotonic seconds.
    """

    def __init__(
        self,
        database: Database,
        telemetry: Telemetry,
        source: Literal["auth", "chat"],
        logger: str,
        path: str,
        clock: Clock = timer,
    ) -> None:
        self._database = database
        self._telemetry = telemetry
        self._source = source
        self._log = logging.getLogger(logger)
        self._path = path
        self._admitted = Throttle(MOST_RECORDED, 3600.0, clock)

    def answer(self, *, duplicate: bool) -> EventAnswer:
        """Count and answer a request whose event was processed, now or before."""
        self._count("duplicate" if duplicate else "processed")
        return EventAnswer(EventReceived(received=True, duplicate=duplicate))

    async def acknowledge(self, event_id: str | None, event_type: str | None) -> EventAnswer:
        """Count, record and answer an authentic request of which nothing is done."""
        await self._record("acknowledged", 200, event_type or "", None, (event_id, event_type))
        return EventAnswer(EventReceived(received=True, duplicate=False))

    @asynccontextmanager
    async def refusing(self, event_id: str | None = None, event_type: str | None = None) -> AsyncIterator[None]:
        """Count, record and answer a request that is not authentic, not valid or not processed.

        Args:
            event_id: the event that the request names; ``None``: none that can be read.
            event_type: the event's type; ``None``: not known.
        """
        event = event_id, event_type
        try:
            yield
        except NotAuthentic as exc:
            await self._record("refused", 401, exc.cause, str(exc), event)
            raise Problem("unauthorized", "The signature is missing, wrong or too old.") from None
        except NotConfigured as exc:
            await self._record("refused", 503, "not configured", str(exc), event)
            raise
        except HTTPException as exc:
            if exc.status_code == 413:
                too_large = f"the body is larger than {size(EVENT_BYTES)}"
                await self._record("refused", 413, "too large", too_large, event)
            raise
        except RequestInvalid as exc:
            await self._record("invalid", 400, str(exc), str(exc), event)
            raise
        except HostFailed as exc:
            what = f"{event_id} ({printable(event_type)})"
            self._log.exception(
                "the host could not handle event %s", what, extra={"event": "inbound.not_handled"}
            )
            await self._record("failed", 500, _why(exc), _why(exc), event)
            raise
        except StorageUnavailable:
            self._count("failed")
            raise

    def _count(self, result: Unprocessed | Literal["processed", "duplicate"]) -> None:
        self._telemetry.meters.count(names.INBOUND, source=self._source, result=result)

    async def _record(
        self, result: Unprocessed, status: int, cause: str, reason: str | None, event: Event
    ) -> None:
        """Count and record a request, unless anybody may send many of its cause and has; the answer does not depend on it."""
        self._count(result)
        signed = result in {"invalid", "failed"}
        more = 0 if signed else self._admitted.admit(f"{result} {cause}")
        if more is None:
            return
        if status == 401:
            since = f" ({more} more for this cause since the last line)" if more else ""
            self._log.warning(
                "POST %s refused: %s%s", self._path, reason, since, extra={"event": "inbound.refused"}
            )
        with suppress(StorageUnavailable):
            await store.record_unprocessed(
                *(self._database, self._source, result, status, cause),
                event_id=event[0],
                event_type=event[1],
                reason=reason,
                requests=1 + more,
            )


def _why(exc: HostFailed) -> str:
    """Return why a host's handler failed; its message may hold what nobody is to read here."""
    cause = exc.__cause__
    if isinstance(cause, TimeoutError):
        return f"Host.auth_event took longer than {HANDLER_SECONDS:g} s, or a call in it timed out"
    return f"Host.auth_event failed: {type(cause).__name__}; the log has the details"


@post(
    PATH,
    status_code=200,
    summary="Events of the auth provider",
    request_max_body_size=EVENT_BYTES,
    **openapi_spec("authSignature", {}, "invalid_request", "too_large", "not_configured"),
)
async def receive(
    request: Request[Any, Any, Any],
    events: NamedDependency[AuthEvents],
    verifier: NamedDependency[Verifier | None],
    intake: NamedDependency[Intake],
) -> EventAnswer:
    """Take a signed event on an organization, a user or a session, and have the host handle it once (§4.4).

    The signature is Svix's (``svix-id``, ``svix-timestamp``, ``svix-signature``, or the same under ``webhook-``),
    at most five minutes off. An event that was handled before is acknowledged (§4.4).
    """
    event_id = claimed_id(request.headers)
    async with intake.refusing(event_id):
        if verifier is None:
            raise NotConfigured(
                "Set AUTH_WEBHOOK_SIGNING_SECRET to take the auth provider's events; the host needs a method auth_event, too."
            )
        event = verifier.verify(request.headers, await read_body(request))
    async with intake.refusing(event_id, type_of(event)):
        duplicate = await events.receive(event)
    return intake.answer(duplicate=duplicate)


def auth_events_router(
    guard: RouteGuard,
    events: AuthEvents,
    verifier: Verifier | None,
    database: Database,
    telemetry: Telemetry,
) -> Router:
    """Return the router of the auth provider's events.

    Args:
        guard: refuses requests while the plugin is not started.
        events: processes them.
        verifier: ``None`` when no secret is configured; then the route answers 503.
        database: where requests that process no event are recorded.
        telemetry: counts the requests.
    """
    intake = Intake(database, telemetry, "auth", "flowactions.auth_events", PATH)
    return plugin_router(
        "/",
        receive,
        dependencies={"events": events, "verifier": verifier, "intake": intake},
        guards=[guard.guard()],
        tags=["Inbound events"],
    )
