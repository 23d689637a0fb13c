"""Notifications between processes on PostgreSQL: a debounced NOTIFY for workers elsewhere, a hint and no more."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Final

from flowactions_plugin.errors import StorageUnavailable

log = logging.getLogger("flowactions.outbox")

CHANNEL: Final = "flowactions_outbox"

DEBOUNCE_SECONDS: Final = 0.005
"""The least time between two notifications: one for each enqueue would limit how many there can be."""

RELISTEN_SECONDS: Final = 5.0


class Notifier:
    """Notifies workers of other processes that something was enqueued.

    Args:
        send: sends a notification; may raise `StorageUnavailable`, since workers also poll.
    """

    def __init__(self, send: Callable[[], Awaitable[None]]) -> None:
        self._send = send
        self._sending: asyncio.Task[None] | None = None
        self._again = False
        self._open = False

    async def __aenter__(self) -> None:
        self._open = True

    async def __aexit__(self, *_exc: object) -> None:
        """Stop sending: the commit of a host's transaction may be reported after this."""
        self._open = False
        if self._sending is not None:
            self._sending.cancel()
            await asyncio.wait({self._sending})

    def notify(self) -> None:
        """Have a notification sent: at once, or together with others of the same moment."""
        self._again = self._open
        if self._open and self._sending is None:
            self._sending = asyncio.create_task(self._send_debounced())

    async def _send_debounced(self) -> None:
        try:
            while self._again:
                self._again = False
                with suppress(StorageUnavailable):
                    await self._send()
                await asyncio.sleep(DEBOUNCE_SECONDS)
        finally:
            self._sending = None


class Listener:
    """Receives the notifications of other processes.

    Args:
        listen: calls ``on_notify`` for each notification; returns or raises `StorageUnavailable` when it lost its
            connection.
        on_notify: called also when a notification may have been missed.
    """

    def __init__(self, listen: Callable[[], Awaitable[None]], on_notify: Callable[[], None]) -> None:
        self._listen = listen
        self._on_notify = on_notify

    async def run(self) -> None:
        """Listen until cancelled, again and again when the connection is lost."""
        while True:
            try:
                await self._listen()
            except StorageUnavailable as exc:
                log.debug(
                    "not listening for new deliveries, only polling: %s", exc, extra={"event": "listener.lost"}
                )
            await asyncio.sleep(RELISTEN_SECONDS)
            self._on_notify()
