"""Where the probe plugin reports: each event in order, from every process, and gates that hold a node back."""

from __future__ import annotations

import asyncio
import json
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, NamedTuple

from flowactions_conformance.serving import serve


class Event(NamedTuple):
    """What the probe plugin reported.

    Attributes:
        number: 1 for the first event of the session.
        at: monotonic seconds.
        kind: ``loaded``, ``opened``, ``closed``, ``task_started``, ``task_stopped``, ``task_crashed``, ``reach``,
            ``reached``, ``recorded``, ``host_call`` (one that raised or took long) or ``advance`` (``unavailable``, or asked for again).
        host: the ``PROBE_HOST`` of the host's settings; ``None`` if the settings did not reach it.
        pid: of the process.
        data: the rest.
    """

    number: int
    at: float
    kind: str
    host: str | None
    pid: int
    data: Mapping[str, Any]


class Control:
    """Takes the probe's reports. It lives in the kit's event loop.

    Attributes:
        events: all reports, oldest first.
        url: at which the probe reports.
    """

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.url = ""
        self._changed = asyncio.Condition()
        self._gates: defaultdict[str, asyncio.Event] = defaultdict(asyncio.Event)
        self._listeners: list[Callable[[Event], None]] = []

    @asynccontextmanager
    async def running(self) -> AsyncIterator[Control]:
        """Take reports while open."""
        async with serve(self._app) as url:
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
        """Lets through whoever waits, or will wait, at a gate."""
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
        await self._report(json.loads(bytes(body)))
        await send({"type": "http.response.start", "status": 204, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    async def _report(self, report: dict[str, Any]) -> None:
        event = Event(
            number=len(self.events) + 1,
            at=asyncio.get_running_loop().time(),
            kind=report.pop("kind"),
            host=report.pop("host"),
            pid=report.pop("pid"),
            data=report,
        )
        self.events.append(event)
        for listener in list(self._listeners):
            listener(event)
        await self.changed()
        gate = report.get("gate")
        if gate:
            await self._gates[gate].wait()
