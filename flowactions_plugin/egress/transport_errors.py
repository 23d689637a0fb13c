"""What went wrong between here and a destination, in words for people who read why a delivery failed.

Authors and tenants read them, so no message quotes an error of Python, of the operating system or of a library, and none
has an address that only a lookup has found. ``where`` is the destination's host and port.
"""

from __future__ import annotations

import errno
import socket
import ssl
from collections.abc import Mapping
from typing import Final

PROXY_FAILED: Final = "the egress proxy did not connect"
"""Without its name: tenants read the reasons of their deliveries, and the proxy is the operator's."""

NOT_AUTHORIZED: Final = "it does not accept our user name and password"
PROXY_UNRESOLVED: Final = "its host name has no address now"
PROXY_UNREACHABLE: Final = "it cannot be reached"
PROXY_SILENT: Final = "it did not answer in time"

THROUGH_PROXY: Final = "answered through the proxy"
"""What is said of an answer that a proxy may have written itself."""

_UNREACHABLE: Final = frozenset({errno.ENETUNREACH, errno.EHOSTUNREACH, errno.ENETDOWN, errno.EHOSTDOWN})

_LOOKUP_FAILED: Final[Mapping[int | None, str]] = {
    socket.EAI_AGAIN: "the name server did not answer",
    socket.EAI_FAIL: "the name server failed",
    socket.EAI_SYSTEM: "the lookup failed",
}

_CERTIFICATES: Final[Mapping[int, str]] = {
    9: "it is not valid yet",
    10: "it has expired",
    18: "it vouches for itself, and is not trusted here",
    19: "it comes from an authority that is not trusted here",
    20: "it comes from an authority that is not trusted here, or an intermediate certificate is missing",
    21: "it comes from an authority that is not trusted here, or an intermediate certificate is missing",
    62: "it is for another name",
    64: "it is for another address",
}
"""OpenSSL's reasons (X509_V_ERR_…)."""

_NO_TLS: Final = frozenset(
    {"WRONG_VERSION_NUMBER", "HTTP_REQUEST", "RECORD_LAYER_FAILURE", "PACKET_LENGTH_TOO_LONG"}
)


_REASONS: Final[Mapping[type[OSError], str]] = {
    ConnectionRefusedError: "it refused the connection",
    ConnectionResetError: "it reset the connection",
    ConnectionError: "it closed the connection",
    TimeoutError: "it did not answer",
}
"""The first kind that an error is of counts."""


def no_address(host: str, error: OSError) -> str:
    """Return the message when a name could not be looked up."""
    return f"{host} has no address now: {_LOOKUP_FAILED.get(error.errno, 'the name was not found')}"


def cannot_connect(where: str, error: OSError) -> str:
    """Return the message when there is no connection, or no TLS on it."""
    if isinstance(error, ssl.SSLCertVerificationError):
        why = _CERTIFICATES.get(getattr(error, "verify_code", 0), "it could not be verified")
        return f"the TLS certificate of {where} is not accepted: {why}"
    return f"cannot connect to {where}: {_reason(error)}"


def no_tunnel(where: str, reason: str) -> str:
    """Return the message when an egress proxy works, and does not connect to this destination."""
    return f"cannot connect to {where} through the egress proxy: {reason}"


def closed_unanswered(where: str) -> str:
    """Return the message when a connection was closed before any byte of a response."""
    return f"{where} closed the connection without an answer"


def broke_off(where: str) -> str:
    """Return the message when a response was not complete."""
    return f"{where} broke its answer off"


def broke(where: str, error: BaseException) -> str:
    """Return the message when a connection broke before any byte of a response."""
    return f"the connection to {where} broke: {_reason(error)}"


def headers_too_large(where: str, status: int) -> str:
    """Return the message when a response has more headers than are read."""
    return f"{where} answered {status} with headers above 64 KiB"


def not_http(where: str, reason: str) -> str:
    """Return the message when what came is not HTTP, or beyond the limits."""
    return f"what {where} answered is not HTTP: {reason}"


def _reason(error: BaseException) -> str:
    """Return what an error of a connection means."""
    if isinstance(error, ssl.SSLError):
        return "it does not speak TLS" if getattr(error, "reason", None) in _NO_TLS else "TLS failed"
    if isinstance(error, OSError) and error.errno in _UNREACHABLE:
        return "no network leads to it"
    return next((said for kind, said in _REASONS.items() if isinstance(error, kind)), "the network failed")
