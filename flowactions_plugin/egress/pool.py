"""Keeps idle connections, and bounds how many are open."""

from __future__ import annotations

import asyncio
import resource
from collections import OrderedDict
from collections.abc import Callable
from typing import Final

from flowactions_plugin.egress.connection import READ_BYTES, Connection
from flowactions_plugin.egress.reuse import LIFETIME_SECONDS, EarlyClosers

SWEEP_SECONDS: Final = 5.0
"""How often connections are closed that have become too old to be used again. Age is checked at each use anyway."""

CONNECTIONS_A_SLOT: Final = 10
"""How many connections are open for each attempt that may be made at once. With one for each, none would be kept where there
are more destinations than slots."""


def most_connections(slots: int) -> int:
    """Return how many connections may be open at once: half of the process's descriptors at the most, idle ones included.

    Args:
        slots: how many attempts are made at once; each has its connection in any case.
    """
    descriptors, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = slots * CONNECTIONS_A_SLOT
    if descriptors != resource.RLIM_INFINITY:
        wanted = min(wanted, descriptors // 2)
    return max(slots, wanted)


class Pool:
    """The connections of one transport.

    Args:
        limit: open at once, idle ones included.
        clock: seconds of a clock that is never set.

    Attributes:
        buffer: what they read to, in turn.
    """

    def __init__(self, limit: int, clock: Callable[[], float]) -> None:
        self.buffer = memoryview(bytearray(READ_BYTES))
        self._limit = limit
        self._clock = clock
        self._early_closers = EarlyClosers()
        self._idle: dict[str, list[Connection]] = {}
        self._unused: OrderedDict[Connection, None] = OrderedDict()  # the idle ones, the longest idle first
        self._open: set[Connection] = set()
        self._opening = 0
        self._waiting: OrderedDict[asyncio.Future[None], None] = OrderedDict()
        self._sweep: asyncio.TimerHandle | None = None

    def take(self, key: str) -> Connection | None:
        """Return the idle connection to a destination that was used last, if there is one that is fit for a request."""
        idle = self._idle.get(key)
        if idle is None:
            return None
        now = self._clock()
        while idle:
            connection = idle.pop()
            del self._unused[connection]
            if not idle:
                del self._idle[key]
            if self._is_fit(connection, now) and connection.is_quiet():
                return connection
            self._close(connection)
        return None

    async def reserve(self) -> None:
        """Wait until one more connection may be opened; each call is followed by `opened` or `failed`."""
        while len(self._open) + self._opening >= self._limit and not self._close_oldest():
            turn = asyncio.get_running_loop().create_future()
            self._waiting[turn] = None
            try:
                await turn
            except asyncio.CancelledError:
                self._waiting.pop(turn, None)  # a release may have passed over it
                if not turn.cancelled():
                    self._wake()
                raise
        self._opening += 1

    def opened(self, connection: Connection) -> None:
        """Count a connection that was reserved, and is open now."""
        self._opening -= 1
        connection.opened_at = self._clock()
        if connection.is_open:
            self._open.add(connection)
        else:
            self._wake()

    def failed(self) -> None:
        """Release a reservation."""
        self._opening -= 1
        self._wake()

    def released(self, connection: Connection) -> None:
        """Keep a connection for the next request, if there may be one."""
        connection.idle_since = now = self._clock()
        if not self._is_fit(connection, now):
            self._close(connection)
            return
        self._idle.setdefault(connection.key, []).append(connection)
        self._unused[connection] = None
        if self._sweep is None:
            self._sweep_later()
        self._wake()

    def closed_early(self, key: str) -> None:
        """Record that a kept connection to a destination was closed just as a request went out on it."""
        self._early_closers.record(key, self._clock())

    def closed(self, connection: Connection) -> None:
        """Forget a connection that was closed."""
        self._forget(connection)
        self._wake()

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
        return (
            connection.may_begin
            and now - connection.idle_since < connection.idle_seconds
            and now - connection.opened_at < LIFETIME_SECONDS
            and not self._early_closers.includes(connection.key, now)
        )

    def _close(self, connection: Connection) -> None:
        self._forget(connection)
        connection.close()

    def _forget(self, connection: Connection) -> None:
        self._open.discard(connection)
        if connection not in self._unused:
            return
        del self._unused[connection]
        idle = self._idle[connection.key]
        idle.remove(connection)
        if not idle:
            del self._idle[connection.key]

    def _close_oldest(self) -> bool:
        """Make room among the idle connections; return whether there was one."""
        if not self._unused:
            return False
        self._close(next(iter(self._unused)))
        return True

    def _wake(self) -> None:
        while self._waiting:
            turn, _ = self._waiting.popitem(last=False)
            if not turn.done():
                turn.set_result(None)
                return

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
