"""Connections to a destination through a proxy: CONNECT, then TLS with the destination."""

from __future__ import annotations

import asyncio
from typing import cast

from flowactions_plugin.egress.response_reader import NotHttp, ResponseReader
from flowactions_plugin.errors import SendFailed


class TunnelRefused(SendFailed):
    """The proxy did not open the tunnel; the message says why, for the log."""


class TunnelRequest(asyncio.Protocol):
    """Asks a proxy for a tunnel; afterwards another protocol takes the transport over."""

    def __init__(self) -> None:
        self._reader = ResponseReader(head_only=True)
        self._answered: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._transport: asyncio.Transport | None = None

    async def ask(self, head: bytes) -> asyncio.Transport:
        """Send the request; return the transport that leads to the destination now.

        Raises:
            TunnelRefused: the proxy answered otherwise, or not at all.
        """
        assert self._transport is not None  # noqa: S101  it is connected
        self._transport.write(head)
        try:
            await self._answered
        except BaseException:
            self._transport.abort()
            raise
        return self._transport

    # The event loop calls these.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Take the transport."""
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        """Read the proxy's answer."""
        try:
            self._reader.feed(data)
        except NotHttp as exc:
            self._refuse(f"its answer is not HTTP: {exc}")
        status = self._reader.status
        if self._reader.complete and not 200 <= status < 300:
            self._refuse(f"it answered {status}")
        elif self._reader.complete and not self._answered.done():
            self._answered.set_result(None)

    def connection_lost(self, exc: Exception | None) -> None:
        """End the wait for an answer."""
        self._reader.end()
        self._refuse(str(exc or "it closed the connection"))

    def _refuse(self, reason: str) -> None:
        if not self._answered.done():
            self._answered.set_exception(TunnelRefused(reason))
            self._answered.exception()  # nobody may be waiting
