"""How long a host is waited for: limits on a machine that is as fast as needed, and how they grow on a slower one.

No limit is a measure of speed: it ends the wait for a host that hangs. If one passes while the machine is slow, the host has
as many times longer as was measured. After that, nothing is known of it: the run is to be repeated.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Awaitable, Callable
from typing import Final, NamedTuple, TypeVar

from flowactions_conformance.kit.outcomes import NothingKnown

_T = TypeVar("_T")

START_SECONDS: Final = 40.0
STOP_SECONDS: Final = 30.0
CALL_SECONDS: Final = 25.0
REQUEST_SECONDS: Final = 25.0
EFFECT_SECONDS: Final = 20.0
CHECK_SECONDS: Final = 90.0
HUNG_STOP_SECONDS: Final = 3.0
"""For how long a host is waited for that has hung before."""
SHORT_SECONDS: Final = 5.0
"""The wait for an effect or a call, once `EXPIRED_BEFORE_SHORT` in a row have not come."""
EXPIRED_BEFORE_SHORT: Final = 3

SLOW: Final = 1.5
"""How many times slower than needed a machine is that counts as slow."""
MOST: Final = 20.0
"""By how much a limit grows at the most."""
PARTS: Final = 4
"""How often the machine is measured until a limit: it may have been slow before, and be fast then."""
WORK: Final = "from time import perf_counter as now; began = now(); sum(range(2_000_000)); print(now() - began)"
WORK_SECONDS: Final = 0.1
"""How long `WORK` takes on a machine that is as fast as needed; an idle one takes less."""
FRESH_SECONDS: Final = 1.0
"""For how long a measurement is used again."""


class Limits(NamedTuple):
    """How long a host may take; no measure of speed, but the end of waiting for one that hangs.

    Attributes:
        start: seconds until the app serves.
        stop: seconds until it has stopped.
        call: seconds until a method of the driver has returned.
        hung_stop: seconds until it has stopped, after something hung.
        hung_call: as ``call``, once several calls have hung.
    """

    start: float = START_SECONDS
    stop: float = STOP_SECONDS
    call: float = CALL_SECONDS
    hung_stop: float = HUNG_STOP_SECONDS
    hung_call: float = SHORT_SECONDS


LIMITS: Final = Limits()


class EffectTimeout:
    """For how long effects, or calls of one host, are waited for: less, once several in a row have not come.

    A host that hangs, or in which nothing arrives, must not take minutes to say so.

    Args:
        seconds: the wait while nothing is amiss.
        short: the wait once `EXPIRED_BEFORE_SHORT` have not come.
    """

    def __init__(self, seconds: float = EFFECT_SECONDS, short: float = SHORT_SECONDS) -> None:
        self._seconds = seconds
        self._short = short
        self.missed = 0

    @property
    def seconds(self) -> float:
        """How long to wait now."""
        return min(self._seconds, self._short) if self.missed >= EXPIRED_BEFORE_SHORT else self._seconds

    @property
    def stop_seconds(self) -> float:
        """How long to wait for a host to stop."""
        return self._seconds * STOP_SECONDS / EFFECT_SECONDS

    def came(self) -> None:
        """Note that it came."""
        self.missed = 0

    def expired(self) -> None:
        """Note that it did not come."""
        self.missed += 1


class Late(TimeoutError):
    """What was waited for did not come.

    Attributes:
        seconds: the limit.
    """

    def __init__(self, seconds: float) -> None:
        super().__init__(f"not within {seconds:g} seconds")
        self.seconds = seconds


class Machine:
    """The machine that the kit runs on, measured in a process of its own: never through the host."""

    def __init__(self) -> None:
        self._measuring: asyncio.Task[float] | None = None
        self._at = -FRESH_SECONDS

    async def slowness(self) -> float:
        """Return how many times slower the machine is than needed, at least 1.0. One measurement serves all who ask."""
        is_fresh = time.monotonic() - self._at < FRESH_SECONDS
        if self._measuring is None or (self._measuring.done() and not is_fresh):
            self._measuring = asyncio.create_task(self._measure())
        return await asyncio.shield(self._measuring)

    async def _measure(self) -> float:
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-I", "-S", "-c", WORK, stdout=asyncio.subprocess.PIPE
        )
        took, _ = await process.communicate()
        self._at = time.monotonic()
        return max(1.0, float(took) / WORK_SECONDS) if took else 1.0


async def _never_slow() -> float:
    return 1.0


class Patience:
    """Waits for what a host does, by the one rule that all waits have.

    Args:
        slowness: measures how many times slower than needed the machine is now.
        scale: of all limits.
    """

    def __init__(self, slowness: Callable[[], Awaitable[float]] = _never_slow, scale: float = 1.0) -> None:
        self.slowness = slowness
        self.scale = scale

    async def wait(self, awaited: Awaitable[_T], seconds: float) -> _T:
        """Return what ``awaited`` gives.

        Args:
            awaited: cancelled when it takes too long.
            seconds: the limit on a machine that is as fast as needed, before scaling.

        Raises:
            Late: it did not come, and the machine is fast.
            NothingKnown: the machine was too slow to tell.
        """
        task = asyncio.ensure_future(awaited)
        try:
            await self._until_done(task, seconds * self.scale)
            return task.result()
        finally:
            if not task.done():
                task.cancel()
                await asyncio.wait({task}, timeout=1)

    async def _until_done(self, task: asyncio.Future[_T], limit: float) -> None:
        began, slowness = time.monotonic(), 1.0
        while not (await asyncio.wait({task}, timeout=limit / PARTS))[0]:
            slowness = max(slowness, await self.slowness())
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
