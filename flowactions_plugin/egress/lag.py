"""How long the event loop of this process stood still: an attempt that failed meanwhile may be no failure of the receiver."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from typing import Final, Self

TICK_SECONDS: Final = 0.25

GRACE_SECONDS: Final = 0.5
"""For so long, what has arrived during a stall is read, before any deadline that has passed meanwhile ends its attempt."""


class LagMeter:
    """Adds up how long the event loop stood still; a context manager, to be entered in the loop.

    Outside the context it measures nothing.

    Args:
        clock: seconds, which also pass while the process is stopped.

    Attributes:
        now: the clock.
        deadlines: those that wait for the end of a stall.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self.now = clock
        self._lost = self._longest = 0.0
        self._due = math.inf
        self._timer: asyncio.TimerHandle | None = None
        self.deadlines: set[asyncio.Timeout] = set()

    def __enter__(self) -> Self:
        self._tick()
        return self

    def __exit__(self, *_exc: object) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._due = math.inf

    def lost(self) -> float:
        """Return the seconds that were lost so far, with those of a stall that has just ended."""
        now = self.now()
        if now - self._due >= 0.1:  # less is ordinary work of the event loop
            self._lost += now - self._due
            self._longest = max(self._longest, now - self._due)
            self._due = now
            # After a stall, the event loop runs timers before it reads.
            until = asyncio.get_running_loop().time() + GRACE_SECONDS
            for each in self.deadlines:
                if not each.expired() and (each.when() or 0.0) < until:
                    each.reschedule(until)
        return self._lost

    def running(self) -> float:
        """Return seconds that pass only while this process does not stand still."""
        return self.now() - self.lost()

    def longest(self) -> float:
        """Return the seconds of the longest stall since the last `pop_longest`."""
        self.lost()
        return self._longest

    def pop_longest(self) -> float:
        """Return the seconds of the longest stall since the last call."""
        longest, self._longest = self.longest(), 0.0
        return longest

    def _tick(self) -> None:
        self.lost()
        self._due = self.now() + TICK_SECONDS
        self._timer = asyncio.get_running_loop().call_later(TICK_SECONDS, self._tick)
