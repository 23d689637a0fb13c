"""`Host.transport`: deliveries leave by a transport of the host's, beneath httpx's interface."""

from __future__ import annotations

import httpx

from flowactions_plugin.errors import SendFailed
from flowactions_plugin.outbox.delivery import RESPONSE_KEPT_BYTES
from flowactions_plugin.outbox.sender import Answer, Request


class HostTransport:
    """A host's transport as the sender wants it; its life stays the host's.

    Args:
        transport: follows no redirects and decompresses nothing, as httpx's own.
    """

    def __init__(self, transport: httpx.AsyncBaseTransport) -> None:
        self._transport = transport

    async def post(self, request: Request) -> Answer:
        """Send a request.

        Raises:
            SendFailed: there is no answer; the message says why.
        """
        try:
            response = await self._transport.handle_async_request(_translated(request))
            try:
                start = await _first_bytes(response)
            finally:
                await response.aclose()
        except httpx.TransportError as exc:
            raise SendFailed(str(exc) or type(exc).__name__) from exc
        return Answer(response.status_code, response.headers, start)

    async def aclose(self) -> None:
        """Leave it to the host."""


def _translated(request: Request) -> httpx.Request:
    destination = request.destination
    target = destination.target.encode("ascii")
    return httpx.Request(
        request.method,
        # Made of what was checked, not read a second time by another parser's rules.
        httpx.URL(scheme=destination.scheme, host=destination.host, port=destination.port, raw_path=target),
        headers=[(name.encode(), value.encode()) for name, value in request.headers],
        content=request.body or b"",
        extensions={"target": target},
    )


async def _first_bytes(response: httpx.Response) -> bytes:
    assert isinstance(response.stream, httpx.AsyncByteStream)  # noqa: S101  an async transport gives no other
    start = bytearray()
    async for chunk in response.stream:
        start += chunk
        if len(start) >= RESPONSE_KEPT_BYTES:
            break
    return bytes(start[:RESPONSE_KEPT_BYTES])
