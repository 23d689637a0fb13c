"""The outbound signature (§5.3)."""

from __future__ import annotations

import hmac
from typing import Final

TIMESTAMP_HEADER: Final = "x-service-webhook-timestamp"
SIGNATURE_HEADER: Final = "x-service-webhook-signature"


def sign(secret: str, timestamp: int, body: bytes) -> str:
    """Sign one attempt (§5.3.2, §5.3.3).

    Args:
        secret: the signing secret on the action's config, used as its UTF-8 bytes.
        timestamp: Unix seconds, as sent in ``x-service-webhook-timestamp``.
        body: the raw body, empty when there is none.

    Returns:
        The value of ``x-service-webhook-signature``: ``v1,`` and the HMAC-SHA256 of
        ``<timestamp>.<raw body>`` in hex.
    """
    signed = str(timestamp).encode() + b"." + body
    return f"v1,{hmac.digest(secret.encode('utf-8', 'surrogatepass'), signed, 'sha256').hex()}"
