"""The headers of Standard Webhooks, which a delivery carries beside its own when the setting says so."""

from __future__ import annotations

import base64
import hmac
from collections.abc import Sequence
from typing import Final

from flowactions_plugin.egress.header_names import EVENT_ID_HEADER, folded
from flowactions_plugin.egress.signature import Keyed

ID_HEADER: Final = "webhook-id"
TIMESTAMP_HEADER: Final = "webhook-timestamp"
SIGNATURE_HEADER: Final = "webhook-signature"

RESERVED_PREFIX: Final = "webhook-"
"""Custom headers whose names begin with it are not sent (§2.6)."""

SECRET_PREFIX: Final = "whsec_"  # noqa: S105  what secrets of the scheme begin with


def signing_key(secret: str) -> bytes:
    """Return the key of a signing secret.

    Returns:
        For ``whsec_`` and base64, padded or not, the bytes that it encodes. For every other secret its UTF-8 bytes, as
        in §5.3.3; also where nothing follows ``whsec_``, because anybody can sign with an empty key.
    """
    if secret.startswith(SECRET_PREFIX):
        encoded = secret.removeprefix(SECRET_PREFIX).rstrip("=")
        try:
            key = base64.b64decode(encoded + "=" * (-len(encoded) % 4), validate=True)
        except ValueError:
            key = b""
        if key:
            return key
    return secret.encode("utf-8", "surrogatepass")


def keyed(secret: str) -> hmac.HMAC:
    """Return the HMAC of nothing yet, as for the other signature."""
    return hmac.new(signing_key(secret), digestmod="sha256")


def sign(secret: str, event_id: str, timestamp: int, body: bytes, keyed: Keyed = keyed) -> str:
    """Signs one attempt (§5.3.8).

    Args:
        secret: the signing secret on the action's config.
        event_id: as sent in ``webhook-id``.
        timestamp: Unix seconds, as sent in ``webhook-timestamp``.
        body: the raw body, empty when there is none.
        keyed: a cache of the sender's own.

    Returns:
        The value of ``webhook-signature``: ``v1,`` and the HMAC-SHA256 of ``<id>.<timestamp>.<raw body>`` in base64.
    """
    mac = keyed(secret).copy()
    mac.update(b"%b.%d.%b" % (event_id.encode("utf-8", "surrogatepass"), timestamp, body))
    return f"v1,{base64.b64encode(mac.digest()).decode()}"


def with_standard_headers(
    headers: Sequence[tuple[str, str]], timestamp: str, signature: str | None
) -> list[tuple[str, str]]:
    """Return the headers of one attempt with those of Standard Webhooks at their end (§2.6).

    A header of one of these names that was stored while the setting was off is left out: twice, they would not verify.

    Args:
        headers: those of the attempt, the event id among them.
        timestamp: of this attempt.
        signature: what `sign` returned; ``None`` when it is not signed (§5.3.7).
    """
    kept = [header for header in headers if not folded(header[0]).startswith(RESERVED_PREFIX)]
    signed = [] if signature is None else [(SIGNATURE_HEADER, signature)]
    return [*kept, (ID_HEADER, event_id_of(headers)), (TIMESTAMP_HEADER, timestamp), *signed]


def event_id_of(headers: Sequence[tuple[str, str]]) -> str:
    """Return the event id among a delivery's headers; empty when a row was stored without one."""
    return next((value for name, value in headers if name == EVENT_ID_HEADER), "")
