"""Verify a delivery's signature: all that a receiver needs, ready to be copied (§5.3).

Give it the raw body as it arrived, before any JSON parsing, and look at nothing else of a request that does
not verify. Then dedupe on ``x-service-webhook-id``: a delivery may arrive more than once.
"""

from __future__ import annotations

import hmac
from collections.abc import Mapping

TOLERANCE_SECONDS = 300


def verify(secret: str, headers: Mapping[str, str], body: bytes, now: float) -> str:
    """Check one request (§5.3.4, §5.3.5).

    Args:
        secret: the signing secret that the webhook was configured with.
        headers: the request's headers, names in lower case.
        body: the raw body.
        now: Unix seconds.

    Returns:
        ``verified``; ``unsigned`` when there is no signature; ``stale`` when it is right but too old or
        from the future; ``wrong`` for anything else.
    """
    signature = headers.get("x-service-webhook-signature")
    if signature is None:
        return "unsigned"
    timestamp = headers.get("x-service-webhook-timestamp", "")
    if not (timestamp.isascii() and timestamp.isdigit() and len(timestamp) < 16):
        return "wrong"
    signed = timestamp.encode() + b"." + body
    expected = "v1," + hmac.new(secret.encode(), signed, "sha256").hexdigest()
    if not secret or not hmac.compare_digest(expected.encode(), signature.encode("utf-8", "replace")):
        return "wrong"  # with an empty secret, anybody can sign
    return "verified" if abs(now - int(timestamp)) <= TOLERANCE_SECONDS else "stale"
