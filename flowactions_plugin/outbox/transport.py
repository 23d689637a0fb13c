"""How deliveries leave: aiohttp beneath httpx's transport interface, with the egress guard where it dials.

It keeps no cookies, follows no redirects, decompresses nothing, reads no environment, and sends path and query
byte for byte. What it raises is httpx's, in words for people.
"""

from __future__ import annotations

import io
import socket
from collections.abc import AsyncIterator, Callable, Sequence
from contextvars import ContextVar
from typing import Any, Final
from weakref import WeakSet

import aiohttp
import httpx
from aiohttp.abc import AbstractResolver, ResolveResult
from yarl import URL

from flowactions_plugin.outbox.egress import EgressGuard

MAX_HEADER_BYTES: Final = 8190
READ_BUFFER_BYTES: Final = 4096
LARGE_BODY_BYTES: Final = 1 << 20

_NO_TIMEOUT: Final = aiohttp.ClientTimeout(total=None, connect=None, sock_connect=None, sock_read=None)
"""The whole attempt has one deadline, outside."""


class _Attempt:
    """What the connector tells of the connection that a request got, and what the request asks of it."""

    reused = False
    fresh = False


_attempt: ContextVar[_Attempt] = ContextVar("_attempt")


class OutboundTransport(httpx.AsyncBaseTransport):
    """The transport of deliveries. Make it in the event loop that it is used in.

    Args:
        guard: the rules on every address that is dialled.
        limit: connections open at once.
        proxy: a forward proxy to send everything through. It resolves the names, so the guard sees only what
            `EgressGuard.check` finds beforehand.
    """

    def __init__(self, guard: EgressGuard, limit: int, proxy: str | None = None) -> None:
        options: dict[str, Any] = {}
        if proxy is None:
            options = {"resolver": _GuardedResolver(guard), "socket_factory": _guarded_socket(guard)}
        self._proxy = proxy
        self._session = aiohttp.ClientSession(
            connector=_Connector(limit=limit, use_dns_cache=False, ttl_dns_cache=None, **options),
            cookie_jar=aiohttp.DummyCookieJar(),
            trust_env=False,
            auto_decompress=False,
            skip_auto_headers=("accept", "accept-encoding", "content-type", "user-agent"),
            timeout=_NO_TIMEOUT,
            max_line_size=MAX_HEADER_BYTES,
            max_field_size=MAX_HEADER_BYTES,
            read_bufsize=READ_BUFFER_BYTES,
        )
        # One attempt is one request: what is sent again, and when, is decided here and not by the session.
        self._session._retry_connection = False  # noqa: SLF001

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """Send a request.

        A connection that the receiver closed while it was idle is replaced by a fresh one within the same attempt,
        as long as not one byte of an answer has come.

        Raises:
            EgressRefused: the guard forbids an address.
            httpx.TransportError: there is no answer; the message says why.
        """
        attempt = _Attempt()
        _attempt.set(attempt)
        try:
            try:
                response = await self._send(request)
            except (aiohttp.ServerDisconnectedError, aiohttp.ClientOSError) as exc:
                if not attempt.reused or _has_begun(exc):
                    raise
                attempt.fresh = True
                response = await self._send(request)
        except (aiohttp.ClientError, OSError) as exc:
            raise _translated(exc, request) from exc
        return httpx.Response(
            response.status,
            headers=list(response.raw_headers),
            stream=_Stream(response, request),
            request=request,
        )

    async def _send(self, request: httpx.Request) -> aiohttp.ClientResponse:
        url = request.url
        host = f"[{url.host}]" if ":" in url.host else url.host
        target = request.extensions.get("target", url.raw_path)
        return await self._session.request(
            request.method,
            # All of the target as the path: then nothing of it is taken apart and written anew.
            URL.build(scheme=url.scheme, host=host, port=url.port, path=target.decode("ascii"), encoded=True),
            headers=[(name.decode("ascii"), value.decode("utf-8")) for name, value in _own(request)],
            data=_body(request.content),
            allow_redirects=False,
            proxy=self._proxy,
        )

    async def aclose(self) -> None:
        """Close every connection."""
        await self._session.close()


class _Stream(httpx.AsyncByteStream):
    def __init__(self, response: aiohttp.ClientResponse, request: httpx.Request) -> None:
        self._response = response
        self._request = request

    async def __aiter__(self) -> AsyncIterator[bytes]:
        try:
            async for chunk in self._response.content.iter_any():
                yield chunk
        except (aiohttp.ClientError, OSError) as exc:
            raise _translated(exc, self._request) from exc

    async def aclose(self) -> None:
        # A connection that was read to the end is back in the pool by now; any other is closed.
        self._response.close()


class _Connector(aiohttp.TCPConnector):
    """Gives out no idle connection on which something has come unasked: it would be taken for the answer."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._known: WeakSet[Any] = WeakSet()

    async def connect(self, req: Any, traces: Any, timeout: Any) -> Any:  # noqa: ASYNC109  aiohttp's signature
        attempt = _attempt.get()
        while True:
            connection = await super().connect(req, traces, timeout)
            protocol = connection.protocol
            attempt.reused = protocol in self._known
            if protocol is not None and attempt.reused and (attempt.fresh or protocol.should_close):
                connection.close()
                continue
            self._known.add(protocol)
            return connection


class _GuardedResolver(AbstractResolver):
    """Refuses a name when any of its addresses is forbidden; literals do not pass here."""

    def __init__(self, guard: EgressGuard) -> None:
        self._guard = guard

    async def resolve(
        self,
        host: str,
        port: int = 0,
        family: socket.AddressFamily = socket.AF_INET,  # noqa: ARG002  all of them
    ) -> list[ResolveResult]:
        return [
            ResolveResult(
                hostname=host,
                host=address,
                port=port,
                family=socket.AF_INET6 if ":" in address else socket.AF_INET,
                proto=0,
                flags=socket.AI_NUMERICHOST,
            )
            for address in await self._guard.addresses(host, port)
        ]

    async def close(self) -> None:
        return None


def _guarded_socket(guard: EgressGuard) -> Any:
    def make(address: Any) -> socket.socket:
        family, kind, protocol, _, sockaddr = address
        guard.check_address(sockaddr[0])
        return socket.socket(family=family, type=kind, proto=protocol)

    return make


def _body(content: bytes) -> bytes | io.BytesIO | None:
    """Give a body as aiohttp wants it: a large one is written piece by piece, so that others get their turn."""
    return io.BytesIO(content) if len(content) > LARGE_BODY_BYTES else content or None


def _own(request: httpx.Request) -> list[tuple[bytes, bytes]]:
    """Give the headers without those that aiohttp writes by itself."""
    return [
        (name, value) for name, value in request.headers.raw if name.lower() not in {b"host", b"content-length"}
    ]


def _has_begun(exc: Exception) -> bool:
    return isinstance(exc, aiohttp.ServerDisconnectedError) and not isinstance(exc.message, str)


def _translated(exc: Exception, request: httpx.Request) -> httpx.TransportError:
    host = request.url.host
    where = f"{host}:{request.url.port or {'http': 80, 'https': 443}[request.url.scheme]}"
    for kinds, error, words in _WORDS:
        if isinstance(exc, kinds):
            return error(words(exc, host, where), request=request)
    return httpx.ReadError(f"the connection to {where} broke: {exc}", request=request)


_WORDS: Final[Sequence[tuple[Any, type[httpx.TransportError], Callable[[Any, str, str], str]]]] = (
    (
        aiohttp.ClientConnectorDNSError,
        httpx.ConnectError,
        lambda exc, host, _: f"{host} has no address now: {exc.os_error}",
    ),
    (
        aiohttp.ClientConnectorCertificateError,
        httpx.ConnectError,
        lambda exc, _, where: f"the TLS certificate of {where} is not accepted: {exc.certificate_error}",
    ),
    (
        (aiohttp.ClientProxyConnectionError, aiohttp.ClientHttpProxyError),
        httpx.ProxyError,
        lambda *_: "the egress proxy did not connect",
    ),
    (
        aiohttp.ClientConnectorError,
        httpx.ConnectError,
        lambda exc, _, where: f"cannot connect to {where}: {exc.os_error}",
    ),
    (
        aiohttp.ServerDisconnectedError,
        httpx.RemoteProtocolError,
        lambda _, __, where: f"{where} closed the connection without an answer",
    ),
    (
        aiohttp.ClientResponseError,
        httpx.RemoteProtocolError,
        lambda exc, _, where: (
            f"what {where} answered is not HTTP: {exc.message.partition(chr(10))[0].rstrip(':')}"
        ),
    ),
    (aiohttp.ClientPayloadError, httpx.ReadError, lambda _, __, where: f"{where} broke its answer off"),
)
"""aiohttp's errors, the special ones first, as httpx's, in words for people."""
