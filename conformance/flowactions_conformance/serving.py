"""Serves an ASGI app on a loopback port, within the running event loop."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, contextmanager, suppress
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

try:
    import uvicorn
except ModuleNotFoundError as missing:
    raise ModuleNotFoundError("an ASGI server is needed: pip install 'flowactions-plugin[demo]'") from missing


class _Server(uvicorn.Server):
    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        # Signals belong to the program that this runs in.
        yield


@asynccontextmanager
async def serve(app: Any, *, host: str = "127.0.0.1", port: int = 0) -> AsyncIterator[str]:
    """Run an ASGI app, lifespan included, until the block is left.

    Args:
        app: the ASGI app.
        host: the address to listen on.
        port: the port, 0 for a free one.

    Yields:
        The base URL, for example ``http://127.0.0.1:8000``.

    Raises:
        RuntimeError: the app did not start; its log says why.
    """
    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind((host, port))
    config = uvicorn.Config(app, lifespan="on", log_config=None, access_log=False, timeout_graceful_shutdown=5)
    server = _Server(config)
    running = asyncio.create_task(_run(server, listener))
    try:
        while not server.started:
            if running.done():
                raise RuntimeError("the app did not start; its log says why")
            await asyncio.sleep(0.01)
        yield f"http://{host}:{listener.getsockname()[1]}"
    finally:
        server.should_exit = True
        await asyncio.wait({running})
        listener.close()


async def _run(server: _Server, listener: socket.socket) -> None:
    # uvicorn leaves the whole program when an app does not start.
    with suppress(SystemExit):
        await server.serve(sockets=[listener])
