"""Where the probe plugin reports: each event in order, from every process, and gates that hold a node back."""

from __future__ import annotations

import asyncio
import hmac
import json
import secrets
import socket
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, Final, NamedTuple

from flowactions_conformance.kit.probing.plugin import TOKEN
from flowactions_conformance.serving import serve


class Event(NamedTuple):
    """What the probe plugin reported.

    Attributes:
        number: 1 for the first event of the session.
        at: monotonic seconds.
        kind: ``loaded``, ``opened``, ``closed``, ``task_started``, ``task_stopped``, ``task_crashed``, ``reach``,
            ``reached``, ``recorded``, ``answered`` or ``host_call`` (one that raised or took long).
        host: the ``PROBE_HOST`` of the host's settings; ``None`` if the settings did not reach it. Of a served host the
            name of the start that the process belongs to.
        pid: of the process; its own also among those of other containers.
        data: the rest.
    """

    number: int
    at: float
    kind: str
    host: str | None
    pid: str
    data: Mapping[str, Any]


LASTING: Final = frozenset({"loaded", "opened", "closed", "task_started", "task_stopped", "crash_task_started"})
"""Kinds of reports that a run needs of processes that were started before it."""


class Control:
    """Takes the probe's reports. It lives in the kit's event loop.

    Args:
        token: which reports must carry.

    Attributes:
        events: all reports, oldest first.
        url: at which the probe reports.
        present: the name of a served host as it was started last: that of each process that has not reported before;
            ``None``: hosts say their names themselves.
    """

    def __init__(self, token: str | None = None) -> None:
        self.token = token or secrets.token_hex(16)
        self.events: list[Event] = []
        self.url = ""
        self.present: str | None = None
        self._names: dict[str, str] = {}
        self._changed = asyncio.Condition()
        self._gates: defaultdict[str, asyncio.Event] = defaultdict(asyncio.Event)
        self._listeners: list[Callable[[Event], None]] = []

    @asynccontextmanager
    async def running(self, listener: socket.socket | None = None) -> AsyncIterator[Control]:
        """Receive reports while open; on an open port, if one is given."""
        async with serve(self._app, listener) as url:
            self.url = url
            try:
                yield self
            finally:
                for gate in list(self._gates.values()):
                    gate.set()

    def listen(self, listener: Callable[[Event], None]) -> Callable[[], None]:
        """Call ``listener`` with every event from now on, until what is returned is called."""
        self._listeners.append(listener)
        return partial(self._listeners.remove, listener)

    def open_gate(self, name: str) -> None:
        """Open a gate for nodes that wait there, now or later."""
        self._gates[name].set()

    async def until(self, holds: Callable[[], bool]) -> None:
        """Wait until something holds, looking again after each event."""
        async with self._changed:
            await self._changed.wait_for(holds)

    async def changed(self) -> None:
        """Has those who wait look again."""
        async with self._changed:
            self._changed.notify_all()

    async def _app(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "lifespan":
            while True:
                message = await receive()
                await send({"type": f"{message['type']}.complete"})
                if message["type"] == "lifespan.shutdown":
                    return
        body = bytearray()
        while True:
            message = await receive()
            if message["type"] != "http.request":
                return
            body += message.get("body", b"")
            if not message.get("more_body"):
                break
        given = dict(scope["headers"]).get(TOKEN.encode(), b"")
        known = hmac.compare_digest(given, self.token.encode())
        if known:
            await self._report(json.loads(bytes(body)))
        await send({"type": "http.response.start", "status": 204 if known else 403, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    def keep(self, report: dict[str, Any], at: float) -> Event:
        """Keep a report, which came at a time in monotonic seconds."""
        host, pid = report.pop("host"), report.pop("pid")
        if self.present is not None:
            host = self._names.setdefault(pid, self.present)
        event = Event(len(self.events) + 1, at, report.pop("kind"), host, pid, report)
        self.events.append(event)
        return event

    async def _report(self, report: dict[str, Any]) -> None:
        event = self.keep(report, asyncio.get_running_loop().time())
        for listener in list(self._listeners):
            listener(event)
        await self.changed()
        gate = report.get("gate")
        if gate:
            await self._gates[gate].wait()
