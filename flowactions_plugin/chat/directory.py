"""A workspace's channels and members: lists them a page at a time, and says whether a message can reach one."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, NamedTuple

from flowactions_plugin.chat.answers import BUILT_IN_USER, ChannelState, MemberState
from flowactions_plugin.chat.app import read_scopes
from flowactions_plugin.chat.calls import SEND_SECONDS, ProviderCalls, missing_scopes, seconds_from_now
from flowactions_plugin.chat.failures import REVOKED, AnswerTooLarge, ChatRefused, advice
from flowactions_plugin.chat.pickers import Page, PageCache
from flowactions_plugin.chat.provider import SlackProvider
from flowactions_plugin.chat.store import StoredConnection
from flowactions_plugin.chat.tokens import usable_token
from flowactions_plugin.storage.sealing import KeyRing

PAGE_SIZES: Final = (200, 40)
SEARCH_PAGE_SIZES: Final = (999, *PAGE_SIZES)
"""The provider's maximum first: a search reads thousands of names in few calls. A smaller size is used where the answer
is larger than what is read of one."""

MAX_REMEMBERED_SIZES: Final = 10_000

POSTS_EVERYWHERE: Final = "chat:write.public"
"""The scope with which an app posts to public channels that it has not joined. It is not asked for (§2.3)."""

NO_TARGET: Final = frozenset(
    {"channel_not_found", "is_archived", "user_not_found", "user_not_visible", "user_disabled"}
)
"""What the provider says of a target that no message reaches."""

NOT_CHECKED: Final = "not_checked"


class TargetFault(NamedTuple):
    """Why a message would not arrive.

    Attributes:
        code: the provider's, or ``not_checked``.
        message: what the author should do.
        certain: whether a message would fail, as far as the provider says.
        of_target: whether the target is wrong, rather than the connection.
    """

    code: str
    message: str
    certain: bool = True
    of_target: bool = True


class Directory:
    """Lists channels and members for one host, and caches the pages (§2.3).

    Args:
        provider: the chat provider.
        calls: limits calls in time, and records what they say about a connection.
        keys: open the tokens.
    """

    def __init__(self, provider: SlackProvider, calls: ProviderCalls, keys: KeyRing) -> None:
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

    async def target_fault(
        self, stored: StoredConnection, target: str, *, to_member: bool, until: float
    ) -> TargetFault | None:
        """Ask the provider whether a message can reach a target.

        Nothing is sent or written, whatever the answer; it raises nothing.

        Args:
            stored: the organization's connection.
            target: the id of a channel, or of a member.
            to_member: which of the two.
            until: a moment of the event loop's clock by which there is a result.

        Returns:
            What is wrong; ``None``: nothing.
        """
        try:
            async with asyncio.timeout_at(until):
                token = usable_token(self._keys, stored)
                if to_member:
                    return _member_fault(target, await self._provider.member(token, target))
                return _channel_fault(stored, await self._provider.channel(token, target))
        except ChatRefused as refusal:
            return _refused_fault(stored, refusal)
        except TimeoutError:
            return _not_checked(ChatRefused("unreachable"))

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


def _channel_fault(stored: StoredConnection, channel: ChannelState) -> TargetFault | None:
    if channel.is_archived:
        return _certain("is_archived")
    if channel.is_member is None:
        return TargetFault(
            NOT_CHECKED, "The chat provider does not say whether the app is in it.", certain=False
        )
    if channel.is_member or (not channel.is_private and POSTS_EVERYWHERE in read_scopes(stored.scopes)):
        return None
    return _certain("not_in_channel")


def _member_fault(user: str, member: MemberState) -> TargetFault | None:
    if member.is_deleted:
        return _certain("user_disabled")
    if member.is_bot:
        return _certain("cannot_dm_bot")
    # The provider does not say that it is one.
    return (
        TargetFault("cannot_dm_bot", advice("cannot_dm_bot"), certain=False) if user == BUILT_IN_USER else None
    )


def _refused_fault(stored: StoredConnection, refusal: ChatRefused) -> TargetFault:
    if refusal.code in REVOKED:
        return TargetFault(refusal.code, str(refusal), of_target=False)
    if refusal.code not in NO_TARGET:
        # Sending may need less than asking, and a provider that fails now need not fail then.
        return _not_checked(refusal)
    unseen = refusal.code == "channel_not_found" and not lists_private_channels(stored)
    return TargetFault(refusal.code, str(refusal), certain=not unseen)


def _certain(code: str) -> TargetFault:
    return TargetFault(code, advice(code))


def _not_checked(refusal: ChatRefused) -> TargetFault:
    return TargetFault(NOT_CHECKED, f"The target could not be checked. {refusal}", certain=False)
