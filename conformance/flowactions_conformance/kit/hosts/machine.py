"""How slow the machine is, measured through the kit's own parts only: never through the host.

A child process serves an empty ASGI app. Asked for it, it sends requests to that app and to the kit's receiver, and asks the
database that the kit gave for a ``SELECT 1``. Slowness is how many times longer that took than on a machine that has nothing
else to do. Requests are sent one after the other, a few dozen each time: a busy machine lets a process that has waited run
at once, and only then makes it wait.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import sqlite3
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any, Final
from urllib.parse import urlsplit, urlunsplit

import asyncpg
import httpx
import msgspec

from flowactions_conformance.kit.hosts.limits import SILENT
from flowactions_conformance.serving import NO_TLS, serve

REQUESTS: Final = 30
"""To the empty app at each measurement; to the receiver a third of that."""

REFERENCES: Final = {"app": 0.03, "receiver": 0.02, "database": 0.02}
"""Seconds that each part of a measurement takes on a machine that is as fast as needed: an idle one takes less."""

FRESH_SECONDS: Final = 1.0
"""For how long a measurement is used again."""

ANSWER_SECONDS: Final = 20.0
_PARENT: Final = "FLOWACTIONS_KIT_MACHINE"
_EMPTY: Final = "/"


class Machine:
    """The machine that the kit runs on.

    Args:
        receiver_url: of the kit's receiver; ``None`` where hosts run in the receiver's process, and could slow it down.
        server: the URL of a PostgreSQL; ``None``: SQLite.

    Attributes:
        pid: of the child process.
    """

    def __init__(self, receiver_url: str | None = None, server: str | None = None) -> None:
        self._asked = {"receiver": receiver_url, "server": server}
        self.pid: int | None = None
        self._url: str | None = None
        self._measuring: asyncio.Task[float] | None = None
        self._measured = 1.0
        self._at = -FRESH_SECONDS

    @asynccontextmanager
    async def running(self) -> AsyncIterator[Machine]:
        """Run the child process while this is open; it ends with this process, even if this one is killed."""
        word = secrets.token_hex(8)
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            __name__,
            env={**os.environ, _PARENT: word, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
        )
        self.pid = process.pid
        assert process.stdin is not None and process.stdout is not None  # noqa: S101, PT018  they are pipes
        try:
            process.stdin.write(msgspec.json.encode(self._asked) + b"\n")
            self._url = (await process.stdout.readline()).decode().strip() or None
            await self.slowness()
            self._at = -FRESH_SECONDS  # the first one loads what all need
            yield self
        finally:
            if self._measuring is not None:
                self._measuring.cancel()
            # A signal to the whole group, as Ctrl+C in a terminal, has ended it already.
            with suppress(ProcessLookupError):
                process.kill()
            await process.wait()

    async def slowness(self) -> float:
        """Return how many times slower the machine is than needed; 1.0 when it is not. One measurement serves all who ask."""
        if self._url is None:
            return 1.0
        if time.monotonic() - self._at < FRESH_SECONDS:
            return self._measured
        if self._measuring is None or self._measuring.done():
            self._measuring = asyncio.create_task(self._measure(self._url))
        return await asyncio.shield(self._measuring)

    async def _measure(self, url: str) -> float:
        try:
            async with httpx.AsyncClient(trust_env=False, verify=NO_TLS, timeout=ANSWER_SECONDS) as client:
                took = msgspec.json.decode((await client.get(f"{url}/measure")).content, type=dict[str, float])
            self._measured = slowness_of(took)
        except (httpx.HTTPError, msgspec.DecodeError):
            self._measured = SILENT
        self._at = time.monotonic()
        return self._measured


def slowness_of(took: dict[str, float]) -> float:
    """Return the slowness by what each part of a measurement took, in seconds."""
    return max([1.0, *(seconds / REFERENCES[part] for part, seconds in took.items())])


class _Child:
    """The child's side: an app that is empty but for the measurement."""

    def __init__(self, receiver: str | None, server: str | None) -> None:
        self.url = ""
        self._receiver = receiver
        self._server = server

    async def app(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "lifespan":
            while True:
                message = await receive()
                await send({"type": f"{message['type']}.complete"})
                if message["type"] == "lifespan.shutdown":
                    return
        body = b"" if scope["path"] == _EMPTY else msgspec.json.encode(await self._measured())
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": body})

    async def _measured(self) -> dict[str, float]:
        took: dict[str, float] = {}
        async with httpx.AsyncClient(trust_env=False, verify=NO_TLS, timeout=ANSWER_SECONDS) as client:
            took["app"] = await _seconds(REQUESTS, lambda: client.get(f"{self.url}{_EMPTY}"))
            receiver = self._receiver
            if receiver is not None:
                took["receiver"] = await _seconds(REQUESTS // 3, lambda: client.get(f"{receiver}/machine"))
        took["database"] = await _seconds(1, self._select)
        return took

    async def _select(self) -> None:
        if self._server is None:
            await asyncio.to_thread(_select_of_sqlite)
            return
        connection = await asyncpg.connect(
            urlunsplit(urlsplit(self._server)._replace(scheme="postgresql")), timeout=ANSWER_SECONDS
        )
        try:
            await connection.execute("SELECT 1")
        finally:
            await connection.close()


async def _seconds(count: int, ask: Callable[[], Awaitable[object]]) -> float:
    began = time.perf_counter()
    for _ in range(count):
        await ask()
    return time.perf_counter() - began


def _select_of_sqlite() -> None:
    connection = sqlite3.connect(":memory:")
    try:
        connection.execute("SELECT 1")
    finally:
        connection.close()


async def _main() -> None:
    asked = msgspec.json.decode(sys.stdin.readline(), type=dict[str, str | None])
    child = _Child(asked["receiver"], asked["server"])
    async with serve(child.app) as url:
        child.url = url
        sys.stdout.write(f"{url}\n")
        sys.stdout.flush()
        await asyncio.to_thread(sys.stdin.read)  # until the kit is gone


if __name__ == "__main__":
    asyncio.run(_main())
