"""A recorder between a client and a server: passes every byte on, and keeps the requests as they were written."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import NamedTuple

from tests.loopback import listening


class WireRequest(NamedTuple):
    """One request as its bytes crossed the wire.

    Attributes:
        line: the request line.
        headers: names and values in their order, names as they were written.
    """

    line: str
    headers: list[tuple[str, str]]
    body: bytes


@asynccontextmanager
async def tap(port: int, seen: list[WireRequest]) -> AsyncIterator[int]:
    """Listen on a loopback port, and pass connections on to another.

    Args:
        port: of the server.
        seen: where each complete request is added.

    Yields:
        The port to connect to instead.
    """

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, onward = await asyncio.open_connection("127.0.0.1", port)
        received = bytearray()

        async def pass_on(source: asyncio.StreamReader, to: asyncio.StreamWriter) -> None:
            while data := await source.read(65536):
                if source is reader:
                    received.extend(data)
                    while request := _first_request(received):
                        seen.append(request)
                to.write(data)
                await to.drain()
            to.close()

        try:
            await asyncio.gather(pass_on(reader, onward), pass_on(there, writer))
        finally:
            onward.close()

    async with listening(connected) as own:
        yield own


def _first_request(received: bytearray) -> WireRequest | None:
    """Remove the first complete request from what was received; ``None`` when there is none yet."""
    head, end, _ = bytes(received).partition(b"\r\n\r\n")
    if not end:
        return None
    line, *fields = head.decode("latin-1").split("\r\n")
    headers = [(name, value.strip()) for name, _, value in (field.partition(":") for field in fields)]
    by_name = {name.lower(): value for name, value in headers}
    if "transfer-encoding" in by_name:
        raise NotImplementedError("bodies without a length are not recorded")
    length = len(head) + 4 + int(by_name.get("content-length", "0"))
    if len(received) < length:
        return None
    body = bytes(received[len(head) + 4 : length])
    del received[:length]
    return WireRequest(line, headers, body)
