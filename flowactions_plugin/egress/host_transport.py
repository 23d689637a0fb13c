"""`Host.transport`: a transport of the host, with the interface of httpx."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import httpx

from flowactions_hookspecs.tasks import is_being_cancelled
from flowactions_plugin.clock import lease_clock
from flowactions_plugin.egress.attempt import RESPONSE_KEPT_BYTES, Progress, Request, Response
from flowactions_plugin.egress.destination import Destination
from flowactions_plugin.egress.resources import causes
from flowactions_plugin.egress.transport_errors import PROXY_UNREACHABLE, broke, cannot_connect
from flowactions_plugin.egress.tunnel import ProxyFailed, Tunnels
from flowactions_plugin.errors import HostFailed, SendFailed


class HostTransport:
    """A host's transport as the sender uses it; the host closes it.

    Its results are checked here: with an object that is no transport, or does not behave as one, deliveries wait.

    Args:
        transport: follows no redirects and decompresses nothing, as httpx's own.
    """

    def __init__(self, transport: object) -> None:
        self._transport = transport
        self._tunnels = Tunnels()
        self._name = f"Host.transport ({type(transport).__name__})"

    async def send(self, request: Request) -> Response:
        """Send a request.

        Raises:
            HostFailed: the object is no transport, or does not behave as one; the message names it.
            ProxyFailed: the transport says that its own proxy let nothing through.
            SendFailed: there is no response; the message says why.
        """
        if not isinstance(self._transport, httpx.AsyncBaseTransport):
            raise HostFailed(f"{self._name} is not an httpx.AsyncBaseTransport")
        sent = _translated(request)
        try:
            response = self._checked(await self._transport.handle_async_request(sent))
            self._tunnels.opened(request.destination.key, lease_clock())
            request.progress.response = Response(response.status_code, response.headers, b"")
            request.progress.enter("reading the body")
            try:
                body_prefix = await self._body_prefix(response)
            finally:
                await response.aclose()
        except httpx.ProxyError as exc:
            if not str(exc).startswith(("401", "407")):
                request.progress.blamed = self._tunnels.refused(request.destination.key, lease_clock())
            raise ProxyFailed(PROXY_UNREACHABLE, f"{self._name}: {exc}") from exc
        except (httpx.RequestError, OSError) as exc:
            # Failures of the network and the receiver, whether the transport has translated them or not.
            raise SendFailed(_error_message(request.destination, exc)) from exc
        except HostFailed:
            raise
        except asyncio.CancelledError as exc:
            if is_being_cancelled():
                raise
            raise HostFailed(f"{self._name} was cancelled from within") from exc
        except Exception as exc:
            raise HostFailed(f"{self._name} raised {type(exc).__name__}, not an httpx.TransportError") from exc
        return Response(response.status_code, response.headers, body_prefix)

    def _checked(self, response: Any) -> httpx.Response:
        if not isinstance(response, httpx.Response):
            raise HostFailed(f"{self._name} answered {type(response).__name__}, not an httpx.Response")
        status: object = response.status_code
        if type(status) is not int or not 100 <= status <= 999:
            raise HostFailed(f"{self._name} answered with a status that is none")
        if not isinstance(response.stream, httpx.AsyncByteStream):
            raise HostFailed(f"{self._name} answered with a body that cannot be read asynchronously")
        return response

    async def _body_prefix(self, response: httpx.Response) -> bytes:
        assert isinstance(response.stream, httpx.AsyncByteStream)  # noqa: S101  checked before
        prefix = bytearray()
        async for chunk in response.stream:
            if not isinstance(chunk, bytes):
                raise HostFailed(f"{self._name} answered with a body that is not bytes")
            prefix += chunk
            if len(prefix) >= RESPONSE_KEPT_BYTES:
                break
        return bytes(prefix[:RESPONSE_KEPT_BYTES])

    async def aclose(self) -> None:
        """Do nothing: the host closes its transport."""


class _Body(httpx.ByteStream):
    """A request's body that reports when it has been read to its end."""

    def __init__(self, content: bytes, progress: Progress) -> None:
        super().__init__(content)
        self._progress = progress

    async def __aiter__(self) -> AsyncIterator[bytes]:
        self._progress.enter("sending the request")
        async for part in super().__aiter__():
            yield part
        self._progress.enter("waiting for the answer")


def _translated(request: Request) -> httpx.Request:
    destination = request.destination
    target = destination.target.encode("ascii")
    # Until the transport reads the body, its progress is unknown here.
    request.progress.enter("sending the request or waiting for the answer")
    translated = httpx.Request(
        request.method,
        # Built from the parts that were checked, not parsed again by another parser's rules.
        httpx.URL(scheme=destination.scheme, host=destination.host, port=destination.port, raw_path=target),
        headers=[(name.encode(), value.encode()) for name, value in request.headers],
        content=request.body or b"",
        extensions={"target": target},
    )
    translated.stream = _Body(request.body or b"", request.progress)
    return translated


def _error_message(destination: Destination, error: httpx.RequestError | OSError) -> str:
    """Return what a failure of the network means, whichever library has raised it."""
    where = f"{destination.host}:{destination.port}"
    cause = next((each for each in causes(error) if isinstance(each, OSError)), OSError())
    if isinstance(error, httpx.TimeoutException):
        cause = TimeoutError()
    connects = isinstance(error, httpx.ConnectError | httpx.ConnectTimeout)
    return cannot_connect(where, cause) if connects else broke(where, cause)
