"""Looking names up without holding anybody up: threads of its own, and one question a name."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

Lookup: TypeAlias = Callable[[str, int], Sequence[str]]
"""Gives the addresses of a name and port, and blocks meanwhile; raises ``OSError`` when there are none."""


def system_lookup(host: str, port: int) -> Sequence[str]:
    """Ask the operating system."""
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return [str(sockaddr[0]) for *_, sockaddr in found]


class Resolver:
    """Looks names up in threads.

    A lookup cannot be cancelled, and a name whose servers are silent holds its thread for half a minute. So the
    threads are nobody else's, whoever asks for a name that is being looked up waits for the same answer, and
    they do not keep the process from ending.

    Args:
        threads: lookups at once.
        lookup: what a thread calls.
    """

    def __init__(self, threads: int, lookup: Lookup = system_lookup) -> None:
        self._free = asyncio.Semaphore(threads)
        self._lookup = lookup
        self._asked: dict[tuple[str, int], asyncio.Task[Sequence[str]]] = {}

    async def __call__(self, host: str, port: int) -> Sequence[str]:
        """Give the addresses of a name.

        Raises:
            OSError: there are none.
        """
        key = (host, port)
        asked = self._asked.get(key)
        if asked is None:
            asked = self._asked[key] = asyncio.create_task(self._ask(host, port))
            asked.add_done_callback(lambda _: self._asked.pop(key, None))
        # Whoever gives up leaves the question to the others.
        return await asyncio.shield(asked)

    async def _ask(self, host: str, port: int) -> Sequence[str]:
        async with self._free:
            loop = asyncio.get_running_loop()
            answer: asyncio.Future[Sequence[str]] = loop.create_future()

            def settle(setter: Callable[[Any], None], value: object) -> None:
                if not answer.done():
                    setter(value)

            def run() -> None:
                try:
                    told = answer.set_result, self._lookup(host, port)
                except Exception as exc:  # noqa: BLE001  handed to whoever asked
                    told = answer.set_exception, exc  # type: ignore[assignment]
                try:
                    loop.call_soon_threadsafe(settle, *told)
                except RuntimeError:
                    return  # the loop has ended meanwhile

            threading.Thread(target=run, name=f"resolve {host}", daemon=True).start()
            return await answer
