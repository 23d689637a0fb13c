"""A receiver that costs as little as Python allows: it answers 200 and notes when which path was asked for.

    python -m tests.benchmarks.sink [--retries SHARE] PORT [PORT …]

runs it in a process of its own, where nginx is not installed, or where a share of the rows is to be retried.
"""

from __future__ import annotations

import argparse
import asyncio
import re
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager

ANSWER = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok"
UNAVAILABLE = b"HTTP/1.1 503 Service Unavailable\r\ncontent-length: 2\r\n\r\nno"
_LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)", re.IGNORECASE)


_NUMBER = re.compile(rb'^\{"runId": "(\d+)"')


def is_retried(number: int, share: float) -> bool:
    """Whether the row of that number, in the order of filling, belongs to the share that is answered with 503 once.

    The first rows do not, so that a queue's first deliveries take no longer.
    """
    return number % 1000 >= 1000 - round(share * 1000)


class Retries:
    """Tells which requests are to be answered with 503: the first for each row of a share.

    Args:
        share: of the rows.
    """

    def __init__(self, share: float) -> None:
        self._share = share
        self._refused: set[int] = set()

    def refuse(self, body: bytes) -> bool:
        """Whether this request is to be refused."""
        found = _NUMBER.match(body)
        number = int(found[1]) if found else 0
        if not is_retried(number, self._share) or number in self._refused:
            return False
        self._refused.add(number)
        return True


class _Connection(asyncio.Protocol):
    def __init__(
        self, arrivals: dict[str, float] | None, retries: Retries | None, silent: bytes | None
    ) -> None:
        self._arrivals = arrivals
        self._retries = retries
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
            if self._arrivals is not None:
                self._arrivals.setdefault(path.decode(), time.time())
            refused = self._retries is not None and self._retries.refuse(self._waiting[end + 4 : whole])
            self._waiting = self._waiting[whole:]
            self._transport.write(UNAVAILABLE if refused else ANSWER)


@asynccontextmanager
async def sink(
    ports: Sequence[int] = (0,), *, note: bool = True, retries: float = 0.0, silent: bytes | None = None
) -> AsyncIterator[tuple[str, dict[str, float]]]:
    """Run it in this process.

    Args:
        ports: to listen on; 0 for a free one.
        note: whether to note arrivals.
        retries: the share of rows that are answered with 503 once.
        silent: a path whose requests are never answered.

    Yields:
        The URL of the first port, and the time of arrival (Unix seconds) by path.
    """
    arrivals: dict[str, float] = {}
    refusing = Retries(retries) if retries else None
    loop = asyncio.get_running_loop()
    async with AsyncExitStack() as stack:
        servers = [
            await loop.create_server(
                lambda: _Connection(arrivals if note else None, refusing, silent), "127.0.0.1", port
            )
            for port in ports
        ]
        for server in servers:
            await stack.enter_async_context(server)
        yield f"http://127.0.0.1:{servers[0].sockets[0].getsockname()[1]}", arrivals


async def _serve(ports: Sequence[int], retries: float) -> None:
    async with sink(ports, note=False, retries=retries):
        await asyncio.Event().wait()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--retries", type=float, default=0.0)
    parser.add_argument("ports", type=int, nargs="+")
    options = parser.parse_args()
    asyncio.run(_serve(options.ports, options.retries))
