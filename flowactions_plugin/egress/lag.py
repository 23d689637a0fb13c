"""How long the event loop of this process stood still: an attempt that failed meanwhile may be no failure of the receiver."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from types import TracebackType
from typing import Final, Self

TICK_SECONDS: Final = 0.25

SHARED_SECONDS: Final = 0.05
"""Deadlines that pass within this time share a timer, and end up to so much late: a timer for each attempt costs more than its signature."""

GRACE_SECONDS: Final = 0.5
"""For so long, what has arrived during a stall is read, before any deadline that has passed meanwhile ends its attempt."""


class LagMeter:
    """Adds up how long the event loop stood still; a context manager, to be entered in the loop.

    Outside the context it measures nothing.

    Args:
        clock: seconds, which also pass while the process is stopped.

    Attributes:
        now: the clock.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self.now = clock
        self._lost = self._longest = 0.0
        self._due = math.inf
        self._timer: asyncio.TimerHandle | None = None
        self._until = -math.inf  # no deadline passes before that, by the event loop's clock
        self._deadlines: dict[int, set[Deadline]] = {}  # by the number of their timer

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
            self._until = asyncio.get_running_loop().time() + GRACE_SECONDS
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

    def share(self, deadline: Deadline, at: float) -> set[Deadline]:
        """Have a deadline end its block at a time of the event loop, or a little later; return those among which it waits."""
        number = int(at / SHARED_SECONDS) + 1
        waiting = self._deadlines.get(number)
        if waiting is None:
            waiting = self._deadlines[number] = set()
            asyncio.get_running_loop().call_at(number * SHARED_SECONDS, self._pass, number)
        waiting.add(deadline)
        return waiting

    def _pass(self, number: int) -> None:
        self.lost()
        is_over = asyncio.get_running_loop().time() >= self._until
        for deadline in self._deadlines.pop(number):
            if is_over:
                deadline.end()
            else:
                deadline.waiting = self.share(deadline, self._until)

    def _tick(self) -> None:
        self.lost()
        self._due = self.now() + TICK_SECONDS
        self._timer = asyncio.get_running_loop().call_later(TICK_SECONDS, self._tick)


class Deadline:
    """Ends the block that it is entered for with ``TimeoutError`` when its time is up.

    Args:
        meter: puts it off after a stall.
        seconds: how long the block may take.

    Attributes:
        waiting: those that share its timer.
        expired: whether the time was up.
    """

    __slots__ = ("_cancelling", "_meter", "_seconds", "_task", "expired", "waiting")

    def __init__(self, meter: LagMeter, seconds: float) -> None:
        self._meter = meter
        self._seconds = seconds
        self.expired = False

    def __enter__(self) -> Self:
        task = asyncio.current_task()
        assert task is not None  # noqa: S101  a coroutine runs in a task
        self._task, self._cancelling = task, task.cancelling()
        self.waiting = self._meter.share(self, asyncio.get_running_loop().time() + self._seconds)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        self.waiting.discard(self)
        if self.expired and self._task.uncancel() <= self._cancelling and kind is asyncio.CancelledError:
            raise TimeoutError from error

    def end(self) -> None:
        """End the block: its time is up."""
        self.expired = True
        self._task.cancel()
