"""Mutants of logic webhooks: which action the host finds, what it says of it, and what its triggers dispatch."""

from __future__ import annotations

import json
from contextvars import ContextVar
from typing import Any

from msgspec.structs import replace

from flowactions_conformance.reference_host.host import ReferenceHost
from flowactions_conformance.reference_host.testing import ReferenceDriver
from flowactions_hookspecs import (
    LogicAction,
    LogicActionRef,
)
from tests.conformance.mutants.altered import alter_host
from tests.conformance.mutants.mutant import changed, mutant


def url_of_the_request(driver: ReferenceDriver) -> None:
    given: ContextVar[str | None] = ContextVar("given", default=None)

    class Broken(ReferenceHost):
        async def logic_action(self, ref: LogicActionRef) -> LogicAction | None:
            found = await super().logic_action(ref)
            url = given.get()
            return found if found is None or url is None else replace(found, url=url)

    app = driver.app

    async def reading(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http" or not scope["path"].endswith("/logic-webhook"):
            await app(scope, receive, send)
            return
        message = await receive()
        given.set(json.loads(message["body"]).get("url"))

        async def again() -> Any:
            return message

        await app(scope, again, send)

    alter_host(driver, Broken)
    driver.app = reading


def first_action_always(driver: ReferenceDriver) -> None:
    class Broken(ReferenceHost):
        async def logic_action(self, ref: LogicActionRef) -> LogicAction | None:
            return await super().logic_action(replace(ref, action_index=0))

    alter_host(driver, Broken)


def headers_dropped(driver: ReferenceDriver) -> None:
    class Broken(ReferenceHost):
        async def logic_action(self, ref: LogicActionRef) -> LogicAction | None:
            found = await super().logic_action(ref)
            return None if found is None else LogicAction(url=found.url, secret=found.secret)

    alter_host(driver, Broken)


MUTANTS = [
    mutant(
        "url-of-the-request",
        "The webhook goes to the URL that the caller names.",
        changed(url_of_the_request),
        kills="LOGIC-2",
        spares="LOGIC-1 LOGIC-5",
        message="reads the destination from the request",
    ),
    mutant(
        "first-action-always",
        "The action's index is not looked at.",
        changed(first_action_always),
        kills="LOGIC-3 LOGIC-5 LOGIC-7",
        spares="LOGIC-1",
        message="a call for an action behind the last one was not refused",
    ),
    mutant(
        "action-headers-dropped",
        "The action's headers are left out.",
        changed(headers_dropped),
        kills="LOGIC-1 LOGIC-7",
        spares="LOGIC-2",
        message="the action's header is missing",
    ),
]
