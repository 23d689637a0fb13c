"""The names of the headers that a delivery has from this plugin (§2.6)."""

from __future__ import annotations

from typing import Final

RESERVED_PREFIX: Final = "x-service-webhook-"
"""Custom headers whose names begin with it are not sent."""

EVENT_ID_HEADER: Final = f"{RESERVED_PREFIX}id"
EVENT_TYPE_HEADER: Final = f"{RESERVED_PREFIX}event"
TIMESTAMP_HEADER: Final = f"{RESERVED_PREFIX}timestamp"
SIGNATURE_HEADER: Final = f"{RESERVED_PREFIX}signature"
