"""Hosts for worker processes that are to die: ``FLOWACTIONS_TEST_KILL`` says where, and at which time of it.

``claimed:3``   with the third delivery claimed and not yet sent
``answered:3``  when the third answer was read
``writing:3``   in the third transaction of outcomes: with everything written and nothing committed, or on PostgreSQL
                with the server at work on it
``written:3``   when that transaction was committed, before anybody knows

To die when the receiver has the request is the receiver's doing: it sees in `WORKER` whom to kill.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from threading import Timer
from typing import Any

import httpx
from sqlalchemy import Engine, event

from tests.support import SmallHost

WORKER = "x-test-worker"
SECRET = "whsec_crash"


class Fuse:
    """Kills this process the nth time that a point is reached."""

    def __init__(self, text: str) -> None:
        self._point, _, times = text.partition(":")
        self._left = int(times or 0)

    def at(self, point: str) -> None:
        if point == self._point:
            self._left -= 1
            if self._left == 0:
                os.kill(os.getpid(), signal.SIGKILL)


class KillingTransport(httpx.AsyncBaseTransport):
    """The real transport, with two points at which it may all end."""

    def __init__(self, inner: httpx.AsyncBaseTransport, at: Callable[[str], None]) -> None:
        self._inner = inner
        self._at = at

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        self._at("claimed")
        request.headers[WORKER] = str(os.getpid())
        response = await self._inner.handle_async_request(request)
        body = await response.aread()
        self._at("answered")
        return httpx.Response(response.status_code, headers=response.headers, content=body)


async def make() -> SmallHost:
    """Make the host of a worker."""
    fuse = Fuse(os.environ.get("FLOWACTIONS_TEST_KILL", ""))
    outcomes: set[Any] = set()

    def of_outcomes(statement: str) -> bool:
        return "UPDATE flowactions_outbox SET" in statement and "delivered_started_at =" in statement

    def before(connection: Any, _cursor: Any, statement: str, *_: Any) -> None:
        if of_outcomes(statement) and connection.dialect.name == "postgresql":
            # One statement is the whole transaction there: the server may be at any point of it.
            Timer(0.001, fuse.at, ["writing"]).start()

    def note(connection: Any, _cursor: Any, statement: str, *_: Any) -> None:
        if of_outcomes(statement):
            outcomes.add(connection)

    def before_commit(connection: Any) -> None:
        if connection in outcomes:
            fuse.at("writing")

    def returned(connection: Any, *_: Any) -> None:
        if outcomes:
            outcomes.clear()
            fuse.at("written")

    event.listen(Engine, "before_cursor_execute", before)
    event.listen(Engine, "after_cursor_execute", note)
    event.listen(Engine, "commit", before_commit)
    event.listen(Engine, "checkin", returned)
    host = SmallHost(os.environ, transport=KillingTransport(httpx.AsyncHTTPTransport(), fuse.at))
    host.secret = SECRET
    return host
