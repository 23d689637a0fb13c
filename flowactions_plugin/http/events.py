"""What the routes for inbound events share."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from flowactions_hookspecs import FlowActionsError

EVENT_BYTES: Final = 1024 * 1024
"""The longest body that is read."""


class EventReceived(msgspec.Struct):
    """What became of an event: whether it was seen before."""

    received: bool
    duplicate: bool


class EventAnswer(msgspec.Struct):
    """The answer to an authentic event."""

    data: EventReceived


class EventInvalid(FlowActionsError):
    """An authentic request holds no event that can be understood; the message says what is wrong with it."""


def event_object(body: bytes) -> dict[str, Any]:
    """Read the JSON object that an authentic body holds.

    Raises:
        EventInvalid: it holds something else.
    """
    try:
        told = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as exc:
        raise EventInvalid(f"The body is not valid JSON: {exc}") from None
    if not isinstance(told, dict):
        raise EventInvalid("The body is not a JSON object.")
    return told
