"""Notifications between processes on PostgreSQL: a debounced NOTIFY for other workers, best effort.

A notification names the lanes of what was enqueued: their numbers, and whose they are while that fits, so that a worker can claim from
a lane of which it knows nothing without a look. Whoever may connect to the database may notify, so a worker believes none of it: its
claim takes only rows whose organization and destination are those that it asks for.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection
from contextlib import suppress
from typing import Final, NamedTuple

import msgspec

from flowactions_plugin.errors import StorageUnavailable

log = logging.getLogger("flowactions.outbox")

CHANNEL: Final = "flowactions_outbox"

DEBOUNCE_SECONDS: Final = 0.001
"""The least time between two notifications: one for each enqueue would limit how many there can be."""

CLOSE_SECONDS: Final = 1.0
"""How long a process that stops waits for its last notification. Without it, what was enqueued last waits for a look."""

RELISTEN_SECONDS: Final = 5.0

PAYLOAD_BYTES: Final = 7000
"""The most that a notification carries; PostgreSQL takes 8000."""


class Named(NamedTuple):
    """A lane as a notification names it.

    Attributes:
        lane: its number.
        organization_id: whose it is; ``None``: the notification does not say.
        destination: scheme, host and port of its endpoint.
    """

    lane: int
    organization_id: str | None = None
    destination: str = ""


_NAMED: Final = msgspec.json.Decoder(list[Named])


def payload_of(lanes: Collection[Named]) -> str:
    """Return the payload that names lanes: by their numbers if all does not fit, and an empty one if these do not, either."""
    for named in (lanes, [Named(each.lane) for each in lanes]):
        payload = msgspec.json.encode([each[: 3 if each.organization_id is not None else 1] for each in named])
        if len(payload) <= PAYLOAD_BYTES:
            return payload.decode()
    return ""


def lanes_in(payload: str) -> list[Named] | None:
    """Return the lanes that a payload names; ``None``: it names none, so that all may have become due."""
    try:
        return _NAMED.decode(payload) or None
    except (msgspec.DecodeError, UnicodeError):
        return None


class Notifier:
    """Notifies workers of other processes that something was enqueued.

    Args:
        send: sends a notification with a payload; may raise `StorageUnavailable`, since workers also look.
    """

    def __init__(self, send: Callable[[str], Awaitable[None]]) -> None:
        self._send = send
        self._sending: asyncio.Task[None] | None = None
        self._lanes: set[Named] = set()
        self._open = False

    async def __aenter__(self) -> None:
        self._open = True

    async def __aexit__(self, *_exc: object) -> None:
        """Send what is left, and stop: the commit of a host's transaction may be reported after this."""
        self._open = False
        sending = self._sending
        if sending is not None:
            await asyncio.wait({sending}, timeout=CLOSE_SECONDS)
            self._lanes.clear()
            sending.cancel()
            await asyncio.wait({sending})

    def notify(self, lane: Named) -> None:
        """Send a notification of what was enqueued in a lane: at once, or together with others of the same moment."""
        if not self._open:
            return
        self._lanes.add(lane)
        if self._sending is None:
            self._sending = asyncio.create_task(self._send_debounced())

    async def _send_debounced(self) -> None:
        try:
            while self._lanes:
                payload = payload_of(self._lanes)
                self._lanes.clear()
                with suppress(StorageUnavailable):
                    await self._send(payload)
                await asyncio.sleep(DEBOUNCE_SECONDS)
        finally:
            self._sending = None


async def listen_forever(listen: Callable[[], Awaitable[None]], on_missed: Callable[[], None]) -> None:
    """Receive the notifications of other processes until cancelled, again and again when the connection is lost.

    Args:
        listen: listens; returns or raises `StorageUnavailable` when it lost its connection.
        on_missed: called when a notification may have been missed.
    """
    while True:
        try:
            await listen()
        except StorageUnavailable as exc:
            log.debug(
                "not listening for new deliveries, only polling: %s", exc, extra={"event": "listener.lost"}
            )
        await asyncio.sleep(RELISTEN_SECONDS)
        on_missed()
