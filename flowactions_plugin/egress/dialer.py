"""Opens connections: looks a name up, checks and dials its addresses, and makes TLS on what is connected."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import cached_property
from itertools import zip_longest
from typing import NamedTuple

from flowactions_plugin.egress.attempt import Progress
from flowactions_plugin.egress.guard import EgressGuard, is_address
from flowactions_plugin.egress.resolver import Resolver
from flowactions_plugin.egress.resources import SHORTAGES
from flowactions_plugin.egress.transport_errors import no_address
from flowactions_plugin.errors import SendFailed


class Unresolved(SendFailed):
    """A name has no address; the cause says why."""


class Endpoint(NamedTuple):
    """What is dialled: a destination, or the proxy."""

    host: str
    port: int
    tls: bool

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"


class Dialer:
    """Opens connections.

    Args:
        guard: the rules on every address that is dialled; ``None`` for the egress proxy, which may have any.
        authorities: certificates (PEM) to trust beside the system's.
    """

    def __init__(self, guard: EgressGuard | None, authorities: str | None = None) -> None:
        self._guard = guard
        self._resolve = Resolver(threads=1) if guard is None else guard.addresses
        self._authorities = authorities

    @cached_property
    def tls(self) -> ssl.SSLContext:
        """How certificates and names are verified. Made when it is first needed: it costs time and memory.

        The flags are the same on all versions of Python. A certificate of the file is trusted although it is not a root. A chain
        need not follow RFC 5280 to the letter, as many private ones do not, and as browsers and curl accept it.
        """
        context = ssl.create_default_context()
        context.verify_flags = (context.verify_flags | ssl.VERIFY_X509_PARTIAL_CHAIN) & ~ssl.VERIFY_X509_STRICT
        if self._authorities is not None:
            context.load_verify_locations(cadata=self._authorities)
        context.set_alpn_protocols(["http/1.1"])
        return context

    async def dial(
        self,
        endpoint: Endpoint,
        protocol: Callable[[], asyncio.BaseProtocol],
        progress: Progress,
    ) -> socket.socket:
        """Open a connection; return its socket. ``protocol`` makes what reads and writes on it.

        Raises:
            EgressRefused: the guard forbids an address.
            Unresolved: the name has no address.
            OSError: none of the addresses can be connected to, or TLS failed.
        """
        progress.enter("resolving the name")
        addresses = await self._addresses(endpoint)
        # Certificates have a name without the dot of the root.
        tls, name = (self.tls, endpoint.host.removesuffix(".")) if endpoint.tls else (None, None)
        progress.enter("connecting")
        connection = await self._first_of(interleaved(addresses), endpoint)
        if endpoint.tls:
            progress.enter("making the TLS handshake")
        loop = asyncio.get_running_loop()
        try:
            await loop.create_connection(protocol, sock=connection, ssl=tls, server_hostname=name)
        except BaseException:
            # The event loop closes it, in TLS perhaps later. Until then, no other socket may get its descriptor.
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
            raise
        return connection

    async def secured(
        self, transport: asyncio.Transport, protocol: asyncio.BaseProtocol, host: str
    ) -> asyncio.BaseTransport:
        """Make TLS with a host on what is connected; return the transport that encrypts. Raises ``OSError``."""
        loop, name = asyncio.get_running_loop(), host.removesuffix(".")
        try:
            secured = await loop.start_tls(transport, protocol, self.tls, server_hostname=name)
        except BaseException:
            transport.abort()
            raise
        if secured is None:
            raise ConnectionAbortedError("the connection was closed during the TLS handshake")
        return secured

    async def _addresses(self, endpoint: Endpoint) -> Sequence[str]:
        """Return the addresses of an endpoint; where there is a guard, it has checked those that were looked up."""
        if is_address(endpoint.host):
            return [endpoint.host]
        try:
            return await self._resolve(endpoint.host, endpoint.port)
        except OSError as exc:
            raise Unresolved(no_address(endpoint.host, exc)) from exc

    async def _first_of(self, addresses: Sequence[str], endpoint: Endpoint) -> socket.socket:
        """Dial addresses, the next one when one has failed or takes long; return the first that is connected."""
        if len(addresses) == 1:
            return await self._connected(addresses[0], endpoint)
        waiting = list(reversed(addresses))
        dialling: set[asyncio.Task[socket.socket]] = set()
        errors: list[OSError] = []
        try:
            while waiting or dialling:
                if waiting:
                    dialling.add(asyncio.create_task(self._connected(waiting.pop(), endpoint)))
                # The next address is dialled after a quarter of a second, too (RFC 8305 §5).
                seconds = 0.25 if waiting else None
                done, _ = await asyncio.wait(dialling, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    dialling.discard(task)
                    error = task.exception()
                    if error is None:
                        return task.result()
                    if not isinstance(error, OSError):
                        raise error
                    errors.append(error)
        finally:
            for task in dialling:
                task.add_done_callback(_close_result)
                task.cancel()
        lacking = [each for each in errors if each.errno in SHORTAGES]
        raise (lacking or errors)[0]

    async def _connected(self, address: str, endpoint: Endpoint) -> socket.socket:
        """Check one address of an endpoint, and connect to it."""
        if self._guard is not None:
            self._guard.check_address(address, endpoint.host)
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        connection = socket.socket(family, socket.SOCK_STREAM)
        try:
            connection.setblocking(False)
            await asyncio.get_running_loop().sock_connect(connection, (address, endpoint.port))
        except BaseException:
            connection.close()
            raise
        return connection


def _close_result(task: asyncio.Task[socket.socket]) -> None:
    """Close what was connected although another address was faster."""
    if not task.cancelled() and task.exception() is None:
        task.result().close()


def interleaved(addresses: Sequence[str]) -> list[str]:
    """Return addresses so that the families take turns, the first one's first (RFC 8305 §4)."""
    first = [each for each in addresses if (":" in each) == (":" in addresses[0])]
    second = [each for each in addresses if each not in first]
    return [each for pair in zip_longest(first, second) for each in pair if each is not None]
