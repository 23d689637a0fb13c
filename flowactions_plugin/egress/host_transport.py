"""`Host.transport`: a transport of the host, of httpx or of its successor httpx2, by the interface that both have.

Neither library is imported here: whose transport it is has been imported by the host.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from typing import Any

from flowactions_hookspecs.tasks import is_being_cancelled
from flowactions_plugin.clock import lease_clock
from flowactions_plugin.egress.attempt import RESPONSE_KEPT_BYTES, Progress, Request, Response
from flowactions_plugin.egress.resources import causes
from flowactions_plugin.egress.transport_errors import PROXY_UNREACHABLE, broke, cannot_connect
from flowactions_plugin.egress.tunnel import ProxyFailed, Tunnels
from flowactions_plugin.errors import HostFailed, SendFailed


class HostTransport:
    """A host's transport as the sender uses it; the host closes it.

    Its results are checked here: with an object that is no transport, or does not behave as one, deliveries wait.

    Args:
        transport: an ``AsyncBaseTransport`` that follows no redirects and decompresses nothing, as the libraries' own.
    """

    def __init__(self, transport: object) -> None:
        self._transport: Any = transport
        self._name = f"Host.transport ({type(transport).__name__})"
        self._tunnels = Tunnels()
        imported = [sys.modules[name] for name in ("httpx", "httpx2") if name in sys.modules]
        self._library: Any = next((x for x in imported if isinstance(transport, x.AsyncBaseTransport)), None)
        self._body: Any = None if self._library is None else _body_of(self._library)

    async def send(self, request: Request) -> Response:
        """Send a request.

        Raises:
            HostFailed: the object is no transport, or does not behave as one; the message names it.
            ProxyFailed: the transport says that its own proxy let nothing through.
            SendFailed: there is no response; the message says why.
        """
        httpx, progress, key = self._library, request.progress, request.destination.key
        if httpx is None:
            raise HostFailed(f"{self._name} is not an httpx.AsyncBaseTransport, nor one of httpx2")
        translated = self._translated(request)
        try:
            response = self._checked(await self._transport.handle_async_request(translated))
            self._tunnels.opened(key, lease_clock())
            progress.response = Response(response.status_code, response.headers, b"", flawed=True)
            progress.enter("reading the body")
            try:
                body_prefix = await self._body_prefix(response)
            finally:
                await response.aclose()
        except httpx.ProxyError as exc:
            if not str(exc).startswith(("401", "407")):
                progress.blamed = self._tunnels.refused(key, lease_clock())
            raise ProxyFailed(PROXY_UNREACHABLE, f"{self._name}: {exc}") from exc
        except (httpx.RequestError, OSError) as exc:
            # Failures of the network and the receiver, whether the transport has translated them or not.
            where = f"{request.destination.host}:{request.destination.port}"
            cause = next((each for each in causes(exc) if isinstance(each, OSError)), OSError())
            if isinstance(exc, httpx.TimeoutException):
                cause = TimeoutError()
            connects = isinstance(exc, httpx.ConnectError | httpx.ConnectTimeout)
            raise SendFailed((cannot_connect if connects else broke)(where, cause)) from exc
        except HostFailed:
            raise
        except asyncio.CancelledError as exc:
            if is_being_cancelled():
                raise
            raise HostFailed(f"{self._name} was cancelled from within") from exc
        except Exception as exc:
            said = f"{self._name} raised {type(exc).__name__}, not an {httpx.__name__}.TransportError"
            raise HostFailed(said) from exc
        return Response(response.status_code, response.headers, body_prefix)

    async def aclose(self) -> None:
        """Do nothing: the host closes its transport."""

    def _translated(self, request: Request) -> Any:
        """Return a request as the library has it, from the parts that were checked: nothing is parsed once more."""
        destination, body = request.destination, request.body or b""
        target = destination.target.encode("ascii")
        # Until the transport reads the body, its progress is unknown here.
        request.progress.enter("sending the request or waiting for the answer")
        translated = self._library.Request(
            request.method,
            self._library.URL(
                scheme=destination.scheme, host=destination.host, port=destination.port, raw_path=target
            ),
            headers=[(name.encode(), value.encode()) for name, value in request.headers],
            content=body,
            extensions={"target": target},
        )
        translated.stream = self._body(body, request.progress)
        return translated

    def _checked(self, response: Any) -> Any:
        """Return what the transport answered, if it is a response whose body can be read asynchronously."""
        httpx = self._library
        if (
            isinstance(response, httpx.Response)
            and isinstance(response.stream, httpx.AsyncByteStream)
            and type(response.status_code) is int
            and 100 <= response.status_code <= 999
        ):
            return response
        answered = type(response).__name__
        raise HostFailed(
            f"{self._name} answered {answered}, not an {httpx.__name__}.Response with a status and a body that can be read "
            "asynchronously"
        )

    async def _body_prefix(self, response: Any) -> bytes:
        """Read the part of a body that is kept."""
        prefix = b""
        async for chunk in response.stream:
            prefix += chunk[:RESPONSE_KEPT_BYTES]
            if len(prefix) >= RESPONSE_KEPT_BYTES:
                break
        return prefix[:RESPONSE_KEPT_BYTES]


def _body_of(httpx: Any) -> Any:
    """Return the class of a request's body: as the library's own, and it reports when it has been read to its end."""

    class Body(httpx.ByteStream):  # type: ignore[misc]
        def __init__(self, content: bytes, progress: Progress) -> None:
            super().__init__(content)
            self._progress = progress

        async def __aiter__(self) -> AsyncIterator[bytes]:
            self._progress.enter("sending the request")
            async for part in super().__aiter__():
                yield part
            self._progress.enter("waiting for the answer")

    return Body
