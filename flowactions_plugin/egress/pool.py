"""Keeps idle connections, says how long one may be used again, and bounds how many are open."""

from __future__ import annotations

import asyncio
import re
import resource
from collections import OrderedDict
from collections.abc import Callable
from typing import Final

from flowactions_plugin.egress.connection import Connection

LONGEST_IDLE_SECONDS: Final = 60.0
"""How long a connection may be idle before it is used again, whatever the receiver has said."""

LIFETIME_SECONDS: Final = 60.0
"""The age from which no request goes out on a connection, so that a name's new address is used."""

SWEEP_SECONDS: Final = 5.0
"""How often connections are closed that have become too old to be used again. Age is checked at each use anyway."""

WINDOW_SECONDS: Final = 600.0
"""Two repeated requests within this time make a destination one that closes early, for as long again; so does one lost path."""

_KEEP_ALIVE: Final = re.compile(rb"\nkeep-alive:([^\r\n]*)", re.IGNORECASE)
_PARAMETER: Final = re.compile(rb"(?:^|[\s,;])(timeout|max)\s*=\s*\"?0*([0-9]+)", re.IGNORECASE)


def most_connections(slots: int) -> int:
    """Return how many connections may be open at once, for so many attempts at once; idle connections are included.

    Ten for each attempt, so that connections are kept where there are more destinations than slots; but at most half of the
    process's descriptors, and at least one for each attempt.
    """
    descriptors, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = slots * 10
    if descriptors != resource.RLIM_INFINITY:
        wanted = min(wanted, descriptors // 2)
    return max(slots, wanted)


def idle_seconds(head: bytes) -> float:
    """Return how long a connection may be idle after a response with this head: ``Keep-Alive: timeout=N`` less a second.

    At most 60 s, and 30 s if it says nothing; 0: it is not to be used again. What is not a number counts as not there; of
    several, the smallest counts.
    """
    if b"keep-alive:" not in head.lower():
        return 30.0
    limits = []
    for value in _KEEP_ALIVE.findall(head):
        for name, digits in _PARAMETER.findall(value):
            number = int(digits[:5])  # five digits are above every limit
            if name.lower() == b"timeout":
                limits.append(min(max(number - 1.0, 0.0), LONGEST_IDLE_SECONDS))
            elif number == 0:
                return 0.0
    return min(limits, default=30.0)


class Pool:
    """The connections of one transport.

    Args:
        limit: open at once, idle ones included.
        clock: seconds of a clock that is never set.

    Attributes:
        buffer: what all of them read to, in turn: what came is used up before the next read. Those of another event loop
            read at the same time, in another thread, so they have another buffer.
    """

    def __init__(self, limit: int, clock: Callable[[], float]) -> None:
        self.buffer = memoryview(bytearray(16 * 1024))
        self._places = asyncio.Semaphore(limit)
        self._waiting = 0  # requests, for a place
        self._clock = clock
        # When requests to 4,096 destinations were repeated last, and whether that was the second time of two close together.
        self._repeated: OrderedDict[str, tuple[float, bool]] = OrderedDict()
        self._idle: dict[str, dict[Connection, None]] = {}  # by destination, in the order of their last use
        self._unused: OrderedDict[Connection, None] = OrderedDict()  # the idle ones, the longest idle first
        self._open: set[Connection] = set()
        self._sweep: asyncio.TimerHandle | None = None

    def take(self, key: str) -> Connection | None:
        """Return the idle connection to a destination that was used last, if there is one that is fit for a request."""
        now = self._clock()
        while idle := self._idle.get(key):
            connection = next(reversed(idle))
            self._leave(connection)
            if self._is_fit(connection, now) and connection.is_quiet():
                return connection
            self._close(connection)
        return None

    async def reserve(self, connection: Connection) -> None:
        """Wait until one more connection may be opened; it has its place from then on, until `closed`."""
        if self._places.locked() and self._unused:
            self._close(next(iter(self._unused)))
        self._waiting += 1
        try:
            await self._places.acquire()
        finally:
            self._waiting -= 1
        self._open.add(connection)

    def released(self, connection: Connection, head: bytes) -> None:
        """Keep a connection for the next request, if there may be one by the head of its last response."""
        now = self._clock()
        connection.fit_until = min(connection.opened_at + LIFETIME_SECONDS, now + idle_seconds(head))
        if self._waiting or not self._is_fit(connection, now):  # it makes room for those who wait
            self._close(connection)
            return
        self._idle.setdefault(connection.key, {})[connection] = None
        self._unused[connection] = None
        if self._sweep is None:
            self._sweep_later()

    def closed_early(self, key: str, *, is_certain: bool = False) -> None:
        """Record that a kept connection to a destination did not take a request; ``is_certain``: nor would its siblings."""
        now = self._clock()
        before = self._repeated.pop(key, None)
        self._repeated[key] = (now, is_certain or (before is not None and now - before[0] < WINDOW_SECONDS))
        if len(self._repeated) > 4096:
            self._repeated.popitem(last=False)

    def keeps(self, key: str) -> bool:
        """Return whether connections to a destination are used again: not while it closes them early."""
        at, is_early = self._repeated.get(key, (0.0, False))
        return not is_early or self._clock() - at >= WINDOW_SECONDS

    def closed(self, connection: Connection) -> None:
        """Forget a connection that was not opened, is closed, or counts as closed before the event loop says so."""
        if connection in self._unused:
            self._leave(connection)
        if connection in self._open:
            self._open.remove(connection)
            self._places.release()

    def close_unused(self) -> None:
        """Close every idle connection: descriptors are lacking."""
        for connection in list(self._unused):
            self._close(connection)

    def close(self) -> None:
        """Close every connection."""
        if self._sweep is not None:
            self._sweep.cancel()
        for connection in list(self._open):
            self._close(connection)

    def _is_fit(self, connection: Connection, now: float) -> bool:
        """Return whether a request may go out on an idle connection, as far as its age and its destination say."""
        return connection.may_begin and now < connection.fit_until and self.keeps(connection.key)

    def _close(self, connection: Connection) -> None:
        self.closed(connection)
        connection.close()

    def _leave(self, connection: Connection) -> None:
        """Take a connection out of the idle ones."""
        del self._unused[connection]
        idle = self._idle[connection.key]
        del idle[connection]
        if not idle:
            del self._idle[connection.key]

    def _sweep_later(self) -> None:
        loop = asyncio.get_running_loop()
        self._sweep = loop.call_later(SWEEP_SECONDS, self._close_old)

    def _close_old(self) -> None:
        self._sweep = None
        now = self._clock()
        for connection in list(self._unused):
            if not self._is_fit(connection, now):
                self._close(connection)
        if self._unused:
            self._sweep_later()
