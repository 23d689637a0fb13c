"""Name lookups in threads of their own, coalesced by name.

`getaddrinfo` cannot be cancelled, and a name whose servers do not answer occupies its thread for half a minute. So lookups
do not use the event loop's own threads, and enqueue and delivery have a `Resolver` each: lookups that hang at enqueue
take no thread from deliveries.
"""

from __future__ import annotations

import asyncio
import math
import socket
import threading
import time
from collections import OrderedDict, deque
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import Future
from typing import Final, TypeAlias, cast

Lookup: TypeAlias = Callable[[str, int], Sequence[str]]
"""Returns the addresses of a name and port, and blocks meanwhile; raises ``OSError`` when there are none."""

IDLE_SECONDS: Final = 10.0
"""How long a thread waits for the next lookup before it ends."""

CACHE_SECONDS: Final = 30.0
CACHED_NAMES: Final = 4096


def system_lookup(host: str, port: int) -> Sequence[str]:
    """Return the addresses that the operating system finds."""
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return [str(sockaddr[0]) for *_, sockaddr in found]


class Resolver:
    """Looks names up in a limited number of daemon threads: a lookup that hangs does not delay the end of the process.

    Lookups for one name are coalesced. A lookup that nobody waits for when it gets a thread is dropped.

    Args:
        threads: concurrent lookups.
        lookup: what a thread calls.
    """

    def __init__(self, threads: int, lookup: Lookup = system_lookup) -> None:
        self._limit = threads
        self._lookup = lookup
        self._waiting: dict[str, list[Future[Sequence[str]]]] = {}
        self._queue: deque[tuple[str, int]] = deque()
        self._changed = threading.Condition()
        self._threads = 0
        self._idle = 0

    async def __call__(self, host: str, port: int) -> Sequence[str]:
        """Return the addresses of a name.

        Raises:
            OSError: there are none.
            RuntimeError: this process cannot start a thread.
        """
        answer: Future[Sequence[str]] = Future()
        with self._changed:
            if host not in self._waiting:
                if self._idle > len(self._queue):
                    self._changed.notify()
                elif self._threads < self._limit:
                    # Before anything is counted or waits: it may fail.
                    threading.Thread(target=self._work, name="flowactions resolver", daemon=True).start()
                    self._threads += 1
                self._waiting[host] = []
                self._queue.append((host, port))
            self._waiting[host].append(answer)
        return await asyncio.wrap_future(answer)

    def _work(self) -> None:
        while (asked := self._next()) is not None:
            found, error = cast("Sequence[str]", ()), None
            try:
                found = self._lookup(*asked)
            except Exception as exc:  # noqa: BLE001  raised where the result is awaited
                error = exc
            with self._changed:
                waiting = self._waiting.pop(asked[0])
            for answer in waiting:
                if not answer.set_running_or_notify_cancel():
                    continue
                if error is None:
                    answer.set_result(found)
                else:
                    answer.set_exception(error)

    def _next(self) -> tuple[str, int] | None:
        """Wait for the next lookup; ``None`` ends the thread."""
        with self._changed:
            while True:
                self._idle += 1
                self._changed.wait_for(lambda: self._queue, IDLE_SECONDS)
                self._idle -= 1
                if not self._queue:
                    self._threads -= 1
                    return None
                host, port = self._queue.popleft()
                if not all(each.cancelled() for each in self._waiting[host]):
                    return host, port
                del self._waiting[host]


class CachingResolver:
    """Caches lookups, also of names without an address. For enqueue only: delivery looks up again.

    Args:
        resolve: looks up what is not cached.
        seconds: how long a result is valid.
        size: how many names are kept, the most recently used ones.
        timer: monotonic seconds.
    """

    def __init__(
        self,
        resolve: Callable[[str, int], Awaitable[Sequence[str]]],
        *,
        seconds: float = CACHE_SECONDS,
        size: int = CACHED_NAMES,
        timer: Callable[[], float] = time.monotonic,
    ) -> None:
        self._resolve = resolve
        self._seconds = seconds
        self._size = size
        self._timer = timer
        self._cache: OrderedDict[str, tuple[float, Sequence[str] | str]] = OrderedDict()

    async def __call__(self, host: str, port: int) -> Sequence[str]:
        """Return the addresses of a name.

        Raises:
            OSError: there are none.
        """
        until, found = self._cache.get(host, (-math.inf, ""))
        if until <= self._timer():
            try:
                found = await self._resolve(host, port)
            except OSError as exc:
                found = str(exc)
            self._cache[host] = self._timer() + self._seconds, found
            if len(self._cache) > self._size:
                self._cache.popitem(last=False)
        self._cache.move_to_end(host)
        if isinstance(found, str):
            raise OSError(found)
        return found
