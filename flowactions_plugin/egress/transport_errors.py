"""What went wrong between here and a destination, in words for people who read why a delivery failed.

``where`` is the destination's host and port.
"""

from __future__ import annotations

import ssl
from typing import Final

PROXY_FAILED: Final = "the egress proxy did not connect"
PROXY_UNRESOLVED: Final = f"{PROXY_FAILED}: its host name has no address now"
"""Without the name: tenants read the reasons of their deliveries, and the proxy is the operator's."""


def no_address(host: str, error: OSError) -> str:
    """Return the message when a name could not be looked up."""
    return f"{host} has no address now: {error}"


def cannot_connect(where: str, error: OSError) -> str:
    """Return the message when there is no connection, or no TLS on it."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"the TLS certificate of {where} is not accepted: {error}"
    return f"cannot connect to {where}: {str(error) or type(error).__name__}"


def closed_unanswered(where: str) -> str:
    """Return the message when a connection was closed before any byte of a response."""
    return f"{where} closed the connection without an answer"


def broke_off(where: str) -> str:
    """Return the message when a response was not complete."""
    return f"{where} broke its answer off"


def broke(where: str, error: BaseException) -> str:
    """Return the message when a connection broke before any byte of a response."""
    return f"the connection to {where} broke: {error}"


def headers_too_large(where: str, status: int) -> str:
    """Return the message when a response has more headers than are read."""
    return f"{where} answered {status} with headers above 64 KiB"


def not_http(where: str, reason: str) -> str:
    """Return the message when what came is not HTTP, or beyond the limits."""
    return f"what {where} answered is not HTTP: {reason}"
