"""`Host.transport`: deliveries leave by a transport of the host's, beneath httpx's interface."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import httpx

from flowactions_plugin.egress.attempt import RESPONSE_KEPT_BYTES, Progress, Request, Response
from flowactions_plugin.errors import HostFailed, SendFailed


class HostTransport:
    """A host's transport as the sender wants it; its life stays the host's.

    What it gives is checked here: a transport that is none, or does not answer as one, has the deliveries wait.

    Args:
        transport: follows no redirects and decompresses nothing, as httpx's own.
    """

    def __init__(self, transport: object) -> None:
        self._transport = transport
        self._name = f"Host.transport ({type(transport).__name__})"

    async def send(self, request: Request) -> Response:
        """Send a request.

        Raises:
            HostFailed: the transport is none, or does not do what one has to; the message names it.
            SendFailed: there is no answer; the message says why.
        """
        if not isinstance(self._transport, httpx.AsyncBaseTransport):
            raise HostFailed(f"{self._name} is not an httpx.AsyncBaseTransport")
        sent = _translated(request)
        try:
            response = self._checked(await self._transport.handle_async_request(sent))
            request.progress.response = Response(response.status_code, response.headers, b"")
            request.progress.phase = "reading the body"
            try:
                start = await self._first_bytes(response)
            finally:
                await response.aclose()
        except (httpx.RequestError, OSError) as exc:
            # The network's and the receiver's, whether the transport has translated it or not.
            raise SendFailed(str(exc) or type(exc).__name__) from exc
        except HostFailed:
            raise
        except asyncio.CancelledError as exc:
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise
            raise HostFailed(f"{self._name} was cancelled from within") from exc
        except Exception as exc:
            raise HostFailed(f"{self._name} raised {type(exc).__name__}, not an httpx.TransportError") from exc
        return Response(response.status_code, response.headers, start)

    def _checked(self, response: Any) -> httpx.Response:
        if not isinstance(response, httpx.Response):
            raise HostFailed(f"{self._name} answered {type(response).__name__}, not an httpx.Response")
        status: object = response.status_code
        if type(status) is not int or not 100 <= status <= 999:
            raise HostFailed(f"{self._name} answered with a status that is none")
        if not isinstance(response.stream, httpx.AsyncByteStream):
            raise HostFailed(f"{self._name} answered with a body that cannot be read asynchronously")
        return response

    async def _first_bytes(self, response: httpx.Response) -> bytes:
        assert isinstance(response.stream, httpx.AsyncByteStream)  # noqa: S101  checked before
        start = bytearray()
        async for chunk in response.stream:
            if not isinstance(chunk, bytes):
                raise HostFailed(f"{self._name} answered with a body that is not bytes")
            start += chunk
            if len(start) >= RESPONSE_KEPT_BYTES:
                break
        return bytes(start[:RESPONSE_KEPT_BYTES])

    async def aclose(self) -> None:
        """Leave it to the host."""


class _Body(httpx.ByteStream):
    """A request's body that tells when it has been read to its end."""

    def __init__(self, content: bytes, progress: Progress) -> None:
        super().__init__(content)
        self._progress = progress

    async def __aiter__(self) -> AsyncIterator[bytes]:
        self._progress.phase = "sending the request"
        async for part in super().__aiter__():
            yield part
        self._progress.phase = "waiting for the answer"


def _translated(request: Request) -> httpx.Request:
    destination = request.destination
    target = destination.target.encode("ascii")
    # Until it reads the body, nobody but the transport knows how far it is.
    request.progress.phase = "sending the request or waiting for the answer"
    translated = httpx.Request(
        request.method,
        # Made of what was checked, not read a second time by another parser's rules.
        httpx.URL(scheme=destination.scheme, host=destination.host, port=destination.port, raw_path=target),
        headers=[(name.encode(), value.encode()) for name, value in request.headers],
        content=request.body or b"",
        extensions={"target": target},
    )
    translated.stream = _Body(request.body or b"", request.progress)
    return translated
