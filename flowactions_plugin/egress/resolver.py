"""Looking names up without holding anybody up: threads of its own, and one lookup a name.

`getaddrinfo` cannot be cancelled, and a name whose servers are silent holds its thread for half a minute. So lookups
do not use the event loop's own threads, and enqueue and delivery have a `Resolver` each: names that hang at enqueue
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
"""Gives the addresses of a name and port, and blocks meanwhile; raises ``OSError`` when there are none."""

IDLE_SECONDS: Final = 10.0
"""How long a thread waits for the next lookup before it ends."""

CACHE_SECONDS: Final = 30.0
CACHED_NAMES: Final = 4096


def system_lookup(host: str, port: int) -> Sequence[str]:
    """Ask the operating system."""
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return [str(sockaddr[0]) for *_, sockaddr in found]


class _Lookup:
    """A lookup that is waiting for a thread or running, and how many wait for its answer."""

    def __init__(self, host: str, port: int) -> None:
        self.host = host
        self.port = port
        self.answer: Future[Sequence[str]] = Future()
        self.waiting = 0


class Resolver:
    """Looks names up in at most so many threads, which do not keep the process from ending.

    Lookups for one name are coalesced. One that nobody waits for any more before it has a thread is dropped.

    Args:
        threads: lookups at once.
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
        """Give the addresses of a name.

        Raises:
            OSError: there are none.
        """
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[Sequence[str]] = loop.create_future()

        def settle() -> None:
            if not answer.done():  # the caller may have given up
                error = lookup.answer.exception()
                if error is None:
                    answer.set_result(lookup.answer.result())
                else:
                    answer.set_exception(error)

        def hand_over(_: object) -> None:
            with suppress(RuntimeError):  # the loop has ended meanwhile
                loop.call_soon_threadsafe(settle)

        lookup = self._join(host, port)
        lookup.answer.add_done_callback(hand_over)
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
            except Exception as exc:  # noqa: BLE001  handed to whoever asked
                self._forget(lookup)
                lookup.answer.set_exception(exc)
            else:
                self._forget(lookup)
                lookup.answer.set_result(found)

    def _next(self) -> _Lookup | None:
        """Wait for a lookup; ``None`` ends the thread."""
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
    """What a lookup gave, and until when that holds."""

    until: float
    addresses: Sequence[str]
    error: str | None


class CachingResolver:
    """Keeps answers for a while, also that a name has no address. For enqueue only: delivery looks anew.

    Args:
        resolve: asked for what is not known.
        seconds: how long an answer holds.
        size: how many names are kept, those used last.
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
        self._known: OrderedDict[str, _Cached] = OrderedDict()

    async def __call__(self, host: str, port: int) -> Sequence[str]:
        """Give the addresses of a name.

        Raises:
            OSError: there are none.
        """
        known = self._known.get(host)
        if known is None or known.until <= self._timer():
            known = await self._ask(host, port)
        self._known.move_to_end(host)
        if known.error is not None:
            raise OSError(known.error)
        return known.addresses

    async def _ask(self, host: str, port: int) -> _Cached:
        addresses: Sequence[str] = ()
        error = None
        try:
            addresses = await self._resolve(host, port)
        except OSError as exc:
            error = str(exc)
        known = self._known[host] = _Cached(self._timer() + self._seconds, addresses, error)
        while len(self._known) > self._size:
            self._known.popitem(last=False)
        return known
