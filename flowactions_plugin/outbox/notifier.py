"""How a process that enqueues wakes workers in others: a debounced NOTIFY on PostgreSQL, a hint and no more."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Final

from flowactions_plugin.errors import StorageUnavailable

log = logging.getLogger("flowactions.outbox")

CHANNEL: Final = "flowactions_outbox"

DEBOUNCE_SECONDS: Final = 0.02
"""How far apart notifications are at the least: one for each enqueue would be a ceiling for all of them."""

RELISTEN_SECONDS: Final = 5.0


class Bell:
    """Rings for workers elsewhere.

    Args:
        notify: tells them; may raise `StorageUnavailable`, for they look by themselves anyway.
    """

    def __init__(self, notify: Callable[[], Awaitable[None]]) -> None:
        self._notify = notify
        self._ringing: asyncio.Task[None] | None = None
        self._again = False
        self._open = False

    async def __aenter__(self) -> None:
        self._open = True

    async def __aexit__(self, *_exc: object) -> None:
        """Ring no more: a host's commit is heard of with a delay, and may be the last."""
        self._open = False
        if self._ringing is not None:
            self._ringing.cancel()
            await asyncio.wait({self._ringing})

    def ring(self) -> None:
        """Tell them soon: at once, or together with others that ring within a moment."""
        self._again = self._open
        if self._open and self._ringing is None:
            self._ringing = asyncio.create_task(self._ring())

    async def _ring(self) -> None:
        try:
            while self._again:
                self._again = False
                with suppress(StorageUnavailable):
                    await self._notify()
                await asyncio.sleep(DEBOUNCE_SECONDS)
        finally:
            self._ringing = None


async def keep_listening(listen: Callable[[], Awaitable[None]], heard: Callable[[], None]) -> None:
    """Listen until cancelled, again and again when the connection is lost.

    Args:
        listen: returns or raises `StorageUnavailable` when it hears no more.
        heard: called when something may have been missed.
    """
    while True:
        try:
            await listen()
        except StorageUnavailable as exc:
            log.debug("not listening for new deliveries, only looking: %s", exc)
        await asyncio.sleep(RELISTEN_SECONDS)
        heard()
