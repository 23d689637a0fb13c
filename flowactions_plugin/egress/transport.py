"""The plugin's own transport: HTTP/1.1 over connections that the egress guard lets be dialled.

It keeps no cookies, follows no redirects, decompresses nothing, reads no environment, and sends path and query
byte for byte.
"""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Callable, Sequence

from flowactions_plugin.clock import lease_clock
from flowactions_plugin.egress.attempt import CLOSED_KEPT, LOST_KEPT, SENT_AGAIN, Progress, Request, Response
from flowactions_plugin.egress.connection import ClosedKept, Connection
from flowactions_plugin.egress.destination import Destination
from flowactions_plugin.egress.dialer import Dialer, Endpoint, Unresolved
from flowactions_plugin.egress.guard import EgressGuard
from flowactions_plugin.egress.pool import Pool
from flowactions_plugin.egress.request_head import connect_head, head_of
from flowactions_plugin.egress.resources import shortage
from flowactions_plugin.egress.transport_errors import PROXY_UNREACHABLE, cannot_connect
from flowactions_plugin.egress.tunnel import ProxyFailed, Tunnel, Tunnels
from flowactions_plugin.errors import SendFailed
from flowactions_plugin.origins import DEFAULT_PORTS
from flowactions_plugin.settings.urls import parse_url


class OutboundTransport:
    """The transport of deliveries. It has to be created in the event loop that it is used in.

    Args:
        guard: the rules on every address that is dialled.
        limit: connections open at once.
        proxy: a forward proxy to send everything through. It resolves the names, so the guard sees only what
            `EgressGuard.resolve` finds beforehand.
        authorities: certificates (PEM) to trust beside the system's.
        clock: seconds, for the age of connections.
        tunnels_all: whether http goes through a tunnel of the proxy, too, as https does.
    """

    def __init__(
        self,
        guard: EgressGuard,
        limit: int,
        proxy: str | None = None,
        authorities: str | None = None,
        clock: Callable[[], float] = lease_clock,
        *,
        tunnels_all: bool = False,
    ) -> None:
        self._proxy, self._authorization = _parsed_proxy(proxy)
        self._tunnels_all = tunnels_all
        self._dialer = Dialer(guard if self._proxy is None else None, authorities)
        self._pool = Pool(limit, clock)
        self._tunnels = Tunnels()
        self._clock = clock

    async def send(self, request: Request) -> Response:
        """Send a request.

        If a kept connection is closed by the other side or its path was lost, before any byte of an answer, the request is
        sent once more, on a fresh connection. So a receiver can get it twice in one attempt.

        Raises:
            EgressRefused: the guard forbids an address.
            ProxyFailed: the proxy let nothing through.
            SendFailed: there is no response; the message says why.
        """
        destination, progress = request.destination, request.progress
        forwarded = self._proxy is not None and not self._is_tunnelled(destination)
        progress.relayed = str(self._proxy) if forwarded else None
        head = head_of(request, absolute=forwarded, extra=self._authorization if forwarded else ())
        connection = self._pool.take(destination.key) or await self._open(destination, progress)
        body, head_only = request.body or b"", request.method == "HEAD"
        try:
            return await connection.request(head, body, progress, head_only=head_only)
        except ClosedKept as exc:
            self._pool.closed_early(destination.key, is_certain=exc.is_lost)
            progress.notes = (LOST_KEPT if exc.is_lost else CLOSED_KEPT,)
            connection = await self._open(destination, progress)
            progress.notes += (SENT_AGAIN,)
            return await connection.request(head, body, progress, head_only=head_only)

    async def aclose(self) -> None:
        """Close every connection."""
        self._pool.close()
        await asyncio.sleep(0)  # the event loop tells what was closed in its next round

    def _is_tunnelled(self, destination: Destination) -> bool:
        return self._tunnels_all or destination.scheme == "https"

    async def _open(self, destination: Destination, progress: Progress) -> Connection:
        """Wait for a place in the pool, and connect."""
        progress.enter("connecting")
        where = f"{destination.host}:{destination.port}"
        connection = Connection(destination.key, where, self._pool)
        await self._pool.reserve(connection)
        try:
            if self._proxy is None:
                endpoint = Endpoint(destination.host, destination.port, destination.scheme == "https")
                connection.attach(await self._dialer.dial(endpoint, lambda: connection, progress))
            else:
                await self._dial_proxy(self._proxy, connection, destination, progress)
        except BaseException as exc:
            self._pool.closed(connection)
            if shortage(exc) is not None:
                self._pool.close_unused()
            if isinstance(exc, OSError):
                raise SendFailed(cannot_connect(where, exc)) from exc
            raise
        connection.opened_at = self._clock()
        return connection

    async def _dial_proxy(
        self, proxy: Endpoint, connection: Connection, destination: Destination, progress: Progress
    ) -> None:
        """Connect to the proxy and, where it tunnels, through it to the destination."""
        progress.proxy = name = str(proxy)
        tunnel = Tunnel(destination.key, name, self._pool) if self._is_tunnelled(destination) else None
        try:
            connection.attach(await self._dialer.dial(proxy, lambda: tunnel or connection, progress))
        except Unresolved as exc:
            raise ProxyFailed("its host name has no address now", f"{name}: {exc.__cause__}") from exc
        except OSError as exc:
            raise ProxyFailed(PROXY_UNREACHABLE, f"{name}: {str(exc) or type(exc).__name__}") from exc
        if tunnel is not None:
            await self._tunnel(tunnel, connection, destination, progress)
        progress.proxy = None

    async def _tunnel(
        self, tunnel: Tunnel, connection: Connection, destination: Destination, progress: Progress
    ) -> None:
        """Have the proxy open a tunnel, and give its transport to the connection."""
        try:
            transport = await tunnel.ask(connect_head(destination, self._authorization))
        except BaseException as exc:
            tunnel.close()  # it may have just been opened
            if not isinstance(exc, ProxyFailed) or exc.of_tunnel:
                progress.blamed = self._tunnels.refused(destination.key, self._clock())
            raise
        self._tunnels.opened(destination.key, self._clock())
        progress.proxy = None
        if destination.scheme == "https":
            progress.enter("making the TLS handshake")
            connection.connection_made(await self._dialer.secured(transport, connection, destination.host))
        else:
            transport.set_protocol(connection)
            connection.connection_made(transport)


def _parsed_proxy(proxy: str | None) -> tuple[Endpoint | None, Sequence[tuple[str, str]]]:
    """Return where a proxy is, and the headers that authorize there."""
    if proxy is None:
        return None, ()
    url = parse_url(proxy, with_userinfo=True)
    tls = url.scheme == "https"
    endpoint = Endpoint(url.host.strip("[]"), url.port or DEFAULT_PORTS[url.scheme], tls)
    if url.credentials is None:
        return endpoint, ()
    said = base64.b64encode(":".join(url.credentials).encode()).decode()
    return endpoint, (("Proxy-Authorization", f"Basic {said}"),)
