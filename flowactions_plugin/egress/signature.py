"""The headers that a delivery has from this plugin, and both schemes that sign an attempt: our own and Standard Webhooks."""

from __future__ import annotations

import base64
import hmac
from collections.abc import Callable, Sequence
from typing import Final, TypeAlias

from flowactions_plugin.settings.readers import key_bytes

RESERVED_PREFIX: Final = "x-service-webhook-"
"""Custom headers whose names begin with it are not sent."""

EVENT_ID_HEADER: Final = f"{RESERVED_PREFIX}id"
EVENT_TYPE_HEADER: Final = f"{RESERVED_PREFIX}event"
TIMESTAMP_HEADER: Final = f"{RESERVED_PREFIX}timestamp"
SIGNATURE_HEADER: Final = f"{RESERVED_PREFIX}signature"

STANDARD_PREFIX: Final = "webhook-"
"""The same of Standard Webhooks, reserved while the setting is on (§2.6)."""

Keyed: TypeAlias = Callable[[str], hmac.HMAC]
"""Returns the HMAC of nothing yet. To take the key in costs more than to sign a small body, so senders cache it."""


def folded(name: str) -> str:
    """Return a header's name as names are compared (§2.6).

    Many servers read ``_`` as ``-``, and none tells upper from lower case. CGI, WSGI and PHP put ``HTTP_`` in front.
    """
    return name.strip().lower().replace("_", "-").removeprefix("http-")


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


def signing_key(secret: str) -> bytes:
    """Return the key that Standard Webhooks signs with.

    Returns:
        For ``whsec_`` and base64, padded or not, the bytes that it encodes. For every other secret its UTF-8 bytes, as
        in §5.3.3; also where nothing follows ``whsec_``, because anybody can sign with an empty key.
    """
    key = key_bytes(secret[6:]) if secret.startswith("whsec_") else b""
    return key or secret.encode("utf-8", "surrogatepass")


def keyed_standard(secret: str) -> hmac.HMAC:
    """Return the HMAC of nothing yet, for Standard Webhooks."""
    return hmac.new(signing_key(secret), digestmod="sha256")


def sign_standard(
    secret: str, event_id: str, timestamp: int, body: bytes, keyed: Keyed = keyed_standard
) -> str:
    """Sign one attempt as Standard Webhooks does (§5.3.8).

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
        signature: what `sign_standard` returned; ``None`` when it is not signed (§5.3.7).
    """
    kept = [header for header in headers if not folded(header[0]).startswith(STANDARD_PREFIX)]
    signed = [] if signature is None else [("webhook-signature", signature)]
    return [*kept, ("webhook-id", event_id_of(headers)), ("webhook-timestamp", timestamp), *signed]


def event_id_of(headers: Sequence[tuple[str, str]]) -> str:
    """Return the event id among a delivery's headers; empty when a row was stored without one."""
    return next((value for name, value in headers if name == EVENT_ID_HEADER), "")
