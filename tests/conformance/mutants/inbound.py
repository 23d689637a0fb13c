"""Mutants of what the auth provider sends."""

from __future__ import annotations

import logging

from flowactions_conformance.reference_host.testing import ReferenceDriver
from flowactions_hookspecs import AuthEvent
from tests.conformance.middleware import Answer, Asked, around, json_answer
from tests.conformance.mutants.mutant import changed, mutant

ROUTE = "/webhooks/auth"


def _swallows(driver: ReferenceDriver) -> None:
    handle = driver.made.host.auth_event

    async def auth_event(event: AuthEvent) -> None:
        try:
            await handle(event)
        except Exception:
            logging.getLogger("host").exception("the event could not be handled")

    driver.made.host.auth_event = auth_event  # type: ignore[method-assign]


def _own_route(driver: ReferenceDriver) -> None:
    def believe(asked: Asked) -> Answer | None:
        return json_answer(200, b"{}") if asked.path == ROUTE else None

    driver.app = around(driver.made.app, refuse=believe)


MUTANTS = [
    mutant(
        "auth-event-errors-swallowed",
        "Errors of auth_event are logged, and the event counts as handled.",
        changed(_swallows),
        kills="INBOUND-2",
        spares="INBOUND-1 INBOUND-3 INBOUND-4",
        message="the provider will not send it again",
    ),
    mutant(
        "auth-events-by-a-route-of-its-own",
        "A route of the host takes the events, and believes everybody.",
        changed(_own_route),
        kills="INBOUND-1 INBOUND-2 INBOUND-3 INBOUND-4",
        spares="LOAD-1",
        message="that is stale was not refused with 401",
    ),
]
