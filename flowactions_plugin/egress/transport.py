"""The plugin's own transport: aiohttp, with the egress guard where it dials.

It keeps no cookies, follows no redirects, decompresses nothing, reads no environment, and sends path and query
byte for byte.
"""

from __future__ import annotations

import base64
import io
import socket
import ssl
from collections.abc import Sequence
from contextvars import ContextVar
from functools import lru_cache
from typing import Any, Final, Protocol
from weakref import WeakSet

import aiohttp
from aiohttp.abc import AbstractResolver, ResolveResult
from yarl import URL

from flowactions_plugin.egress.attempt import RESPONSE_KEPT_BYTES, Request, Response
from flowactions_plugin.egress.destination import Destination
from flowactions_plugin.egress.guard import EgressGuard
from flowactions_plugin.egress.resolver import Resolver
from flowactions_plugin.egress.resources import SHORTAGES
from flowactions_plugin.egress.transport_errors import error_message
from flowactions_plugin.errors import SendFailed
from flowactions_plugin.settings_urls import parse_url

MAX_HEADER_BYTES: Final = 8190
READ_BUFFER_BYTES: Final = 4096
LARGE_BODY_BYTES: Final = 1 << 20

_AIOHTTPS_OWN: Final = frozenset({"host", "content-length", "transfer-encoding"})
"""Headers that frame a message; a stored row cannot set them."""

_NO_TIMEOUT: Final = aiohttp.ClientTimeout(total=None, connect=None, sock_connect=None, sock_read=None)
"""The sender sets one deadline for the whole attempt."""


class _Attempt:
    """What the connector reports of a request's connection, and what the request demands of it."""

    reused = False
    fresh = False
    lack: OSError | None = None
    socket: socket.socket | None = None
    connection: Any = None

    def __init__(self, request: Request) -> None:
        self._request = request
        self.progress = request.progress
        self.progress.phase = "connecting"
        request.progress.refine = self.phase

    def phase(self) -> str:
        """Return exactly how far the request has got; the steps in between are not reported one by one."""
        if self.progress.response is not None:
            return "reading the body"
        if self.connection is not None:
            transport = self.connection.transport
            sending = transport is not None and transport.get_write_buffer_size() > 0
            return "sending the request" if sending else "waiting for the answer"
        if self._request.destination.scheme == "https" and _is_connected(self.socket):
            return "making the TLS handshake"
        return self.progress.phase


_attempt: ContextVar[_Attempt] = ContextVar("_attempt")


class OutboundTransport:
    """The transport of deliveries. It has to be created in the event loop that it is used in.

    Args:
        guard: the rules on every address that is dialled.
        limit: connections open at once.
        proxy: a forward proxy to send everything through. It resolves the names, so the guard sees only what
            `EgressGuard.resolve` finds beforehand.
        authorities: certificates (PEM) to trust beside the system's.
    """

    def __init__(
        self, guard: EgressGuard, limit: int, proxy: str | None = None, authorities: str | None = None
    ) -> None:
        options: dict[str, Any] = {"resolver": _GuardedResolver(_ProxyAddresses())}
        if proxy is None:
            options = {"resolver": _GuardedResolver(guard), "socket_factory": _guarded_socket(guard)}
        if authorities is not None:
            options["ssl"] = _trusting(authorities)
        self._proxy, self._proxy_authorization = _parsed_proxy(proxy)
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
        # One attempt is one request: `send` decides what is sent again, and not the session.
        self._session._retry_connection = False  # noqa: SLF001

    async def send(self, request: Request) -> Response:
        """Send a request.

        A connection that the receiver closed while it was idle is replaced by a fresh one within the same attempt,
        as long as no byte of a response has come.

        Raises:
            EgressRefused: the guard forbids an address.
            SendFailed: there is no response; the message says why.
        """
        attempt = _Attempt(request)
        _attempt.set(attempt)
        try:
            try:
                response = await self._send(request)
            except (aiohttp.ServerDisconnectedError, aiohttp.ClientOSError) as exc:
                if not attempt.reused or _has_begun(exc):
                    raise
                attempt.fresh, attempt.connection = True, None
                response = await self._send(request)
            request.progress.response = Response(response.status, response.headers, b"")
            try:
                body_prefix = await _body_prefix(response.content)
            finally:
                # A connection that was read to the end is back in the pool by now; any other is closed.
                response.close()
        except (aiohttp.ClientError, OSError) as exc:
            # aiohttp reports several failures to connect in one message, without their cause.
            raise SendFailed(error_message(exc, request.destination)) from (attempt.lack or exc)
        finally:
            # Otherwise the two refer to each other, and keep the body until the garbage collector runs.
            request.progress.refine = None
        return Response(response.status, response.headers, body_prefix)

    async def _send(self, request: Request) -> aiohttp.ClientResponse:
        headers = [pair for pair in request.headers if pair[0].lower() not in _AIOHTTPS_OWN]
        tunnel_headers = None
        if self._proxy_authorization is not None:
            if request.destination.scheme == "http":
                headers.append(("proxy-authorization", self._proxy_authorization))
            else:
                tunnel_headers = {"proxy-authorization": self._proxy_authorization}
        return await self._session.request(
            request.method,
            _dialled(request.destination),
            headers=headers,
            data=_body(request.body),
            allow_redirects=False,
            proxy=self._proxy,
            proxy_headers=tunnel_headers,
        )

    async def aclose(self) -> None:
        """Close every connection."""
        await self._session.close()


class _Connector(aiohttp.TCPConnector):
    """Reuses no idle connection on which bytes have arrived unasked: they would be taken for the response."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._known: WeakSet[Any] = WeakSet()

    async def connect(self, req: Any, traces: Any, timeout: Any) -> Any:  # noqa: ASYNC109  aiohttp's signature
        attempt = _attempt.get()
        while True:
            attempt.socket = None
            connection = await super().connect(req, traces, timeout)
            protocol = connection.protocol
            attempt.reused = protocol in self._known
            if protocol is not None and attempt.reused and (attempt.fresh or protocol.should_close):
                connection.close()
                continue
            self._known.add(protocol)
            attempt.connection = connection
            return connection


class _Addresses(Protocol):
    """Looks up the addresses of a name that may be dialled."""

    async def addresses(self, host: str, port: int) -> Sequence[str]:
        """Return them; raises ``OSError`` when there are none."""
        ...


class _ProxyAddresses:
    """Looks up the egress proxy, the only name that is dialled then; it may have any address."""

    def __init__(self) -> None:
        self._resolve = Resolver(threads=1)

    async def addresses(self, host: str, port: int) -> Sequence[str]:
        """Return the proxy's addresses."""
        return await self._resolve(host, port)


class _GuardedResolver(AbstractResolver):
    """Refuses a name when any of its addresses is forbidden; literal addresses are not resolved."""

    def __init__(self, guard: _Addresses) -> None:
        self._guard = guard

    async def resolve(
        self,
        host: str,
        port: int = 0,
        family: socket.AddressFamily = socket.AF_INET,  # noqa: ARG002  all of them
    ) -> list[ResolveResult]:
        progress = _attempt.get().progress
        progress.phase = "resolving the name"
        found = await self._guard.addresses(host, port)
        progress.phase = "connecting"
        return [
            ResolveResult(
                hostname=host,
                host=address,
                port=port,
                family=socket.AF_INET6 if ":" in address else socket.AF_INET,
                proto=0,
                flags=socket.AI_NUMERICHOST,
            )
            for address in found
        ]

    async def close(self) -> None:
        return None


def _guarded_socket(guard: EgressGuard) -> Any:
    def make(address: Any) -> socket.socket:
        family, kind, protocol, _, sockaddr = address
        guard.check_address(sockaddr[0])
        attempt = _attempt.get()
        try:
            attempt.socket = socket.socket(family=family, type=kind, proto=protocol)
        except OSError as exc:
            if exc.errno in SHORTAGES:
                attempt.lack = exc
            raise
        return attempt.socket

    return make


def _parsed_proxy(proxy: str | None) -> tuple[str | None, str | None]:
    """Return the URL of a proxy and the header that authorizes there.

    The URL for aiohttp is without user name and password, so that none of its errors can show them.
    """
    if proxy is None:
        return None, None
    url = parse_url(proxy, with_userinfo=True)
    if url.credentials is None:
        return url.origin, None
    user, password = url.credentials
    return url.origin, "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()


def _trusting(authorities: str) -> ssl.SSLContext:
    context = ssl.create_default_context()
    context.load_verify_locations(cadata=authorities)
    context.set_alpn_protocols(["http/1.1"])
    return context


@lru_cache(maxsize=1024)
def _dialled(destination: Destination) -> URL:
    host = f"[{destination.host}]" if ":" in destination.host else destination.host
    # The whole target is passed as the path, so that nothing of it is parsed and written again.
    return URL.build(
        scheme=destination.scheme, host=host, port=destination.port, path=destination.target, encoded=True
    )


def _body(content: bytes | None) -> bytes | io.BytesIO | None:
    """Return a body as aiohttp takes it: a large one is written in pieces, so that other requests proceed."""
    return io.BytesIO(content) if content and len(content) > LARGE_BODY_BYTES else content or None


async def _body_prefix(content: aiohttp.StreamReader) -> bytes:
    prefix = b""
    while len(prefix) < RESPONSE_KEPT_BYTES and (chunk := await content.readany()):
        prefix += chunk
    return prefix[:RESPONSE_KEPT_BYTES]


def _is_connected(connection: socket.socket | None) -> bool:
    try:
        return connection is not None and connection.getpeername() is not None
    except OSError:
        return False


def _has_begun(exc: Exception) -> bool:
    return isinstance(exc, aiohttp.ServerDisconnectedError) and not isinstance(exc.message, str)
