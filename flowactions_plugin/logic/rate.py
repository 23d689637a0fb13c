"""The rate of logic-webhook calls: so many in any minute, counted exactly."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

LIMIT: Final = 60
WINDOW_MS: Final = 60_000


class Verdict(NamedTuple):
    """Whether one more call is within the rate.

    Attributes:
        times: those that count from now on, this call among them when it is admitted; Unix milliseconds.
        wait_ms: when the oldest ceases to count; 0 when the call is admitted.
    """

    times: Sequence[int]
    wait_ms: int


def admit(times: Sequence[int], now: int, limit: int = LIMIT) -> Verdict:
    """Decide on a call: in no stretch of a minute are more than ``limit`` admitted (§8).

    Args:
        times: of the calls that were admitted, oldest first.
        now: Unix milliseconds. A clock that was set back counts as standing still.
        limit: how many a minute admits.
    """
    now = max(now, times[-1]) if times else now
    recent = [time for time in times if time > now - WINDOW_MS]
    if len(recent) >= limit:
        return Verdict(recent, recent[-limit] + WINDOW_MS - now)
    return Verdict([*recent, now], 0)
