"""Raw TCP servers on loopback that leave nothing open behind them."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import TypeAlias

Serve: TypeAlias = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]

ACCEPTING_TURNS = 5
"""Turns of the event loop in which a connection that was taken just before the end reaches its handler."""


@asynccontextmanager
async def listening(
    serve: Serve, *, host: str = "127.0.0.1", port: int = 0, tls: ssl.SSLContext | None = None
) -> AsyncIterator[int]:
    """Serve connections until the block is left; then every one of them is cut.

    Args:
        serve: handles one connection, which is closed when it returns. A peer that goes away is no error.
        host: the loopback address.
        port: 0 for a free one.
        tls: the server's certificate.

    Yields:
        The port.
    """
    connections: dict[asyncio.Task[None], asyncio.StreamWriter] = {}

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        connections[task] = writer
        try:
            await serve(reader, writer)
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        except RuntimeError:  # of uvloop, for a connection that is closed
            if not writer.is_closing():
                raise
        finally:
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()
            del connections[task]

    server = await asyncio.start_server(handle, host, port, ssl=tls)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
        for _ in range(ACCEPTING_TURNS):
            await asyncio.sleep(0)
        for task, writer in list(connections.items()):
            writer.transport.abort()
            task.cancel()
        await asyncio.gather(*connections, return_exceptions=True)


@contextmanager
def held_port() -> Iterator[int]:
    """Reserve a port for a program that gets its number; yields the port. Until the program listens, connections are refused.

    The system gives it to nobody who asks for any free port. The program can listen at it, because both set SO_REUSEADDR.
    """
    with socket.socket() as holder:
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        holder.bind(("127.0.0.1", 0))
        port: int = holder.getsockname()[1]
        if sys.platform != "linux":  # elsewhere, nobody else could listen there
            holder.close()
        yield port


@contextmanager
def black_hole(host: str = "127.0.0.1") -> Iterator[int]:
    """Take no more connections, and do not say so; yields the port of a loopback address where that is so."""
    with socket.socket() as full, contextlib.ExitStack() as stack:
        full.bind((host, 0))
        full.listen(0)
        for _ in range(4):  # until its queue is full
            waiting = stack.enter_context(socket.socket())
            waiting.setblocking(False)
            with contextlib.suppress(BlockingIOError):
                waiting.connect(full.getsockname())
        yield full.getsockname()[1]
