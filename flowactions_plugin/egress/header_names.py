"""The names of the headers that a delivery has from this plugin."""

from __future__ import annotations

from typing import Final


def folded(name: str) -> str:
    """Return a header's name as names are compared (§2.6).

    Many servers read ``_`` as ``-``, and none tells upper from lower case.
    """
    return name.strip().lower().replace("_", "-")


RESERVED_PREFIX: Final = "x-service-webhook-"
"""Custom headers whose names begin with it are not sent."""

EVENT_ID_HEADER: Final = f"{RESERVED_PREFIX}id"
EVENT_TYPE_HEADER: Final = f"{RESERVED_PREFIX}event"
TIMESTAMP_HEADER: Final = f"{RESERVED_PREFIX}timestamp"
SIGNATURE_HEADER: Final = f"{RESERVED_PREFIX}signature"
