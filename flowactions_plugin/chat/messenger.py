"""Sends messages through an organization's chat connection (§2.2)."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Final

from flowactions_plugin.chat.calls import (
    SEND_SECONDS,
    Origin,
    ProviderCalls,
    Sleep,
    seconds_from_now,
    with_retries,
)
from flowactions_plugin.chat.connections import Connections
from flowactions_plugin.chat.failures import UNEXPECTED, ChatRefused
from flowactions_plugin.chat.provider import SlackProvider
from flowactions_plugin.chat.store import StoredConnection
from flowactions_plugin.chat.tokens import usable_token
from flowactions_plugin.errors import NoDefaultChannel
from flowactions_plugin.storage.sealing import KeyRing

TEST: Final[Origin] = ("", "")
"""The origin of test messages."""


class Messenger:
    """Sends messages for one host.

    Args:
        connections: the organizations' connections.
        provider: the chat provider.
        calls: limits calls in time, and records what they say about a connection.
        keys: open the tokens.
        sleep: waits between attempts.
    """

    def __init__(
        self,
        connections: Connections,
        provider: SlackProvider,
        calls: ProviderCalls,
        keys: KeyRing,
        sleep: Sleep = asyncio.sleep,
    ) -> None:
        self._connections = connections
        self._provider = provider
        self._calls = calls
        self._keys = keys
        self._sleep = sleep

    async def connection_of(self, organization_id: str, until: float) -> StoredConnection | None:
        """Return the organization's connection; ``None`` when it has none.

        Args:
            organization_id: the tenant.
            until: a time of the event loop's clock.

        Raises:
            StorageUnavailable: the database failed, or did not answer until then.
        """
        return await self._calls.read_until(until, self._connections.get(organization_id))

    async def send_to_channel(
        self,
        stored: StoredConnection,
        channel: str,
        text: str,
        *,
        retry: bool,
        until: float | None = None,
        origin: Origin = TEST,
    ) -> str:
        """Post a message.

        Args:
            stored: the organization's connection.
            channel: a channel's id.
            text: mrkdwn.
            retry: whether to repeat attempts that failed for a transient reason.
            until: a time of the event loop's clock at which sending ends; ``None``: in six seconds.
            origin: what the message comes from, for the connection's last error.

        Returns:
            The message's timestamp.

        Raises:
            ChatRefused: the provider refused, or the connection cannot be used.
        """

        async def attempt(token: str) -> str:
            return await self._provider.post_message(token, channel, text)

        return await self._send(stored, attempt, ("chat:write",), retry=retry, until=until, origin=origin)

    async def send_to_member(
        self,
        stored: StoredConnection,
        user: str,
        text: str,
        *,
        retry: bool,
        until: float | None = None,
        origin: Origin = TEST,
    ) -> str:
        """Post a direct message, as `send_to_channel` does. An attempt opens its channel, unless an earlier one has."""
        opened: list[str] = []

        async def attempt(token: str) -> str:
            if not opened:
                opened.append(await self._provider.open_dm(token, user))
            return await self._provider.post_message(token, opened[0], text)

        scopes = ("im:write", "chat:write")
        return await self._send(stored, attempt, scopes, retry=retry, until=until, origin=origin)

    async def send_test(self, organization_id: str, text: str) -> str:
        """Post to the default channel, which confirms token, scopes and membership (§4.1.3).

        Returns:
            The message's timestamp.

        Raises:
            NotConnected: there is no connection.
            NoDefaultChannel: it has no default channel.
            ChatRefused: the provider refused.
        """
        stored = await self._connections.existing(organization_id)
        if not stored.default_channel:
            raise NoDefaultChannel
        return await self.send_to_channel(stored, stored.default_channel, text, retry=False)

    async def _send(
        self,
        stored: StoredConnection,
        attempt: Callable[[str], Awaitable[str]],
        uses: Sequence[str],
        *,
        retry: bool,
        until: float | None,
        origin: Origin,
    ) -> str:
        ends = seconds_from_now(SEND_SECONDS) if until is None else until
        try:
            token = usable_token(self._keys, stored)
            sending = with_retries(partial(attempt, token), self._sleep, ends if retry else None)
            return await self._calls.make(stored, ends, sending, uses)
        except Exception as exc:
            self._calls.record_failure(stored, exc.code if isinstance(exc, ChatRefused) else UNEXPECTED, origin)
            raise
