"""A scripted HTTP receiver on loopback: it records raw requests and answers what a test says."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import NamedTuple

from tests.loopback import listening

OK = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok"


def status(code: int, *headers: str, body: bytes = b"") -> bytes:
    """Write a whole response."""
    lines = [f"HTTP/1.1 {code} Status", f"content-length: {len(body)}", *headers]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


class Request(NamedTuple):
    """A request as its bytes arrived."""

    line: str
    headers: list[tuple[str, bytes]]
    body: bytes

    def header(self, name: str) -> str:
        """Give the one header of this name."""
        (value,) = [value for header, value in self.headers if header == name]
        return value.decode()


class Recorder:
    """The requests so far, and the answer to the next one, which waits for ``held`` where there is one."""

    def __init__(self) -> None:
        self.url = ""
        self.requests: list[Request] = []
        self.answer: Callable[[int], bytes] = lambda number: OK
        self.held: asyncio.Event | None = None

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer requests on one connection until the other side closes it."""
        while True:
            head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
            pairs = [line.partition(": ") for line in head[1:] if line]
            headers = [(name.lower(), value.encode("latin-1")) for name, _, value in pairs]
            length = next((int(value) for name, value in headers if name == "content-length"), 0)
            self.requests.append(Request(head[0], headers, await reader.readexactly(length)))
            if self.held is not None:
                await self.held.wait()
            writer.write(self.answer(len(self.requests)))
            await writer.drain()


@asynccontextmanager
async def recorder() -> AsyncIterator[Recorder]:
    """Run a recorder on a free loopback port."""
    recording = Recorder()
    async with listening(recording.serve) as port:
        recording.url = f"http://127.0.0.1:{port}/hook"
        yield recording
