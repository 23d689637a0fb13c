"""Hosts for worker processes; variables say what is different about one.

``FLOWACTIONS_TEST_TIMING`` gives its claims other times: lease, deadline and quarantine.
``FLOWACTIONS_TEST_AHEAD=600`` sets the clock of its process ahead, by seconds.
``FLOWACTIONS_TEST_FULL=path`` lets its SQLite file not grow while a file is at the path.
``FLOWACTIONS_TEST_KILL`` says where it dies, and at which time of it:

``claimed:3``   with the third delivery claimed and not yet sent
``answered:3``  when the third answer was read
``writing:3``   in the third transaction of outcomes: with everything written and nothing committed, or on PostgreSQL
                with the server at work on it
``written:3``   when that transaction was committed, before anybody knows
``acting:3``    with everything of the third batch of a bulk action written, and nothing committed
``acted:3``     when that transaction was committed, before anybody knows

To die when the receiver has the request (``sent:3``) is the receiver's doing: it sees in `WORKER` whom to kill.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from threading import Timer
from typing import Any

import httpx
from sqlalchemy import Engine, event

from flowactions_plugin.queue.rules import Timing
from flowactions_plugin.services import Services
from flowactions_plugin.storage.database import Database
from tests.outages import Outage
from tests.support import SmallHost

WORKER = "x-test-worker"
SECRET = "whsec_crash"


class _Full(Outage):
    """A disk that is full while a file is at a path."""

    @property
    def is_broken(self) -> bool:
        return Path(os.environ["FLOWACTIONS_TEST_FULL"]).exists()


class TimedHost(SmallHost):
    """A host whose deliveries have other times: its process has no other host, so they are the default of `Services`."""

    def __init__(self, settings: Mapping[str, str]) -> None:
        super().__init__(settings)
        self.secret = SECRET
        given = os.environ.get("FLOWACTIONS_TEST_TIMING", "")
        defaults = Services.__init__.__kwdefaults__
        assert defaults is not None
        defaults["timing"] = Timing(*map(float, given.split()))
        ahead = float(os.environ.get("FLOWACTIONS_TEST_AHEAD", "0"))
        if ahead:
            # Of its engine and its clock.
            Database.__init__.__defaults__ = (None, lambda: time.time() + ahead)
        if "FLOWACTIONS_TEST_FULL" in os.environ:
            self.database = _Full(settings["FLOWACTIONS_DATABASE_URL"], "disk full").engine()


class Fuse:
    """Kills this process the nth time that a point is reached."""

    def __init__(self, text: str) -> None:
        self._point, _, times = text.partition(":")
        self._left = int(times)

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


def points_of(statement: str) -> tuple[str, str] | None:
    """Return the points before and after the commit of a statement; ``None``: it is neither of outcomes nor of a batch."""
    updates = "UPDATE flowactions_outbox SET" in statement
    if updates and "delivered_started_at =" in statement:
        return "writing", "written"
    if (updates and "action_id=" in statement) or "INSERT INTO flowactions_outbox" in statement:
        return "acting", "acted"
    return None


def is_whole(connection: Any, points: tuple[str, str] | None) -> bool:
    """One statement is the whole transaction of outcomes on PostgreSQL: the server may be at any point of it."""
    return connection.dialect.name == "postgresql" and points == ("writing", "written")


def end_at(fuse: Fuse) -> None:
    """Have this process pass the points of its transactions."""
    changed: dict[Any, tuple[str, str]] = {}
    committed: list[str] = []

    def before(connection: Any, _cursor: Any, statement: str, *_: Any) -> None:
        if is_whole(connection, points_of(statement)):
            Timer(0.001, fuse.at, ["writing"]).start()

    def note(connection: Any, _cursor: Any, statement: str, *_: Any) -> None:
        points = points_of(statement)
        if is_whole(connection, points):
            committed.append("written")
        elif points:
            changed[connection] = points

    def before_commit(connection: Any) -> None:
        points = changed.pop(connection, None)
        if points:
            committed.append(points[1])
            fuse.at(points[0])

    def returned(*_: Any) -> None:
        while committed:
            fuse.at(committed.pop())

    event.listen(Engine, "before_cursor_execute", before)
    event.listen(Engine, "after_cursor_execute", note)
    event.listen(Engine, "commit", before_commit)
    event.listen(Engine, "checkin", returned)


async def make() -> TimedHost:
    """Make the host of a worker; with the plugin's own transport, unless it dies."""
    host = TimedHost(os.environ)
    kill = os.environ.get("FLOWACTIONS_TEST_KILL")
    if kill:
        fuse = Fuse(kill)
        end_at(fuse)
        host.transport = KillingTransport(httpx.AsyncHTTPTransport(), fuse.at)
    return host
