"""What signed inbound requests share: answers, errors, and how many of a cause are admitted."""

from __future__ import annotations

import re
import time
from collections import deque
from collections.abc import Callable
from typing import Final

import msgspec

from flowactions_hookspecs import FlowActionsError

EVENT_BYTES: Final = 1024 * 1024
"""The size limit of a body."""

TOLERANCE_SECONDS: Final = 300
"""How far a timestamp may be off (§5.4)."""

TIMESTAMP: Final = re.compile(r"[0-9]{1,12}", re.ASCII)
PLAIN_ID: Final = re.compile(r"[!-~]{1,200}", re.ASCII)
"""Ids that are stored in the database or compared with stored ones."""


class EventReceived(msgspec.Struct):
    """The result of an event: whether it was processed before."""

    received: bool
    duplicate: bool


class EventAnswer(msgspec.Struct):
    """The answer to an authentic event."""

    data: EventReceived


class NotAuthentic(FlowActionsError):
    """An inbound request is not signed by its provider, or was signed too long ago.

    Args:
        cause: a short name, the same for all requests that are refused for the same reason.
        message: for the operator; it holds no part of a secret or a signature.
    """

    def __init__(self, cause: str, message: str) -> None:
        super().__init__(message)
        self.cause = cause


def check_signed(fits: bool, late_seconds: float, otherwise: str) -> None:
    """Check that a signature fits and is at most five minutes old, or early, which is a negative number of seconds.

    Raises:
        NotAuthentic: it is not so; of a signature that does not fit, the reason is ``otherwise``.
    """
    if abs(late_seconds) > TOLERANCE_SECONDS:
        where = "in the past" if late_seconds > 0 else "in the future"
        advice = (
            "the signature fits: compare this machine's clock with the sender's; if they agree, it is a replay"
            if fits
            else "the signature does not fit either"
        )
        late = f"the timestamp is {abs(late_seconds):.0f} s {where}, more than five minutes; {advice}"
        raise NotAuthentic("timestamp", late)
    if not fits:
        raise NotAuthentic("signature", otherwise)


class Throttle:
    """Admits so many requests of a cause within some seconds, and counts the others: anyone can send requests that are refused."""

    def __init__(self, most: int, seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._most = most
        self._seconds = seconds
        self._clock = clock
        self._admitted: dict[str, deque[float]] = {}
        self._others: dict[str, int] = {}

    def admit(self, cause: str) -> int | None:
        """Return how many requests of a cause, one of a few, were not admitted since the last one; ``None``: this one is not."""
        now = self._clock()
        times = self._admitted.setdefault(cause, deque(maxlen=self._most))
        if len(times) == self._most and now < times[0] + self._seconds:
            self._others[cause] = self._others.get(cause, 0) + 1
            return None
        times.append(now)
        return self._others.pop(cause, 0)
