"""What went wrong between here and a destination, in words for people who read why a delivery failed.

Authors and tenants read them, so no message quotes an error of Python, of the operating system or of a library, except for
OpenSSL's fixed names of errors, and none has an address that only a lookup has found. ``where`` is the destination's host and port.
"""

from __future__ import annotations

import errno
import re
import socket
import ssl
from collections.abc import Mapping
from typing import Final

PROXY_FAILED: Final = "the egress proxy did not connect"
"""Without its name: tenants read the reasons of their deliveries, and the proxy is the operator's."""

PROXY_UNREACHABLE: Final = "it cannot be reached"

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
    26: "it is not for a server",
    62: "it is for another name",
    64: "it is for another address",
    66: "its key is too short",
    67: "the key of its authority is too short",
    68: "it is signed with a weak algorithm, such as SHA-1",
}
"""OpenSSL's reasons (X509_V_ERR_…)."""

_TLS: Final[Mapping[str, str]] = {
    **dict.fromkeys(
        ("WRONG_VERSION_NUMBER", "HTTP_REQUEST", "RECORD_LAYER_FAILURE", "PACKET_LENGTH_TOO_LONG"),
        "it does not speak TLS",
    ),
    **dict.fromkeys(
        ("UNSUPPORTED_PROTOCOL", "TLSV1_ALERT_PROTOCOL_VERSION"), "it has no version of TLS from 1.2 on"
    ),
    "SSLV3_ALERT_HANDSHAKE_FAILURE": "it accepts none of our ciphers, or asks for a client certificate",
    "TLSV13_ALERT_CERTIFICATE_REQUIRED": "it asks for a client certificate",
    "DH_KEY_TOO_SMALL": "its Diffie-Hellman key is too short",
    "TLSV1_UNRECOGNIZED_NAME": "it does not know this name",
    "TLSV1_ALERT_NO_APPLICATION_PROTOCOL": "it does not offer HTTP/1.1",
    "TLSV1_ALERT_INTERNAL_ERROR": "it reported an internal error of its TLS",
    "UNSAFE_LEGACY_RENEGOTIATION_DISABLED": "its TLS has no secure renegotiation",
    "UNEXPECTED_EOF_WHILE_READING": "it closed the connection during TLS",
}
"""OpenSSL's reasons that receivers cause most. Of the others its own text is shown, which is fixed."""

_NAMELESS: Final = re.compile(r"\[\w+\] (?!unknown error)([a-z0-9 ]+) \(_ssl")
"""OpenSSL's text of an error for which Python has no name."""

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
        code, own = getattr(error, "verify_code", 0), getattr(error, "verify_message", None)
        why = _CERTIFICATES.get(code) or own or "it could not be verified"
        if code == 62 and "_" in where:
            why += "; a wildcard covers no name with an underscore"
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


def not_http(where: str, reason: str) -> str:
    """Return the message when what came is not HTTP, or beyond the limits."""
    return f"what {where} answered is not HTTP: {reason}"


def broke(where: str, error: BaseException) -> str:
    """Return the message when a connection broke before any byte of a response."""
    return f"the connection to {where} broke: {_reason(error)}"


def _reason(error: BaseException) -> str:
    """Return what an error of a connection means."""
    if isinstance(error, ssl.SSLError):
        found = _NAMELESS.match(str(error))
        reason = getattr(error, "reason", None) or (found[1].upper().replace(" ", "_") if found else "")
        return _TLS.get(reason) or f"TLS failed: {reason.replace('_', ' ').lower()}".removesuffix(": ")
    if isinstance(error, OSError) and error.errno in _UNREACHABLE:
        return "no network leads to it"
    return next((said for kind, said in _REASONS.items() if isinstance(error, kind)), "the network failed")
