"""Connections to a destination through a proxy: CONNECT, then TLS with the destination where its scheme is https.

Also whose failure it is when there is none (decision 51).
"""

from __future__ import annotations

import asyncio
import math
from collections import OrderedDict
from collections.abc import Mapping
from typing import Final, cast

from flowactions_plugin.egress.response_reader import NotHttp, ResponseReader
from flowactions_plugin.egress.transport_errors import NOT_AUTHORIZED, PROXY_FAILED
from flowactions_plugin.errors import SendFailed

PROXY_AUTHENTICATION_REQUIRED: Final = 407
"""With ``Proxy-Authenticate`` only a proxy answers so (RFC 9110 §15.5.8). Without, it refuses the destination."""

REFUSALS: Final = frozenset({403, PROXY_AUTHENTICATION_REQUIRED})
"""What a proxy answers whose rules forbid a destination."""

PROOF_SECONDS: Final = 60.0
"""A tunnel to another destination within this time shows that a proxy works."""

BLAMED_SECONDS: Final = 300.0
"""From so many seconds of refusals on, they are the destination's, whatever others get."""

FORGOTTEN_SECONDS: Final = 900.0
DESTINATIONS: Final = 4096
"""Of how many destinations refusals are known, for so many seconds after the last one."""


class ProxyFailed(SendFailed):
    """The egress proxy let nothing through, so the destination was not reached. Tenants read the message.

    Attributes:
        reason: what it did.
        detail: which proxy, and what happened, for the log.
        of_tunnel: whether it was reached, and only a tunnel to this destination failed.
        status: of its answer, if there was one.
    """

    def __init__(self, reason: str, detail: str, *, of_tunnel: bool = False, status: int | None = None) -> None:
        super().__init__(f"{PROXY_FAILED}: {reason}")
        self.reason = reason
        self.detail = detail
        self.of_tunnel = of_tunnel
        self.status = status


def asks_for_credentials(status: int, headers: Mapping[str, str]) -> bool:
    """Return whether an answer is a proxy's that wants credentials, or others."""
    return status == PROXY_AUTHENTICATION_REQUIRED and "proxy-authenticate" in headers


def not_authorized(proxy: str, status: int = PROXY_AUTHENTICATION_REQUIRED) -> ProxyFailed:
    """Return the failure of a proxy that asks for credentials, or for others.

    Args:
        proxy: its host and port.
        status: of its answer.
    """
    return ProxyFailed(f"{NOT_AUTHORIZED} ({status})", f"{proxy}: it answered {status}", status=status)


class Tunnels:
    """Knows whose failure it is when a proxy gives a destination no tunnel.

    A proxy that has lost its network refuses everybody. So it is the destination's once another one got a tunnel after the
    first refusal, within the last minute; or when the destination was refused for five minutes.
    """

    def __init__(self) -> None:
        self._opened = -math.inf
        self._refused: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def opened(self, key: str, now: float) -> None:
        """Record a tunnel to a destination."""
        self._refused.pop(key, None)
        self._opened = now

    def refused(self, key: str, now: float) -> bool:
        """Record that a destination got no tunnel; return whether that is its own failure."""
        first, last = self._refused.pop(key, (now, now))
        if now - last > FORGOTTEN_SECONDS:
            first = now
        self._refused[key] = first, now
        if len(self._refused) > DESTINATIONS:
            self._refused.popitem(last=False)
        # Its own last tunnel was before its first refusal, so a later one is another's.
        return self._opened > max(first, now - PROOF_SECONDS) or now - first >= BLAMED_SECONDS


class TunnelRequest(asyncio.Protocol):
    """Asks a proxy for a tunnel; afterwards another protocol takes the transport over.

    Args:
        proxy: its host and port, for the log.
    """

    def __init__(self, proxy: str) -> None:
        self._proxy = proxy
        self._reader = ResponseReader(head_only=True)
        self._answered: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._transport: asyncio.Transport | None = None

    async def ask(self, head: bytes) -> asyncio.Transport:
        """Send the request; return the transport that leads to the destination now.

        Raises:
            ProxyFailed: the proxy answered otherwise, or not at all.
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
        """Set the transport."""
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        """Read the proxy's answer."""
        reader = self._reader
        if self._answered.done():
            return  # nobody has asked for what follows
        try:
            reader.feed(data)
        except NotHttp as exc:
            self._fail("its answer is not HTTP", str(exc))
            return
        status = reader.status
        headers: Mapping[str, str] = reader.headers or {}
        why = f": {headers['x-smokescreen-error'][:500]}" if "x-smokescreen-error" in headers else ""
        if not reader.complete:
            return
        if status == 401 or asks_for_credentials(status, headers):
            self._end(not_authorized(self._proxy, status))
        elif status in REFUSALS:
            self._fail(f"it refuses this destination ({status})", f"it answered {status}{why}", status)
        elif not 200 <= status < 300:
            self._fail(f"it opened no tunnel ({status})", f"it answered {status}{why}", status)
        else:
            self._answered.set_result(None)

    def connection_lost(self, exc: Exception | None) -> None:
        """End the wait for an answer."""
        self._reader.end()
        self._fail("it closed the connection", str(exc or "it closed the connection"))

    def _fail(self, reason: str, detail: str, status: int | None = None) -> None:
        self._end(ProxyFailed(reason, f"{self._proxy}: {detail}", of_tunnel=True, status=status))

    def _end(self, failure: ProxyFailed) -> None:
        if not self._answered.done():
            self._answered.set_exception(failure)
            self._answered.exception()  # nobody may be waiting
