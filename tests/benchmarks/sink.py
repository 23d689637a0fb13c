"""A receiver that costs as little as Python allows: it answers 200 and notes when which path was asked for.

    python -m tests.benchmarks.sink PORT [PORT …]

runs it in a process of its own, where nginx is not installed.
"""

from __future__ import annotations

import argparse
import asyncio
import re
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager

BODY = b'{"runId": "%d", "content": "' + b"x" * 250 + b'"}'
"""What all benchmarks post, with a number."""

ANSWER = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok"
_LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)", re.IGNORECASE)


class _Connection(asyncio.Protocol):
    def __init__(self, arrivals: dict[str, float], silent: bytes | None) -> None:
        self._arrivals = arrivals
        self._silent = silent
        self._waiting = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._waiting += data
        while (end := self._waiting.find(b"\r\n\r\n")) >= 0:
            head = self._waiting[:end]
            found = _LENGTH.search(head)
            whole = end + 4 + (int(found[1]) if found else 0)
            if len(self._waiting) < whole:
                return
            path = head.split(b" ", 2)[1]
            if path == self._silent:
                return
            self._arrivals.setdefault(path.decode(), time.time())
            self._waiting = self._waiting[whole:]
            self._transport.write(ANSWER)


@asynccontextmanager
async def sink(
    ports: Sequence[int] = (0,), *, silent: bytes | None = None
) -> AsyncIterator[tuple[str, dict[str, float]]]:
    """Run it in this process.

    Args:
        ports: to listen on; 0 for a free one.
        silent: a path whose requests are never answered.

    Yields:
        The URL of the first port, and the time of arrival (Unix seconds) by path.
    """
    arrivals: dict[str, float] = {}
    loop = asyncio.get_running_loop()
    async with AsyncExitStack() as stack:
        servers = [
            await loop.create_server(lambda: _Connection(arrivals, silent), "127.0.0.1", port) for port in ports
        ]
        for server in servers:
            await stack.enter_async_context(server)
        yield f"http://127.0.0.1:{servers[0].sockets[0].getsockname()[1]}", arrivals


async def _serve(ports: Sequence[int]) -> None:
    async with sink(ports):
        await asyncio.Event().wait()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("ports", type=int, nargs="+")
    options = parser.parse_args()
    asyncio.run(_serve(options.ports))
