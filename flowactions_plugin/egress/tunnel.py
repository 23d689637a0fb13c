"""Tunnels through a proxy: it is asked with CONNECT, and whose failure it is when there is none (decision 51)."""

from __future__ import annotations

import asyncio
import math
from collections import OrderedDict
from collections.abc import Mapping
from typing import Final

from flowactions_plugin.egress.attempt import Progress
from flowactions_plugin.egress.connection import Connection
from flowactions_plugin.egress.response_reader import NotHttp
from flowactions_plugin.egress.transport_errors import PROXY_FAILED
from flowactions_plugin.errors import SendFailed

REFUSALS: Final = frozenset({403, 407})
"""What a proxy answers whose rules forbid a destination."""


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
    """Return whether an answer is a proxy's that wants credentials, or others (RFC 9110 §15.5.8).

    A 407 without ``Proxy-Authenticate`` refuses the destination.
    """
    return status == 407 and "proxy-authenticate" in headers


def not_authorized(proxy: str, status: int = 407) -> ProxyFailed:
    """Return the failure of a proxy, by its host and port, that asks for credentials, or for others."""
    reason = f"it does not accept our user name and password ({status})"
    return ProxyFailed(reason, f"{proxy}: it answered {status}", status=status)


class Tunnels:
    """Knows whose failure it is when a proxy gives a destination no tunnel.

    A proxy that has lost its network refuses everybody. So it is the destination's once another one got a tunnel after the
    first refusal, within the last minute; or when the destination was refused for five minutes. Refusals are known of 4,096
    destinations, for fifteen minutes after the last one.
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
        if now - last > 900:
            first = now
        self._refused[key] = first, now
        if len(self._refused) > 4096:
            self._refused.popitem(last=False)
        # Its own last tunnel was before its first refusal, so a later one is another's.
        return self._opened > max(first, now - 60) or now - first >= 300


class Tunnel(Connection):
    """A connection to a proxy, which leads to a destination once the proxy has said so."""

    async def ask(self, head: bytes) -> asyncio.Transport:
        """Send a request for a tunnel to the proxy; return the transport that leads to the destination now.

        Raises:
            ProxyFailed: the proxy answered otherwise, or not at all.
        """
        try:
            answer = await self.request(head, b"", Progress(), head_only=True)
        except SendFailed as exc:
            closed = "it closed the connection"
            reason = "its answer is not HTTP" if isinstance(exc.__cause__, NotHttp) else closed
            detail = f"{self._where}: {exc.__cause__ or closed}"
            raise ProxyFailed(reason, detail, of_tunnel=True) from exc
        status = answer.status_code
        if answer.flawed:
            self.close()
            raise ProxyFailed("its answer is not HTTP", f"{self._where}: it answered {status}", of_tunnel=True)
        if 200 <= status < 300 and self._transport is not None:
            return self._transport
        self.close()
        if status == 401 or asks_for_credentials(status, answer.headers):
            raise not_authorized(self._where, status)
        why = answer.headers.get("x-smokescreen-error", "")[:500]
        reason = "it refuses this destination" if status in REFUSALS else "it opened no tunnel"
        detail = f"{self._where}: it answered {status}{': ' if why else ''}{why}"
        raise ProxyFailed(f"{reason} ({status})", detail, of_tunnel=True, status=status)

    def _finish(self) -> None:
        """Hand the answer over; the transport is another connection's from now on."""
        self._settle(self._read())
