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
from typing import Final, TypeAlias

Lookup: TypeAlias = Callable[[str, int], Sequence[str]]
"""Returns the addresses of a name and port, and blocks meanwhile; raises ``OSError`` when there are none."""


HANGS_SECONDS: Final = 30.0
"""For so long, a name whose servers do not answer occupies its thread."""

MOST_THREADS: Final = 1024


def threads_for(attempts: int, deadline_seconds: float) -> int:
    """Return how many threads so many attempts at once need, each of which may leave one behind that hangs."""
    return min(MOST_THREADS, attempts * (1 + math.ceil(HANGS_SECONDS / deadline_seconds)))


def system_lookup(host: str, port: int) -> Sequence[str]:
    """Return the addresses that the operating system finds."""
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return [str(sockaddr[0]) for *_, sockaddr in found]


class Resolver:
    """Looks names up in at most so many daemon threads, which end when no name waits.

    The threads of a `ThreadPoolExecutor` would delay the end of the process by a lookup that hangs. Lookups for one name are
    coalesced. A lookup that nobody waits for when it gets a thread is dropped.
    """

    def __init__(self, threads: int, lookup: Lookup = system_lookup) -> None:
        self._limit = threads
        self._lookup = lookup
        self._lock = threading.Lock()
        self._threads = 0
        self._asked: dict[str, list[Future[Sequence[str]]]] = {}  # who waits for each name, in any event loop
        self._queue: deque[tuple[str, int]] = deque()  # the names that no thread has taken yet

    async def __call__(self, host: str, port: int) -> Sequence[str]:
        """Return the addresses of a name.

        Raises:
            OSError: there are none.
            RuntimeError: this process cannot start a thread.
        """
        answer: Future[Sequence[str]] = Future()
        with self._lock:
            if host not in self._asked:
                if self._threads < self._limit:
                    # Before anything is counted or waits: it may fail.
                    threading.Thread(target=self._work, name="flowactions resolver", daemon=True).start()
                    self._threads += 1
                self._asked[host] = []
                self._queue.append((host, port))
            self._asked[host].append(answer)
        return await asyncio.wrap_future(answer)

    def _work(self) -> None:
        while (asked := self._next()) is not None:
            found: Sequence[str] | Exception
            try:
                found = self._lookup(*asked)
            except Exception as exc:  # noqa: BLE001  raised where the result is awaited
                found = exc
            with self._lock:
                waiting = self._asked.pop(asked[0])
            for answer in waiting:
                if not answer.set_running_or_notify_cancel():
                    continue
                if isinstance(found, Exception):
                    answer.set_exception(found)
                else:
                    answer.set_result(found)

    def _next(self) -> tuple[str, int] | None:
        """Take the next name that somebody waits for; ``None`` ends the thread."""
        with self._lock:
            while self._queue:
                host, port = self._queue.popleft()
                if not all(each.cancelled() for each in self._asked[host]):
                    return host, port
                del self._asked[host]
            self._threads -= 1
            return None


class CachingResolver:
    """Caches lookups of the 4,096 names used last for 30 s, also of names without an address.

    For enqueue only: delivery looks up again.
    """

    def __init__(
        self,
        resolve: Callable[[str, int], Awaitable[Sequence[str]]],
        timer: Callable[[], float] = time.monotonic,
    ) -> None:
        self._resolve = resolve
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
            self._cache[host] = self._timer() + 30.0, found
            if len(self._cache) > 4096:
                self._cache.popitem(last=False)
        self._cache.move_to_end(host)
        if isinstance(found, str):
            raise OSError(found)
        return found
