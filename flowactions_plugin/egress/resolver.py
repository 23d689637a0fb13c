"""Name lookups in threads of their own, coalesced by name.

`getaddrinfo` cannot be cancelled, and a name whose servers do not answer occupies its thread for half a minute. So lookups
do not use the event loop's own threads, and enqueue and delivery have a `Resolver` each: lookups that hang at enqueue
take no thread from deliveries.
"""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from typing import Final, NamedTuple, TypeAlias

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


class _Lookup:
    """A lookup that waits for a thread or runs, and how many callers wait for its result."""

    def __init__(self, host: str, port: int) -> None:
        self.host = host
        self.port = port
        self.answer: Future[Sequence[str]] = Future()
        self.waiting = 0


class Resolver:
    """Looks names up in a limited number of daemon threads.

    Lookups for one name are coalesced. A lookup that nobody waits for before it has a thread is dropped.

    Args:
        threads: concurrent lookups.
        lookup: what a thread calls.
    """

    def __init__(self, threads: int, lookup: Lookup = system_lookup) -> None:
        self._limit = threads
        self._lookup = lookup
        self._lookups: dict[str, _Lookup] = {}
        self._queue: dict[str, _Lookup] = {}
        self._changed = threading.Condition()
        self._threads = 0
        self._idle = 0

    async def __call__(self, host: str, port: int) -> Sequence[str]:
        """Return the addresses of a name.

        Raises:
            OSError: there are none.
        """
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[Sequence[str]] = loop.create_future()

        def settle() -> None:
            if not answer.done():  # the caller may have been cancelled
                error = lookup.answer.exception()
                if error is None:
                    answer.set_result(lookup.answer.result())
                else:
                    answer.set_exception(error)

        def deliver(_: object) -> None:
            with suppress(RuntimeError):  # the loop has ended meanwhile
                loop.call_soon_threadsafe(settle)

        lookup = self._join(host, port)
        lookup.answer.add_done_callback(deliver)
        try:
            return await answer
        finally:
            self._leave(lookup)

    def _join(self, host: str, port: int) -> _Lookup:
        with self._changed:
            lookup = self._lookups.get(host)
            if lookup is None:
                lookup = self._lookups[host] = _Lookup(host, port)
                self._queue[host] = lookup
                if self._idle >= len(self._queue):
                    self._changed.notify()
                elif self._threads < self._limit:
                    self._threads += 1
                    threading.Thread(target=self._work, name="flowactions resolver", daemon=True).start()
            lookup.waiting += 1
            return lookup

    def _leave(self, lookup: _Lookup) -> None:
        with self._changed:
            lookup.waiting -= 1
            if not lookup.waiting and self._queue.get(lookup.host) is lookup:
                del self._queue[lookup.host], self._lookups[lookup.host]

    def _work(self) -> None:
        while (lookup := self._next()) is not None:
            try:
                found = self._lookup(lookup.host, lookup.port)
            except Exception as exc:  # noqa: BLE001  raised where the result is awaited
                self._forget(lookup)
                lookup.answer.set_exception(exc)
            else:
                self._forget(lookup)
                lookup.answer.set_result(found)

    def _next(self) -> _Lookup | None:
        """Wait for the next lookup; ``None`` ends the thread."""
        with self._changed:
            self._idle += 1
            self._changed.wait_for(lambda: self._queue, IDLE_SECONDS)
            self._idle -= 1
            if self._queue:
                return self._queue.pop(next(iter(self._queue)))
            self._threads -= 1
            return None

    def _forget(self, lookup: _Lookup) -> None:
        with self._changed:
            del self._lookups[lookup.host]


class _Cached(NamedTuple):
    """The result of a lookup, and until when it is valid."""

    until: float
    addresses: Sequence[str]
    error: str | None


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
        self._cache: OrderedDict[str, _Cached] = OrderedDict()

    async def __call__(self, host: str, port: int) -> Sequence[str]:
        """Return the addresses of a name.

        Raises:
            OSError: there are none.
        """
        cached = self._cache.get(host)
        if cached is None or cached.until <= self._timer():
            cached = await self._look_up(host, port)
        self._cache.move_to_end(host)
        if cached.error is not None:
            raise OSError(cached.error)
        return cached.addresses

    async def _look_up(self, host: str, port: int) -> _Cached:
        addresses: Sequence[str] = ()
        error = None
        try:
            addresses = await self._resolve(host, port)
        except OSError as exc:
            error = str(exc)
        cached = self._cache[host] = _Cached(self._timer() + self._seconds, addresses, error)
        while len(self._cache) > self._size:
            self._cache.popitem(last=False)
        return cached
