"""The deadline of an attempt, extended by the time in which this process stood still.

A response may be late because of a blocked event loop, a stopped process or a suspended machine, and not because of the
receiver. So a monitor measures how late its own timer is, and a deadline is extended by as much.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from types import TracebackType
from typing import Final, Self

TICK_SECONDS: Final = 0.25
IDLE_TICK_SECONDS: Final = 1.0
"""The same while no deadline waits."""

LEAST_SECONDS: Final = 0.1
"""A timer that is this late means a stall; less is ordinary work of the event loop."""

ALARM_SECONDS: Final = 0.05
"""Deadlines that are over within this time share a timer of the event loop, and end up to so much late."""

GRACE_SECONDS: Final = 0.5
"""The extension of an attempt whose time was up at the end of a stall: what has arrived meanwhile is read."""


class StallMonitor:
    """Adds up how long the event loop stood still; a context manager, to be entered in the loop.

    Outside the context it measures nothing.

    Args:
        clock: seconds, which also pass while the process is stopped.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._lost = 0.0
        self._due = math.inf
        self._ended = -math.inf
        self._longest = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._is_idle = False
        self._alarms: dict[int, set[Deadline]] = {}

    def __enter__(self) -> Self:
        self._tick()
        return self

    def __exit__(self, *_exc: object) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._due = math.inf

    def now(self) -> float:
        """Return the time by the monitor's clock."""
        return self._clock()

    def read(self) -> tuple[float, float]:
        """Return the time by the monitor's clock, and the seconds that were lost so far.

        These include those of a stall that has just ended.
        """
        now = self._clock()
        if now - self._due >= LEAST_SECONDS:
            self._lost += now - self._due
            self._longest = max(self._longest, now - self._due)
            self._due = self._ended = now
        return now, self._lost

    def lost(self) -> float:
        """Return the seconds that were lost so far, as `read` does."""
        return self.read()[1]

    def longest(self) -> float:
        """Return the seconds of the longest stall since the last `pop_longest`."""
        self.lost()
        return self._longest

    def pop_longest(self) -> float:
        """Return the seconds of the longest stall since the last call."""
        longest, self._longest = self.longest(), 0.0
        return longest

    def ended(self) -> float:
        """Return when the last stall ended."""
        self.lost()
        return self._ended

    def alarm(self, deadline: Deadline, now: float, seconds: float) -> set[Deadline]:
        """Schedule the check of a deadline in so many seconds, or a little later; return the set in which it waits."""
        number = int((now + seconds) / ALARM_SECONDS) + 1
        waiting = self._alarms.get(number)
        if waiting is None:
            waiting = self._alarms[number] = set()
            after = number * ALARM_SECONDS - now
            asyncio.get_running_loop().call_later(after, self._check_due, number)
            if self._is_idle and self._timer is not None:
                self._timer.cancel()
                self._tick()
        waiting.add(deadline)
        return waiting

    def _check_due(self, number: int) -> None:
        for deadline in self._alarms.pop(number):
            deadline.check()

    def _tick(self) -> None:
        self.lost()
        self._is_idle = not self._alarms
        seconds = IDLE_TICK_SECONDS if self._is_idle else TICK_SECONDS
        self._due = self._clock() + seconds
        self._timer = asyncio.get_running_loop().call_later(seconds, self._tick)


class Deadline:
    """Ends the block that it is entered for with ``TimeoutError`` when the time is up; lost time is added.

    Args:
        monitor: measures the time that is lost.
        seconds: how long the block may take.
        latest: when the block ends at the latest, by the monitor's clock, whatever was lost.
        at_end: called when the time is up, before the block is interrupted.

    Attributes:
        expired: whether the time was up.
    """

    def __init__(
        self, monitor: StallMonitor, seconds: float, latest: float, at_end: Callable[[], None]
    ) -> None:
        self._monitor = monitor
        self._seconds = seconds
        self._latest = latest
        self._at_end = at_end
        self.expired = False
        self._graced = False

    @property
    def lost(self) -> float:
        """Seconds that were lost since the block began."""
        return self._monitor.lost() - self._lost_before

    @property
    def elapsed(self) -> float:
        """Seconds since the block began, without those that were lost."""
        return self._monitor.now() - self._started - self.lost

    def __enter__(self) -> Self:
        task = asyncio.current_task()
        assert task is not None  # noqa: S101  a coroutine runs in a task
        self._task, self._cancelling = task, task.cancelling()
        self._started, self._lost_before = self._monitor.read()
        self._waiting = self._monitor.alarm(self, self._started, self._seconds)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._waiting.discard(self)
        if self.expired and self._task.uncancel() <= self._cancelling and kind is asyncio.CancelledError:
            raise TimeoutError from error

    def check(self) -> None:
        """End the block when its time is up, else wait on; called by the monitor."""
        now, lost = self._monitor.read()
        left = min(self._started + self._seconds + lost - self._lost_before, self._latest) - now
        if left <= 0 and not self._graced and now - self._monitor.ended() < GRACE_SECONDS:
            # After a stall, the event loop runs timers before it reads what has arrived meanwhile.
            self._graced, left = True, GRACE_SECONDS
        if left > 0:
            self._waiting = self._monitor.alarm(self, now, left)
            return
        self.expired = True
        self._at_end()
        self._task.cancel()
