"""What the routes for inbound events share."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from flowactions_hookspecs import FlowActionsError
from flowactions_plugin.http.strict_json import JSONInvalid, parse

EVENT_BYTES: Final = 1024 * 1024
"""The longest body that is read."""


class EventReceived(msgspec.Struct):
    """What became of an event: whether it was seen before."""

    received: bool
    duplicate: bool


class EventAnswer(msgspec.Struct):
    """The answer to an authentic event."""

    data: EventReceived


class NotAuthentic(FlowActionsError):
    """An inbound request was not signed by whom it should have been, or too long ago.

    Args:
        cause: a few words, the same for all requests that are refused for the same reason.
        message: what an operator should know; it holds nothing of a secret or a signature.
    """

    def __init__(self, cause: str, message: str) -> None:
        super().__init__(message)
        self.cause = cause


def outside_window(late_seconds: float, *, fits: bool) -> NotAuthentic:
    """Say that a request's timestamp is too far off, and what that points to.

    Args:
        late_seconds: how long ago it was signed; negative: in the future.
        fits: whether the signature is right but for that.
    """
    where = "in the past" if late_seconds > 0 else "in the future"
    advice = (
        "the signature fits: compare this machine's clock with the sender's; if they agree, it is a replay"
        if fits
        else "the signature does not fit either"
    )
    return NotAuthentic(
        "timestamp",
        f"the timestamp is {abs(late_seconds):.0f} s {where}, more than five minutes; {advice}",
    )


class EventInvalid(FlowActionsError):
    """An authentic request holds no event that can be understood; the message says what is wrong with it."""


def event_object(body: bytes) -> dict[str, Any]:
    """Read the JSON object that an authentic body holds.

    Raises:
        EventInvalid: it holds something else.
    """
    try:
        told = parse(body)
    except JSONInvalid as exc:
        raise EventInvalid(str(exc)) from None
    if not isinstance(told, dict):
        raise EventInvalid("The body is not a JSON object.")
    return told
