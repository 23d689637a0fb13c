"""The outbound signature."""

from __future__ import annotations

import hmac
from collections.abc import Callable, Sequence
from typing import TypeAlias

from flowactions_plugin.egress.header_names import SIGNATURE_HEADER, TIMESTAMP_HEADER

Keyed: TypeAlias = Callable[[str], hmac.HMAC]
"""Returns the HMAC of nothing yet. To take the key in costs more than to sign a small body, so senders cache it."""


def keyed(secret: str) -> hmac.HMAC:
    """Return the HMAC of nothing yet."""
    return hmac.new(secret.encode("utf-8", "surrogatepass"), digestmod="sha256")


def sign(secret: str, timestamp: int, body: bytes, keyed: Keyed = keyed) -> str:
    """Sign one attempt (§5.3.2, §5.3.3, §5.3).

    Args:
        secret: the signing secret on the action's config, used as its UTF-8 bytes.
        timestamp: Unix seconds, as sent in ``x-service-webhook-timestamp``.
        body: the raw body, empty when there is none.
        keyed: a cache of the sender's own, so that no secret outlives its host.

    Returns:
        The value of ``x-service-webhook-signature``: ``v1,`` and the HMAC-SHA256 of
        ``<timestamp>.<raw body>`` in hex.
    """
    mac = keyed(secret).copy()
    mac.update(b"%d.%b" % (timestamp, body))
    return f"v1,{mac.hexdigest()}"


def attempt_headers(
    headers: Sequence[tuple[str, str]], timestamp: str, signature: str | None
) -> list[tuple[str, str]]:
    """Return the headers of one attempt, in their order (§2.6).

    Args:
        headers: those that every attempt of the delivery sends.
        timestamp: of this attempt.
        signature: of this attempt; ``None`` when it is not signed (§5.3.7).
    """
    signed = [] if signature is None else [(SIGNATURE_HEADER, signature)]
    return [*headers, (TIMESTAMP_HEADER, timestamp), *signed]
