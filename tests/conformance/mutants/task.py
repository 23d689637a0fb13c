"""Mutants of the lifespan and of the plugins' tasks."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import httpx

from flowactions_conformance.reference_host.host import ReferenceHost
from flowactions_conformance.reference_host.testing import ReferenceDriver
from flowactions_hookspecs import FlowActions, Node
from tests.conformance.mutants.altered import alter_host
from tests.conformance.mutants.mutant import changed, mutant

_never_left: list[Any] = []


def _lifespans(driver: ReferenceDriver) -> list[Any]:
    """The lifespans that the app enters, without that of the plugins."""
    found: list[Any] = driver.made.app._lifespan_managers
    found.remove(driver.made.actions.lifespan)
    return found


def _loaded_twice(driver: ReferenceDriver) -> None:
    made = driver.made
    again = FlowActions.load(ReferenceHost(made.host.settings, made.host.store))
    made.app._lifespan_managers.append(lambda _: again.lifespan())


def _sleeps_in_node(driver: ReferenceDriver) -> None:
    class Broken(ReferenceHost):
        async def node(self, organization_id: str, flow_id: str, node_id: str) -> Node | None:
            time.sleep(0.15)  # noqa: ASYNC251  that is the fault
            return await super().node(organization_id, flow_id, node_id)

    alter_host(driver, Broken)


def _never_closed(driver: ReferenceDriver) -> None:
    @asynccontextmanager
    async def lifespan(_: object) -> AsyncIterator[None]:
        stack = AsyncExitStack()
        _never_left.append(stack)
        await stack.enter_async_context(driver.made.actions.lifespan())
        yield

    _lifespans(driver).append(lifespan)


def _gives_up_after_a_crash(driver: ReferenceDriver) -> None:
    app, thread, crashed = driver.made.app, threading.get_ident(), threading.Event()

    class Alarm(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if record.thread == thread and "background task" in record.getMessage():
                crashed.set()

    async def alarmed(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http" and crashed.is_set():
            await send({"type": "http.response.start", "status": 503, "headers": []})
            await send({"type": "http.response.body", "body": b"unhealthy"})
            return
        await app(scope, receive, send)

    logging.getLogger().addHandler(Alarm())
    driver.app = alarmed


def _needs_chat(driver: ReferenceDriver) -> None:
    driver.made.host.settings["CHAT_CLIENT_ID"]


class _Repeating(httpx.AsyncHTTPTransport):
    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        body = await request.aread()
        answer = await super().handle_async_request(request)
        if answer.status_code < 500:
            return answer
        await answer.aclose()
        again = httpx.Request(request.method, request.url, headers=request.headers, content=body)
        return await super().handle_async_request(again)


def _transport_repeats(driver: ReferenceDriver) -> None:
    driver.made.host.transport = _Repeating()


MUTANTS = [
    mutant(
        "two-sets-of-tasks",
        "The walk and the routes have a FlowActions each, and both are opened.",
        changed(_loaded_twice),
        kills="LOAD-1 TASK-1",
        spares="EAGER-1",
        message="a process of the host runs 2 lifespans of the plugins",
    ),
    mutant(
        "sleeps-in-node",
        "A node is looked up with a library that is not asynchronous.",
        changed(_sleeps_in_node),
        kills="TASK-5",
        spares="TASK-1 EAGER-6",
        message="Host.node keeps the event loop for 0.2 s at each call",
    ),
    mutant(
        "lifespan-never-closed",
        "The lifespan is entered by hand and never left.",
        changed(_never_closed),
        kills="TASK-3",
        spares="TASK-1 TASK-4",
        message="their lifespans were not closed",
    ),
    mutant(
        "gives-up-after-a-crash",
        "The host is unhealthy once a background task has crashed.",
        changed(_gives_up_after_a_crash),
        kills="TASK-2",
        spares="TASK-1 TASK-3 TASK-4",
        message="after a plugin's task has crashed, requests are not answered any more",
    ),
    mutant(
        "needs-chat",
        "The host reads a setting of chat itself.",
        changed(_needs_chat),
        kills="TASK-4",
        spares="TASK-1 TASK-3",
        message="CHAT_CLIENT_ID",
    ),
    mutant(
        "transport-repeats",
        "The host's transport repeats requests that failed.",
        changed(_transport_repeats),
        kills="EAGER-10",
        spares="EAGER-2 TASK-5",
        message="one attempt of a delivery, which was answered 500, arrived as several requests",
    ),
]
