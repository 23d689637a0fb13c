"""Notifications between processes on PostgreSQL: a debounced NOTIFY for other workers, best effort.

A notification names the organizations of what was enqueued, so that a busy worker finds their rows without a search.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import suppress
from typing import Final

import msgspec

from flowactions_plugin.errors import StorageUnavailable

log = logging.getLogger("flowactions.outbox")

CHANNEL: Final = "flowactions_outbox"

DEBOUNCE_SECONDS: Final = 0.001
"""The least time between two notifications: one for each enqueue would limit how many there can be."""

CLOSE_SECONDS: Final = 1.0
"""How long a process that stops waits for its last notification. Without it, what was enqueued last waits for a poll."""

RELISTEN_SECONDS: Final = 5.0

PAYLOAD_BYTES: Final = 7000
"""The most that a notification carries; PostgreSQL takes 8000."""


def payload_of(organizations: Iterable[str]) -> str:
    """Return the payload that names organizations: as many as fit."""
    named: list[str] = []
    room = PAYLOAD_BYTES
    for each in organizations:
        room -= len(msgspec.json.encode(each)) + 1  # with what is escaped, and a comma
        if room < 0:
            break
        named.append(each)
    return msgspec.json.encode(named).decode()


def organizations_in(payload: str) -> Sequence[str]:
    """Return the organizations that a payload names; none of one that is not as `payload_of` made it."""
    try:
        return msgspec.json.decode(payload, type=list[str])
    except (msgspec.MsgspecError, UnicodeError):
        return []


class Notifier:
    """Notifies workers of other processes that something was enqueued.

    Args:
        send: sends a notification with a payload; may raise `StorageUnavailable`, since workers also poll.
    """

    def __init__(self, send: Callable[[str], Awaitable[None]]) -> None:
        self._send = send
        self._sending: asyncio.Task[None] | None = None
        self._organizations: dict[str, None] = {}
        self._open = False

    async def __aenter__(self) -> None:
        self._open = True

    async def __aexit__(self, *_exc: object) -> None:
        """Send what is left, and stop: the commit of a host's transaction may be reported after this."""
        self._open = False
        sending = self._sending
        if sending is not None:
            await asyncio.wait({sending}, timeout=CLOSE_SECONDS)
            self._organizations.clear()
            sending.cancel()
            await asyncio.wait({sending})

    def notify(self, organization_id: str) -> None:
        """Send a notification: at once, or together with others of the same moment.

        Args:
            organization_id: the owner of what was enqueued.
        """
        if not self._open:
            return
        self._organizations[organization_id] = None
        if self._sending is None:
            self._sending = asyncio.create_task(self._send_debounced())

    async def _send_debounced(self) -> None:
        try:
            while self._organizations:
                payload = payload_of(self._organizations)
                self._organizations.clear()
                with suppress(StorageUnavailable):
                    await self._send(payload)
                await asyncio.sleep(DEBOUNCE_SECONDS)
        finally:
            self._sending = None


class Listener:
    """Receives the notifications of other processes.

    Args:
        listen: listens for notifications; returns or raises `StorageUnavailable` when it lost its
            connection.
        on_missed: called when a notification may have been missed.
    """

    def __init__(self, listen: Callable[[], Awaitable[None]], on_missed: Callable[[], None]) -> None:
        self._listen = listen
        self._on_missed = on_missed

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
            self._on_missed()
