"""The chat connection of an organization: adopt, show, change, send through, disconnect (§2.2)."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Final
from uuid import uuid4

from flowactions_hookspecs import FlowActionsError
from flowactions_plugin.chat.answers import ChannelState, MemberState, shown
from flowactions_plugin.chat.attempts import (
    SEND_SECONDS,
    Post,
    Sleep,
    seconds_from_now,
    to_channel,
    to_member,
    with_retries,
)
from flowactions_plugin.chat.failures import AnswerTooLarge, ChatRefused
from flowactions_plugin.chat.pickers import Page, PageCache
from flowactions_plugin.chat.provider import ChatProvider, Installation
from flowactions_plugin.chat.revocation import TOKEN_PURPOSE, Revoker, unsealed
from flowactions_plugin.chat.scopes import not_granted, write_scopes
from flowactions_plugin.chat.store import ConnectionStore, StoredConnection
from flowactions_plugin.chat.watch import Watch, missing_scopes
from flowactions_plugin.clock import Clock
from flowactions_plugin.log_text import printable
from flowactions_plugin.storage.database import Connection
from flowactions_plugin.storage.sealing import KeyRing

log = logging.getLogger("flowactions.chat")

PAGE_SIZES: Final = (200, 40)
SEARCHED_PAGE_SIZES: Final = (999, *PAGE_SIZES)
"""The provider's most: a search goes through thousands of names in few calls. The smaller ones are asked for where
such a page is longer than what is read of an answer."""

MOST_SIZES_KEPT: Final = 10_000


class NotConnected(FlowActionsError):
    """The organization has no chat workspace connected."""


class NoDefaultChannel(FlowActionsError):
    """The connection has no default channel: choose one first."""


class Connections:
    """The chat connections of one host.

    Args:
        store: where they are kept.
        provider: the chat provider.
        keys: seals the tokens.
        clock: Unix seconds.
        static_token: ``CHAT_BOT_TOKEN``; it belongs to the operator and is never revoked from here.
        sleep: waits between attempts.
    """

    def __init__(
        self,
        store: ConnectionStore,
        provider: ChatProvider,
        keys: KeyRing,
        clock: Clock,
        *,
        static_token: str | None = None,
        sleep: Sleep = asyncio.sleep,
    ) -> None:
        self._store = store
        self._provider = provider
        self._keys = keys
        self._clock = clock
        self._sleep = sleep
        self._revoker = Revoker(store, provider, keys, static_token)
        self._pages = PageCache(time.monotonic)
        self._page_sizes: dict[tuple[str, str, str], Sequence[int]] = {}
        self._watch = Watch(store)

    async def aclose(self) -> None:
        """Wait for what is still being read or written."""
        await self._watch.aclose()

    async def adopt(
        self, organization_id: str, installation: Installation, installed_by: tuple[str, str]
    ) -> StoredConnection:
        """Test a bot token and store it, sealed, as the organization's connection; an earlier one is replaced.

        The default channel outlives a reinstall into the same workspace. The token of another workspace that
        is replaced is revoked.

        Args:
            organization_id: the tenant.
            installation: the token, and what the provider said of it.
            installed_by: the id and name of who connected.

        Raises:
            ChatRefused: the provider does not accept the token, or revoked it in the meantime.
        """
        identity = await self._provider.identify(installation.token)
        granted = identity.scopes or installation.scopes
        stored = StoredConnection(
            organization_id=organization_id,
            team_id=identity.team_id,
            team_name=identity.team_name,
            bot_user_id=identity.bot_user_id,
            app_id=installation.app_id,
            scopes=write_scopes(granted),
            installed_by_id=shown(installed_by[0]),
            installed_by_name=shown(installed_by[1]),
            installed_at=int(self._clock() * 1000),
            default_channel=None,
            status="active",
            status_reason=None,
            sealed_token=self._keys.seal(installation.token, organization_id, TOKEN_PURPOSE),
            install_id=str(uuid4()),
            missing_scopes=write_scopes(not_granted(granted)),
        )
        before = await self._store.replace(stored)
        log.info("organization %s has connected team %s", printable(organization_id), stored.team_id)
        if before is not None and before.team_id != stored.team_id:
            await self._revoker.revoke(before)
        await self._revoker.verify(stored)
        return stored

    async def get(self, organization_id: str, until: float | None = None) -> StoredConnection | None:
        """Give the organization's connection, ``None`` when it has none.

        Args:
            organization_id: the tenant.
            until: a moment of the event loop's clock; a database that has not answered by then counts as failed.

        Raises:
            StorageUnavailable: the database failed.
        """
        reading = self._store.get(organization_id)
        return await (reading if until is None else self._watch.until(until, reading))

    async def existing(self, organization_id: str) -> StoredConnection:
        """Give the organization's connection.

        Raises:
            NotConnected: it has none.
        """
        stored = await self._store.get(organization_id)
        if stored is None:
            raise NotConnected
        return stored

    async def set_default_channel(self, organization_id: str, channel_id: str) -> None:
        """Choose the channel that test messages go to.

        Raises:
            NotConnected: there is no connection.
        """
        if not await self._store.set_default_channel(organization_id, channel_id):
            raise NotConnected

    async def disconnect(self, organization_id: str) -> None:
        """Remove the connection, then revoke its token at the provider as far as that answers.

        An install that ends while the provider revokes stays.
        """
        stored = await self._store.take(organization_id)
        if stored is None:
            return
        log.info(
            "organization %s has disconnected team %s", printable(organization_id), printable(stored.team_id)
        )
        await self._revoker.revoke(stored)

    async def organization_deleted(
        self, organization_id: str, connection: Connection
    ) -> Callable[[], Awaitable[None]] | None:
        """Remove a deleted organization's connection, within the caller's transaction.

        Returns:
            What is left to do when that has committed: its token is revoked at the provider. ``None``: nothing.
        """
        stored = await self._store.take(organization_id, connection)
        return None if stored is None else partial(self._revoker.revoke, stored)

    def reason(self, stored: StoredConnection) -> str | None:
        """Say why a connection cannot be used, with a code that has advice; ``None`` when it can."""
        try:
            self._usable_token(stored)
        except ChatRefused as refusal:
            return refusal.code
        return None

    async def send_to_channel(
        self, stored: StoredConnection, channel: str, text: str, *, retry: bool, until: float | None = None
    ) -> str:
        """Post a message.

        Args:
            stored: the organization's connection.
            channel: a channel's id.
            text: mrkdwn.
            retry: whether to repeat what failed for a passing reason.
            until: a moment of the event loop's clock at which sending ends; ``None``: in six seconds.

        Returns:
            The message's timestamp.

        Raises:
            ChatRefused: the provider refused, or the connection cannot be used.
        """
        attempt = to_channel(self._provider, self._usable_token(stored), channel, text)
        return await self._send(stored, attempt, ("chat:write",), retry=retry, until=until)

    async def send_to_member(
        self, stored: StoredConnection, user: str, text: str, *, retry: bool, until: float | None = None
    ) -> str:
        """Post a direct message; like `send_to_channel` otherwise. Opening its channel is part of an attempt."""
        attempt = to_member(self._provider, self._usable_token(stored), user, text)
        return await self._send(stored, attempt, ("im:write", "chat:write"), retry=retry, until=until)

    async def test(self, organization_id: str, text: str) -> str:
        """Post to the default channel, which confirms token, scopes and membership (§4.1).

        Raises:
            NotConnected: there is no connection.
            NoDefaultChannel: it has no default channel.
            ChatRefused: the provider refused.
        """
        stored = await self.existing(organization_id)
        if not stored.default_channel:
            raise NoDefaultChannel
        return await self.send_to_channel(stored, stored.default_channel, text, retry=False)

    async def channels(self, stored: StoredConnection, cursor: str | None, *, searched: bool) -> Page:
        """List a page of channels: the public ones and, where that was granted, the private ones.

        Args:
            stored: the organization's connection.
            cursor: of the page before, ``None`` for the first.
            searched: whether most of the page will be thrown away.

        Raises:
            ChatRefused: the provider refused, or the connection cannot be used.
        """
        private = lists_private_channels(stored)
        return await self._page(
            stored,
            ("channels", cursor, searched),
            lambda token, size: self._provider.channels(token, cursor, size, private=private),
            ("channels:read", "groups:read") if private else ("channels:read",),
        )

    async def members(self, stored: StoredConnection, cursor: str | None, *, searched: bool) -> Page:
        """List a page of members; like `channels` otherwise."""
        return await self._page(
            stored,
            ("members", cursor, searched),
            lambda token, size: self._provider.members(token, cursor, size),
            ("users:read",),
        )

    async def channel(self, stored: StoredConnection, channel: str) -> ChannelState:
        """Ask for the state of one channel; nothing is noted of the answer.

        Raises:
            ChatRefused: the provider refused, or the connection cannot be used.
        """
        return await self._provider.channel(self._usable_token(stored), channel)

    async def member(self, stored: StoredConnection, user: str) -> MemberState:
        """Ask for the state of one member; like `channel` otherwise."""
        return await self._provider.member(self._usable_token(stored), user)

    async def _page(
        self,
        stored: StoredConnection,
        which: tuple[str, str | None, bool],
        ask: Callable[[str, int], Awaitable[Page]],
        uses: Sequence[str],
    ) -> Page:
        token = self._usable_token(stored)
        key = (stored.organization_id, stored.install_id, stored.installed_at, *which)
        page = self._pages.get(key)
        if page is None:
            until = seconds_from_now(SEND_SECONDS)
            page = await self._watch.call(stored, until, self._fitting_page(stored, which, token, ask), uses)
            self._pages.put(key, page)
        return page

    async def _fitting_page(
        self,
        stored: StoredConnection,
        which: tuple[str, str | None, bool],
        token: str,
        ask: Callable[[str, int], Awaitable[Page]],
    ) -> Page:
        """Ask for a page as large as the provider's answer can be read."""
        most = SEARCHED_PAGE_SIZES if which[2] else PAGE_SIZES
        key = (stored.organization_id, stored.install_id, which[0])
        sizes = [size for size in self._page_sizes.get(key, most) if size <= most[0]]
        while True:
            try:
                return await ask(token, sizes[0])
            except AnswerTooLarge:
                if len(sizes) == 1:
                    raise
                del sizes[0]
                if len(self._page_sizes) >= MOST_SIZES_KEPT:
                    self._page_sizes.clear()
                self._page_sizes[key] = tuple(sizes)

    async def _send(
        self,
        stored: StoredConnection,
        attempt: Post,
        uses: Sequence[str],
        *,
        retry: bool,
        until: float | None,
    ) -> str:
        ends = seconds_from_now(SEND_SECONDS) if until is None else until
        sending = with_retries(attempt, self._sleep, ends if retry else None)
        return await self._watch.call(stored, ends, sending, uses)

    def _usable_token(self, stored: StoredConnection) -> str:
        if stored.status != "active":
            raise ChatRefused(stored.status_reason or "token_revoked")
        return unsealed(self._keys, stored)


def lists_private_channels(stored: StoredConnection) -> bool:
    """Tell whether the app was granted to list private channels, which some workspaces hold back (§2.3)."""
    return "groups:read" not in missing_scopes(stored)
