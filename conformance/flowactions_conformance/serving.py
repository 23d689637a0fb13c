"""Serves an ASGI app on a loopback port, within the running event loop."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, contextmanager, suppress
from typing import TYPE_CHECKING, Any, Final

import httpx

if TYPE_CHECKING:
    from collections.abc import Iterator

try:
    import uvicorn
except ModuleNotFoundError as missing:
    raise ModuleNotFoundError(
        "an ASGI server is missing: install this package again with its extra 'conformance' (for the kit) or "
        "'demo' (for the demo), for example '../flowactions-plugin[conformance]'"
    ) from missing


NO_TLS: Final = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
"""``verify=`` of clients that only talk to loopback: loading certificates takes 25 ms of processor time each time."""


NO_TIMEOUT: Final = httpx.Timeout(None)
"""``timeout=`` of clients whose requests end by a limit of the kit's, or by the other side's."""


KEEP_ALIVE_SECONDS: Final = 3600
"""How long an idle connection is kept. The server's own five seconds would end some connections just as a client sends its
next request, on a machine that is slow enough: that request would fail, and the host be blamed."""


def stopped() -> asyncio.Event:
    """Return an event that a signal sets: Ctrl+C, SIGTERM, or SIGHUP unless the command was started to ignore it."""
    event, loop = asyncio.Event(), asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is not signal.SIG_IGN:
            loop.add_signal_handler(number, event.set)
    return event


class _Server(uvicorn.Server):
    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        # The surrounding program handles signals.
        yield


def listen(port: int = 0) -> socket.socket:
    """Open a loopback port, so that its URL is known before the app is created.

    Args:
        port: 0 for a free one.

    Raises:
        OSError: the port is taken.
    """
    listener = socket.create_server(("127.0.0.1", port))
    # asyncio sets this only on sockets that it creates. Without it, an answer on a reused connection is delayed by 40 ms.
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return listener


class PortUnavailable(Exception):
    """The port is taken or not allowed; the message says what to do."""


def listen_as_told(port: int) -> socket.socket:
    """Open the loopback port that a person has named, as `listen` does.

    Raises:
        PortUnavailable: it cannot be opened.
    """
    try:
        return listen(port)
    except (OSError, OverflowError) as exc:
        reason = os.strerror(exc.errno or 0) if isinstance(exc, OSError) else "a port is from 0 to 65535"
        raise PortUnavailable(f"port {port} cannot be used: {reason}; give another with --port") from exc


def url_of(listener: socket.socket) -> str:
    """Return the base URL of an open port, for example ``http://127.0.0.1:8000``."""
    return f"http://127.0.0.1:{listener.getsockname()[1]}"


@asynccontextmanager
async def serve(app: Any, listener: socket.socket | None = None) -> AsyncIterator[str]:
    """Run an ASGI app, lifespan included, until the block is left.

    Args:
        app: the ASGI app.
        listener: an open port, closed in the end; ``None`` opens a free one.

    Yields:
        The base URL.

    Raises:
        RuntimeError: the app did not start; its log says why.
    """
    listener = listener or listen()
    config = uvicorn.Config(
        app,
        interface="asgi3",
        lifespan="on",
        log_config=None,
        access_log=False,
        timeout_keep_alive=KEEP_ALIVE_SECONDS,
        timeout_graceful_shutdown=5,
    )
    server = _Server(config)
    running = asyncio.create_task(_run(server, listener))
    try:
        while not server.started:
            if running.done():
                raise RuntimeError("the app did not start; its log says why") from running.exception()
            await asyncio.sleep(0.01)
        yield url_of(listener)
    finally:
        server.should_exit = True
        await asyncio.wait({running})
        # Connections without a request, as browsers open them in advance, are not closed by the server.
        for connection in list(server.server_state.connections):
            if connection.transport is not None:
                connection.transport.abort()
        listener.close()


async def _run(server: _Server, listener: socket.socket) -> None:
    # uvicorn exits the process when an app does not start.
    with suppress(SystemExit):
        await server.serve(sockets=[listener])
