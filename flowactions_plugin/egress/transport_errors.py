"""Messages for aiohttp's errors, for people who read why a delivery failed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

import aiohttp

from flowactions_plugin.egress.destination import Destination

_PROXY_FAILED: Final = "the egress proxy did not connect"
_PROXY_UNRESOLVED: Final = f"{_PROXY_FAILED}: its host name has no address now"
"""Without the name: tenants read the reasons of their deliveries, and the proxy is the operator's."""


def error_message(exc: Exception, destination: Destination) -> str:
    """Return what went wrong between here and a destination, for people."""
    where = f"{destination.host}:{destination.port}"
    if isinstance(exc, aiohttp.ClientConnectorError) and (exc.host, exc.port) != (
        destination.host,
        destination.port,
    ):
        return _PROXY_UNRESOLVED if isinstance(exc, aiohttp.ClientConnectorDNSError) else _PROXY_FAILED
    if isinstance(exc, aiohttp.ClientResponseError) and exc.request_info.method == "CONNECT":
        return _PROXY_FAILED
    for kinds, message in _MESSAGES:
        if isinstance(exc, kinds):
            return message(exc, destination.host, where)
    return f"the connection to {where} broke: {exc}"


_MESSAGES: Final[Sequence[tuple[Any, Callable[[Any, str, str], str]]]] = (
    (
        aiohttp.ClientConnectorDNSError,
        lambda exc, host, _: f"{host} has no address now: {exc.os_error}",
    ),
    (
        aiohttp.ClientConnectorCertificateError,
        lambda exc, _, where: f"the TLS certificate of {where} is not accepted: {exc.certificate_error}",
    ),
    (
        aiohttp.ClientProxyConnectionError,
        lambda *_: _PROXY_FAILED,
    ),
    (
        aiohttp.ClientConnectorError,
        lambda exc, _, where: f"cannot connect to {where}: {exc.os_error}",
    ),
    (
        aiohttp.ServerDisconnectedError,
        lambda _, __, where: f"{where} closed the connection without an answer",
    ),
    (
        aiohttp.ClientResponseError,
        lambda exc, _, where: (
            f"what {where} answered is not HTTP: {exc.message.partition(chr(10))[0].rstrip(':')}"
        ),
    ),
    (aiohttp.ClientPayloadError, lambda _, __, where: f"{where} broke its answer off"),
)
"""The messages of aiohttp's errors, special ones first."""
