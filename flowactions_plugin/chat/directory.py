"""Lists a workspace's channels and members, a page at a time (§2.3)."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

from flowactions_plugin.chat.answers import ChannelState, MemberState
from flowactions_plugin.chat.attempts import SEND_SECONDS, seconds_from_now
from flowactions_plugin.chat.calls import ProviderCalls, missing_scopes
from flowactions_plugin.chat.failures import AnswerTooLarge
from flowactions_plugin.chat.pickers import Page, PageCache
from flowactions_plugin.chat.provider import ChatProvider
from flowactions_plugin.chat.store import StoredConnection
from flowactions_plugin.chat.tokens import usable_token
from flowactions_plugin.storage.sealing import KeyRing

PAGE_SIZES: Final = (200, 40)
SEARCH_PAGE_SIZES: Final = (999, *PAGE_SIZES)
"""The provider's maximum first: a search reads thousands of names in few calls. A smaller size is used where the answer
is larger than what is read of one."""

MAX_REMEMBERED_SIZES: Final = 10_000


class Directory:
    """Lists channels and members for one host, and caches the pages.

    Args:
        provider: the chat provider.
        calls: limits calls in time, and records what they say about a connection.
        keys: open the tokens.
    """

    def __init__(self, provider: ChatProvider, calls: ProviderCalls, keys: KeyRing) -> None:
        self._provider = provider
        self._calls = calls
        self._keys = keys
        self._pages = PageCache(time.monotonic)
        self._page_sizes: dict[tuple[str, str, str], Sequence[int]] = {}

    async def channels(self, stored: StoredConnection, cursor: str | None, *, searched: bool) -> Page:
        """Return a page of channels: the public ones and, where that was granted, the private ones.

        Args:
            stored: the organization's connection.
            cursor: from the previous page; ``None`` for the first.
            searched: whether most of the page is filtered out.

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
        """Return a page of members, as `channels` does."""
        return await self._page(
            stored,
            ("members", cursor, searched),
            lambda token, size: self._provider.members(token, cursor, size),
            ("users:read",),
        )

    async def channel(self, stored: StoredConnection, channel: str) -> ChannelState:
        """Return the state of one channel; nothing is recorded of the answer.

        Raises:
            ChatRefused: the provider refused, or the connection cannot be used.
        """
        return await self._provider.channel(usable_token(self._keys, stored), channel)

    async def member(self, stored: StoredConnection, user: str) -> MemberState:
        """Return the state of one member, as `channel` does."""
        return await self._provider.member(usable_token(self._keys, stored), user)

    async def _page(
        self,
        stored: StoredConnection,
        which: tuple[str, str | None, bool],
        fetch: Callable[[str, int], Awaitable[Page]],
        uses: Sequence[str],
    ) -> Page:
        token = usable_token(self._keys, stored)
        key = (stored.organization_id, stored.install_id, stored.installed_at, *which)
        page = self._pages.get(key)
        if page is None:
            until = seconds_from_now(SEND_SECONDS)
            page = await self._calls.make(stored, until, self._fitting_page(stored, which, token, fetch), uses)
            self._pages.put(key, page)
        return page

    async def _fitting_page(
        self,
        stored: StoredConnection,
        which: tuple[str, str | None, bool],
        token: str,
        fetch: Callable[[str, int], Awaitable[Page]],
    ) -> Page:
        """Fetch the largest page whose answer can be read, and remember its size."""
        largest = SEARCH_PAGE_SIZES if which[2] else PAGE_SIZES
        key = (stored.organization_id, stored.install_id, which[0])
        sizes = [size for size in self._page_sizes.get(key, largest) if size <= largest[0]]
        while True:
            try:
                return await fetch(token, sizes[0])
            except AnswerTooLarge:
                if len(sizes) == 1:
                    raise
                del sizes[0]
                if len(self._page_sizes) >= MAX_REMEMBERED_SIZES:
                    self._page_sizes.clear()
                self._page_sizes[key] = tuple(sizes)


def lists_private_channels(stored: StoredConnection) -> bool:
    """Return whether the app may list private channels; some workspaces do not grant that (§2.3)."""
    return "groups:read" not in missing_scopes(stored)
