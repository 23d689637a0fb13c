"""Which headers and query parameters hold credentials, and what is shown of them."""

from __future__ import annotations

import re
from typing import Final

MASK: Final = "…"

CREDENTIAL_PARTS: Final = (
    "auth",
    "bearer",
    "cookie",
    "credential",
    "hmac",
    "jwt",
    "key",
    "passcode",
    "passphrase",
    "passw",
    "secret",
    "session",
    "signature",
    "token",
)
"""A name that holds one of these is a credential's."""

CREDENTIAL_WORDS: Final = frozenset({"otp", "pat", "pin", "pwd", "sas", "sid", "sig", "sign"})
"""Too short to be looked for inside other words."""

NO_CREDENTIALS: Final = frozenset({"idempotency-key", "x-idempotency-key"})
"""Headers that are read to find out what was sent twice."""

_SCHEME: Final = re.compile(
    r"\s*(?:basic|bearer|digest|negotiate|hmac|token|apikey|aws4-hmac-sha256)\s+\S", re.IGNORECASE
)
"""Credentials as the header ``Authorization`` has them (RFC 9110 §11.6.2), under whatever name."""

_WORDS: Final = re.compile(r"[a-z0-9]+")
_PARAMETER: Final = re.compile(r"(?<=[?&;])([^=&;#]*)=([^&;#]+)")


def is_credential_name(name: str) -> bool:
    """Returns whether a header or query parameter of this name holds a credential.

    It does when its name holds one of `CREDENTIAL_PARTS` or has one of `CREDENTIAL_WORDS` as a word of its own; upper
    and lower case are alike, and so are ``api-key``, ``api_key`` and ``apikey``.
    """
    lower = name.strip().lower()
    if lower in NO_CREDENTIALS:
        return False
    return any(part in lower for part in CREDENTIAL_PARTS) or not CREDENTIAL_WORDS.isdisjoint(
        _WORDS.findall(lower)
    )


def masked_header(name: str, value: str) -> str:
    """Returns what is shown of a header's value: `MASK` for a credential."""
    return MASK if value and (is_credential_name(name) or _SCHEME.match(value)) else value


def masked_url(url: str) -> str:
    """Returns a URL as it is shown: the values of credential-like query parameters are `MASK`."""
    address, separator, query = url.partition("?")
    if not separator:
        return url
    shown = _PARAMETER.sub(
        lambda found: f"{found[1]}={MASK}" if is_credential_name(found[1]) else found[0], separator + query
    )
    return address + shown
