"""The outbound signature (§5.3)."""

from __future__ import annotations

import hmac
from collections.abc import Sequence
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


def attempt_headers(
    headers: Sequence[tuple[str, str]], timestamp: str, signature: str | None
) -> list[tuple[str, str]]:
    """Returns the headers of one attempt, in their order (§2.6).

    Args:
        headers: those that every attempt of the delivery sends.
        timestamp: of this attempt.
        signature: of this attempt; ``None`` when it is not signed (§5.3.7).
    """
    signed = [] if signature is None else [(SIGNATURE_HEADER, signature)]
    return [*headers, (TIMESTAMP_HEADER, timestamp), *signed]
