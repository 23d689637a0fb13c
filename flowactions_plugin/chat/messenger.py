"""Sends messages through an organization's chat connection."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Final
from weakref import WeakValueDictionary

from flowactions_plugin.chat.calls import (
    MOST_REMEMBERED,
    SEND_SECONDS,
    Origin,
    Post,
    ProviderCalls,
    Turns,
    seconds_from_now,
)
from flowactions_plugin.chat.connections import Connections
from flowactions_plugin.chat.failures import UNEXPECTED, ChatRefused
from flowactions_plugin.chat.provider import SlackProvider
from flowactions_plugin.chat.store import StoredConnection
from flowactions_plugin.chat.tokens import usable_token
from flowactions_plugin.errors import NoDefaultChannel
from flowactions_plugin.storage.sealing import KeyRing

UNKNOWN_CHANNEL: Final = frozenset({"channel_not_found", "not_in_channel", "is_archived"})
"""What the provider says of a direct-message channel that it no longer has."""

TEST: Final[Origin] = ("", "")
"""The origin of test messages."""


class Messenger:
    """Sends messages for one host (§2.2)."""

    def __init__(
        self,
        connections: Connections,
        provider: SlackProvider,
        calls: ProviderCalls,
        keys: KeyRing,
        turns: Turns | None = None,
    ) -> None:
        self._connections = connections
        self._provider = provider
        self._calls = calls
        self._keys = keys
        self._turns = turns or Turns()
        self._opened: dict[tuple[str, str, str], str] = {}
        self._opening: WeakValueDictionary[tuple[str, str, str], asyncio.Lock] = WeakValueDictionary()

    async def connection_of(self, organization_id: str, until: float) -> StoredConnection | None:
        """Return the organization's connection, ``None`` when it has none, by that time of the event loop's clock.

        Raises:
            StorageUnavailable: the database failed, or did not answer in time.
        """
        return await self._calls.read_until(until, self._connections.get(organization_id))

    async def send(
        self,
        stored: StoredConnection,
        target: str,
        text: str,
        *,
        to_member: bool = False,
        retry: bool = False,
        until: float | None = None,
        origin: Origin = TEST,
        waits: bool = False,
    ) -> str:
        """Post a message (mrkdwn); return its timestamp.

        Args:
            stored: the organization's connection.
            target: the id of a channel, or of a member, who gets a direct message.
            text: the message.
            to_member: which of the two.
            retry: whether to repeat attempts that failed for a transient reason.
            until: a time of the event loop's clock at which sending ends; ``None``: in six seconds.
            origin: what the message comes from, for the connection's last error.
            waits: whether the message waits for a channel at its limit, which then is no error.

        Raises:
            ChatRefused: the provider refused, or the connection cannot be used.
        """
        ends = seconds_from_now(SEND_SECONDS) if until is None else until
        try:
            token = usable_token(self._keys, stored)
            attempt: Post = partial(self._provider.post_message, token, target, text)
            uses = ["chat:write"]
            if to_member:
                attempt = partial(self._direct_message, stored, token, target, text)
                uses = ["im:write", *uses]
            sending = self._turns.attempts(attempt, (stored.team_id, target), ends if retry else None)
            return await self._calls.make(stored, ends, sending, uses)
        except Exception as exc:
            if not (waits and isinstance(exc, ChatRefused) and exc.throttled):
                code = exc.code if isinstance(exc, ChatRefused) else UNEXPECTED
                self._calls.record_failure(stored, code, origin)
            raise

    async def send_test(self, organization_id: str, text: str) -> str:
        """Post to the default channel, which confirms token, scopes and membership (§4.1.3); return the timestamp.

        Raises:
            NotConnected: there is no connection.
            NoDefaultChannel: it has no default channel.
            ChatRefused: the provider refused.
        """
        stored = await self._connections.existing(organization_id)
        if not stored.default_channel:
            raise NoDefaultChannel
        return await self.send(stored, stored.default_channel, text)

    async def _direct_message(self, stored: StoredConnection, token: str, user: str, text: str) -> str:
        """Post to a member. Their channel is opened unless it is known, once for all messages that wait for it."""
        key = (stored.organization_id, stored.install_id, user)
        is_known = key in self._opened
        while True:
            async with self._opening.setdefault(key, asyncio.Lock()):
                if (channel := self._opened.get(key)) is None:
                    channel = await self._provider.open_dm(token, user)
                    if len(self._opened) >= MOST_REMEMBERED:
                        del self._opened[next(iter(self._opened))]
                    self._opened[key] = channel
            try:
                return await self._provider.post_message(token, channel, text)
            except ChatRefused as refusal:
                if refusal.code in UNKNOWN_CHANNEL and self._opened.get(key) == channel:
                    del self._opened[key]
                if not is_known or refusal.code not in UNKNOWN_CHANNEL:
                    raise
            is_known = False
