"""How long a host is waited for: limits on a machine that is as fast as needed, and how they grow on a slower one.

No limit is a measure of speed: it ends the wait for a host that hangs. If one passes while the machine is slow, the host has
as many times longer as was measured. After that, nothing is known of it: the run is to be repeated.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Final, TypeVar

from flowactions_conformance.kit.outcomes import NothingKnown

_T = TypeVar("_T")

SECONDS: Final = {"start": 40.0, "stop": 30.0, "call": 25.0, "request": 25.0, "effect": 20.0, "check": 90.0}
"""What is waited for: until the app serves, until it has stopped, until a method of the driver has returned, until a request
has its answer, until an effect has come, until a check has ended."""
SHORT_SECONDS: Final = 5.0
"""The wait for a start, a call or an effect once `EXPIRED_BEFORE_SHORT` in a row have not come, and for a host that has hung to stop: to
say that a host hangs must not take minutes."""
EXPIRED_BEFORE_SHORT: Final = 3

SLOW: Final = 1.5
"""How many times slower than needed a machine is that counts as slow."""
MOST: Final = 20.0
"""By how much a limit grows at the most."""
PARTS: Final = 4
"""How often the machine is measured until a limit: it may have been slow before, and be fast then."""
WORK: Final = 1_000_000
"""Numbers that are added for a measurement: some twenty milliseconds, in which a busy machine takes the processor away several times."""
FRESH_SECONDS: Final = 1.0
"""For how long a measurement is used again."""


class Late(TimeoutError):
    """What was waited for did not come.

    Attributes:
        seconds: the limit.
    """

    def __init__(self, seconds: float) -> None:
        super().__init__(f"not within {seconds:g} seconds")
        self.seconds = seconds


class Machine:
    """The machine that the kit runs on: how long a thread of this process waits for a processor, for each second that it works.

    A host that blocks its event loop, or the interpreter, waits for no processor: it does not make a machine slow.

    Attributes:
        newest: the newest measurement.
    """

    def __init__(self) -> None:
        self.newest = 1.0
        self._at = -FRESH_SECONDS

    def slowness(self) -> float:
        """Return how many times slower the machine is than needed, at least 1.0."""
        if time.monotonic() - self._at >= FRESH_SECONDS:
            before = _schedule()
            sum(range(WORK))
            ran, waited = (now - then for now, then in zip(_schedule(), before, strict=True))
            self.newest = 1 + waited / max(1, ran)
            self._at = time.monotonic()
        return self.newest


def _schedule() -> tuple[int, int]:
    """Return how long this thread has run, and has waited for a processor; in nanoseconds."""
    try:
        ran, waited, _ = map(int, Path("/proc/thread-self/schedstat").read_text().split())
    except OSError:  # no Linux: the wait for processors is what a process of its own would have
        return time.thread_time_ns(), int(
            max(0.0, os.getloadavg()[0] / (os.cpu_count() or 1) - 1) * time.thread_time_ns()
        )
    return ran, waited


class Patience:
    """Waits for what a host does, by the one rule that all waits have.

    Args:
        scale: of all limits.
        slowness: measures how many times slower than needed the machine is now; ``None``: it is fast.
    """

    def __init__(self, scale: float = 1.0, slowness: Callable[[], float] | None = None) -> None:
        self.slowness = slowness
        self._scale = scale
        self._missed: Counter[str] = Counter()

    def limit(self, what: str) -> float:
        """Return for how many seconds something of `SECONDS` is waited for now, on a machine that is as fast as needed."""
        is_short = what in {"start", "call", "effect"} and self._missed[what] >= EXPIRED_BEFORE_SHORT
        return (min(SECONDS[what], SHORT_SECONDS) if is_short else SECONDS[what]) * self._scale

    async def wait(
        self,
        awaited: Awaitable[_T],
        what: str,
        *,
        at_least: float = 0.0,
        hung: bool = False,
        judged: bool = True,
    ) -> _T:
        """Return what ``awaited`` gives.

        Args:
            awaited: cancelled when it takes too long.
            what: a key of `SECONDS`.
            at_least: seconds to wait for what the plugin itself does only after a lease has ended.
            hung: whether the host has hung before.
            judged: whether the result is used. If not, the limit is not longer on a slow machine.

        Raises:
            Late: it did not come, and the machine is fast.
            NothingKnown: the machine was too slow to tell.
        """
        limit = max(self.limit(what), at_least * self._scale)
        task = asyncio.ensure_future(awaited)
        try:
            await self._until_done(task, min(limit, SHORT_SECONDS) if hung else limit, judged=judged)
            self._missed[what] = 0
            return task.result()
        except Late:
            self._missed[what] += 1
            raise
        finally:
            if not task.done():
                task.cancel()
                await asyncio.wait({task}, timeout=1)

    async def _until_done(self, task: asyncio.Future[_T], limit: float, *, judged: bool) -> None:
        began, slowness = time.monotonic(), 1.0
        while not (await asyncio.wait({task}, timeout=limit / PARTS))[0]:
            if judged and self.slowness is not None:
                slowness = max(slowness, self.slowness())
            waited = time.monotonic() - began
            if task.done() or waited < limit:
                continue
            if slowness < SLOW:
                raise Late(limit)
            if waited >= limit * min(slowness, MOST):
                raise NothingKnown(
                    f"not known: this machine was too slow ({slowness:.0f} times slower than needed, and {waited:.0f} seconds were"
                    " not enough). Run it again, or with a greater --time-scale"
                )
