"""How long a host is waited for: one that hangs is told apart from one that is slow, and from one on a slow machine.

No limit is a measure of speed. The machine is measured (`machine`) in each wait that is not short: when the limit of one on
a fast machine has passed, the host has failed. On a slow machine a second counts for as much less as was measured, until the
limit is full, and meanwhile the host is asked for signs that it hangs. One that hangs shows some, however slow the machine is: each look at it ends with an
answer of its event loop or without, and enough of either are a sign once all of the time is over.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final, Literal, NamedTuple, Protocol, TypeAlias, TypeVar

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
HUNG_CALL_SECONDS: Final = 5.0
"""How long a call may take once several have hung: such a host must not take minutes to be told."""
HUNG_CALLS: Final = 3
SHORT_EFFECT_SECONDS: Final = 5.0
"""The wait for an effect, once `EXPIRED_BEFORE_SHORT` in a row have not come."""
EXPIRED_BEFORE_SHORT: Final = 3

SLOW: Final = 1.5
"""How many times slower than needed a machine is that counts as slow."""
MOST: Final = 20.0
"""By how much a limit grows at the most."""
ECHOES: Final = 20
"""How many answers of a host, while it does not do what is waited for, show that it hangs; likewise how many looks without one."""
IDLE_SECONDS: Final = 30.0
"""For how long a host that hangs uses no processor time, while the kit's own app answers."""
IDLE_USE_SECONDS: Final = 0.01
"""Processor time that counts as none: clocks of processes go by hundredths."""
LOOKS: Final = 2 * ECHOES
"""How often a host is looked at while its limit grows."""
PARTS: Final = 4
"""How often the machine is measured until the limit: it may have been slow before, and be fast then."""
SILENT: Final = 100.0
"""The slowness of a machine on which the kit's own app does not answer."""


class Limits(NamedTuple):
    """How long a host may take; no measure of speed, but the end of waiting for one that hangs.

    Attributes:
        start: seconds until the app serves.
        stop: seconds until it has stopped.
        call: seconds until a method of the driver has returned.
        hung_stop: seconds until it has stopped, after something hung.
        hung_call: as ``call``, once `HUNG_CALLS` calls have hung.
    """

    start: float = START_SECONDS
    stop: float = STOP_SECONDS
    call: float = CALL_SECONDS
    hung_stop: float = HUNG_STOP_SECONDS
    hung_call: float = HUNG_CALL_SECONDS


LIMITS: Final = Limits()


class Waiting:
    """For how long one host is waited for: less, once it has hung, and as before when it has answered again.

    Args:
        limits: while nothing has hung.
    """

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.hung = 0

    @property
    def call(self) -> float:
        """Seconds for a call."""
        return self.limits.call if self.hung < HUNG_CALLS else min(self.limits.call, self.limits.hung_call)

    @property
    def stop(self) -> float:
        """Seconds for stopping."""
        return min(self.limits.stop, self.limits.hung_stop) if self.hung else self.limits.stop


class EffectTimeout:
    """For how long effects are waited for: less, once several in a row have not come.

    A host in which nothing arrives fails every check that waits; it must not take minutes to say so.

    Args:
        seconds: the wait while nothing is amiss.
    """

    def __init__(self, seconds: float = EFFECT_SECONDS) -> None:
        self._seconds = seconds
        self._expired = 0

    @property
    def seconds(self) -> float:
        """How long to wait now."""
        short = self._expired >= EXPIRED_BEFORE_SHORT
        return min(self._seconds, SHORT_EFFECT_SECONDS) if short else self._seconds

    @property
    def stop_seconds(self) -> float:
        """How long to wait for a host to stop."""
        return self._seconds * STOP_SECONDS / EFFECT_SECONDS

    def came(self) -> None:
        """Note that an effect came."""
        self._expired = 0

    def expired(self) -> None:
        """Note that an effect did not come."""
        self._expired += 1


class Seen(NamedTuple):
    """What is known of a wait.

    Attributes:
        waited: for how long, in seconds.
        limit: seconds on a machine that is as fast as needed.
        had: how much time that was on a machine that is as fast as needed, in seconds: each second counts by how slow the
            machine was then. At least a twentieth (`MOST`) of ``waited``.
        slowness: how many times slower than needed the machine was, at the worst.
        echoes: how often the host has answered (`Signs.echoes`) since the limit passed.
        idle: for how long the host has used no processor time while the kit's own app answered, in seconds.
        mute: at how many looks since then the host has not answered, though the kit's own app did.
        is_looked_at: whether the host shows, at each look, the one or the other.
        is_one_thing: whether what is waited for is one thing that a host does while it serves: it neither starts nor stops, and
            it is no effect and no whole check.
    """

    waited: float
    limit: float
    had: float
    slowness: float = 1.0
    echoes: int = 0
    idle: float = 0.0
    mute: int = 0
    is_looked_at: bool = True
    is_one_thing: bool = True


Verdict: TypeAlias = Literal["wait", "slow", "hangs", "unknown"]


def judged(seen: Seen) -> Verdict:
    """Return what a wait shows.

    Returns:
        ``wait``: nothing yet. ``slow``: the host took too long, and the machine is fast. ``hangs``: it would not have
        ended on a fast machine either. ``unknown``: the machine was too slow to tell.
    """
    if seen.waited < seen.limit:
        return "wait"
    if seen.slowness < SLOW:
        return "slow"
    has_time = seen.had < seen.limit
    if seen.idle >= IDLE_SECONDS:
        return "hangs"
    # An event loop answers a host that starts or stops slowly, or is asked for many things, too: that counts only when all
    # of its time is over.
    if seen.echoes >= ECHOES and (seen.is_one_thing or not has_time):
        return "hangs"
    if seen.mute >= ECHOES and not has_time:
        return "hangs"
    # A host is waited for until it has shown a sign of hanging long enough.
    return "wait" if has_time or seen.is_looked_at else "unknown"


class Late(TimeoutError):
    """What was waited for did not come.

    Attributes:
        seconds: the limit, or for how long a host was waited for that hangs.
        how: what is known of why, for a message; empty on a fast machine.
    """

    def __init__(self, seconds: float, how: str = "") -> None:
        super().__init__(f"not within {seconds:g} seconds{how}")
        self.seconds = seconds
        self.how = how


class Signs(Protocol):
    """What shows whether a host still does something."""

    async def echoes(self) -> bool:
        """Return whether its echo route answers; where it does not serve, whether its event loop does."""
        ...

    @property
    def serves(self) -> bool:
        """Whether it serves requests: it neither starts nor stops."""
        ...

    def processor_seconds(self) -> float | None:
        """Return the processor time that it has used; ``None`` where nobody can say."""
        ...


async def _never_slow() -> float:
    return 1.0


class Patience:
    """Waits for what a host does, by the one rule that all waits have.

    Args:
        slowness: measures how many times slower than needed the machine is now.
        scale: of all limits.
        part_seconds: for how long a measurement counts: to the end of the part of time in which it was made.
    """

    def __init__(
        self,
        slowness: Callable[[], Awaitable[float]] = _never_slow,
        scale: float = 1.0,
        part_seconds: float = 1.0,
    ) -> None:
        self.slowness = slowness
        self.scale = scale
        self._part_seconds = part_seconds
        self._measured: dict[int, float] = {}
        """Part of time → what was measured in it at the worst."""

    async def wait(
        self, awaited: Awaitable[_T], seconds: float, host: Signs | None = None, *, is_one_thing: bool = True
    ) -> _T:
        """Return what ``awaited`` gives.

        Args:
            awaited: cancelled when it takes too long.
            seconds: the limit on a machine that is as fast as needed, before scaling.
            host: whose signs are looked at; ``None``: no host can be blamed for a slow machine.
            is_one_thing: whether the host is asked for one thing; a whole check asks for many, and an effect comes after others.

        Raises:
            Late: it did not come: the host hangs, or is slow.
            NothingKnown: the machine was too slow to tell.
        """
        task = asyncio.ensure_future(awaited)
        try:
            await self._until_done(task, seconds * self.scale, host, is_one_thing=is_one_thing)
            return task.result()
        finally:
            if not task.done():
                task.cancel()
                await asyncio.wait({task}, timeout=1)

    async def _until_done(
        self, task: asyncio.Future[_T], limit: float, host: Signs | None, *, is_one_thing: bool
    ) -> None:
        loop = asyncio.get_running_loop()
        began = loop.time()
        pause, echoes, mute = limit / PARTS, 0, 0
        had, last = 0.0, began
        used: float | None = None
        idle_since = began
        while True:
            await asyncio.wait({task}, timeout=pause)
            if task.done():
                return
            now, part = await self.slowness(), self._part(loop.time())
            self._measured[part] = max(now, self._measured.get(part, now))
            # Also what was measured in waits within this one: it has made them longer.
            slowness = self._since(began)
            had += (loop.time() - last) / min(MOST, self._since(last))
            last = loop.time()
            is_late = last - began >= limit
            idle, answers = 0.0, now < SILENT
            if host is not None and slowness >= SLOW and is_late:
                echoing = await host.echoes()
                echoes += echoing
                mute += answers and not echoing
                spent = host.processor_seconds()
                if spent is None or used is None or spent - used > IDLE_USE_SECONDS or not answers:
                    used, idle_since = spent, loop.time()
                else:
                    idle = loop.time() - idle_since
            if task.done():
                return
            seen = Seen(
                loop.time() - began,
                limit,
                had,
                slowness,
                echoes,
                idle,
                mute,
                is_looked_at=host is not None and answers,
                is_one_thing=is_one_thing and (host is None or host.serves),
            )
            match judged(seen):
                case "slow":
                    raise Late(seen.limit)
                case "hangs":
                    raise Late(round(seen.waited), _why(seen))
                case "unknown":
                    raise NothingKnown(
                        f"nothing is known: this machine was {slowness:.0f} times slower than needed, "
                        f"and {seen.waited:.0f} seconds were not enough"
                    )
            left = limit - seen.waited
            pause = (
                min(limit / PARTS, left) if left > 0 else min(1.0, limit * (min(slowness, MOST) - 1) / LOOKS)
            )
            pause = max(0.05, pause)

    def _since(self, moment: float) -> float:
        """Return how slow the machine was since a moment, at the worst."""
        return max(value for at, value in self._measured.items() if at >= self._part(moment))

    def _part(self, moment: float) -> int:
        return int(moment / self._part_seconds)


def _why(seen: Seen) -> str:
    if seen.idle >= IDLE_SECONDS:
        return f", and it used no processor time for {seen.idle:.0f} seconds: it hangs"
    if seen.echoes >= ECHOES:
        return f", while it answered the kit {seen.echoes} times: it hangs"
    return f", and its event loop did not answer the kit {seen.mute} times: it hangs"
