"""What the routes for inbound events share."""

from __future__ import annotations

from typing import Final

import msgspec

EVENT_BYTES: Final = 1024 * 1024
"""The longest body that is read."""


class EventReceived(msgspec.Struct):
    """What became of an event: whether it was seen before."""

    received: bool
    duplicate: bool


class EventAnswer(msgspec.Struct):
    """The answer to an authentic event."""

    data: EventReceived
