"""Mutants of what the auth provider sends."""

from __future__ import annotations

import json
import logging
from typing import Any

import msgspec

from flowactions_conformance.reference_host.testing import ReferenceDriver
from flowactions_hookspecs import AuthEvent
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


def _handles_twice(driver: ReferenceDriver) -> None:
    handle = driver.made.host.auth_event

    async def auth_event(event: AuthEvent) -> None:
        await handle(event)
        await handle(msgspec.structs.replace(event, provider="audit"))

    driver.made.host.auth_event = auth_event  # type: ignore[method-assign]


def _keeps_deleted(driver: ReferenceDriver) -> None:
    handle = driver.made.host.auth_event

    async def auth_event(event: AuthEvent) -> None:
        if event.kind != "user":
            raise LookupError(f"no handler for {event.kind}")
        await handle(event)

    driver.made.host.auth_event = auth_event  # type: ignore[method-assign]


def _signed_in_only(driver: ReferenceDriver) -> None:
    app = driver.made.app

    async def guarded(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http" and scope["path"] == ROUTE and "authorization" not in _names(scope):
            await _answer(send, 401, b"sign in")
            return
        await app(scope, receive, send)

    driver.app = guarded


def _re_encodes(driver: ReferenceDriver) -> None:
    app = driver.made.app

    async def parsing(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http" or scope["path"] != ROUTE:
            await app(scope, receive, send)
            return
        body = json.dumps(json.loads(await _body(receive))).encode()
        headers = [each for each in scope["headers"] if each[0] != b"content-length"]
        sent: Any = {**scope, "headers": [*headers, (b"content-length", str(len(body)).encode())]}

        async def again() -> Any:
            return {"type": "http.request", "body": body, "more_body": False}

        await app(sent, again, send)

    driver.app = parsing


def _own_route(driver: ReferenceDriver) -> None:
    app = driver.made.app

    async def taking(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http" or scope["path"] != ROUTE:
            await app(scope, receive, send)
            return
        await _body(receive)
        await _answer(send, 200, b"{}")

    driver.app = taking


def _names(scope: Any) -> set[str]:
    return {name.decode("latin-1").lower() for name, _ in scope["headers"]}


async def _body(receive: Any) -> bytes:
    body = b""
    while True:
        message = await receive()
        body += bytes(message.get("body", b""))
        if not message.get("more_body"):
            return body


async def _answer(send: Any, status: int, body: bytes) -> None:
    await send({"type": "http.response.start", "status": status, "headers": []})
    await send({"type": "http.response.body", "body": body})


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
        "auth-event-handled-twice",
        "An event is handled by two parts of the host, each of which keeps it.",
        changed(_handles_twice),
        kills="INBOUND-1 INBOUND-2",
        spares="INBOUND-3 INBOUND-4",
        message="was handled 2 times, not once",
    ),
    mutant(
        "auth-event-of-users-only",
        "auth_event raises for what it does not know.",
        changed(_keeps_deleted),
        kills="INBOUND-4",
        spares="INBOUND-1 INBOUND-2 INBOUND-3",
        message="the event organization.deleted was refused",
    ),
    mutant(
        "auth-events-need-a-sign-in",
        "The host's own authentication stands before the route of the auth provider.",
        changed(_signed_in_only),
        kills="INBOUND-1 INBOUND-2 INBOUND-4",
        spares="INBOUND-3",
        message="an authentic event of the auth provider was refused",
    ),
    mutant(
        "auth-events-re-encoded",
        "Middleware decodes JSON bodies and encodes them again.",
        changed(_re_encodes),
        kills="INBOUND-1 INBOUND-2 INBOUND-4",
        spares="INBOUND-3",
        message="hands it on re-encoded, so that the signature is wrong",
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
