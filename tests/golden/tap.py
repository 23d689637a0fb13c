"""A recorder between a client and a server: passes every byte on, and keeps the requests as they were written."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import NamedTuple


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
    writers: set[asyncio.StreamWriter] = set()

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, onward = await asyncio.open_connection("127.0.0.1", port)
        writers.update({writer, onward})
        back = asyncio.create_task(_pass_on(there, writer))
        received = bytearray()
        with suppress(ConnectionError):
            while data := await reader.read(65536):
                received += data
                while request := _first_request(received):
                    seen.append(request)
                onward.write(data)
                await onward.drain()
        onward.close()
        await asyncio.wait({back})
        writers.difference_update({writer, onward})

    server = await asyncio.start_server(connected, "127.0.0.1")
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
        for writer in list(writers):
            writer.transport.abort()


async def _pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(ConnectionError):
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
    writer.close()


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
