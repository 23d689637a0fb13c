"""A workspace's channels and members: searches them, and says whether a message can reach one."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Awaitable, Callable, Hashable, Mapping, Sequence
from functools import partial
from typing import Any, Final
from weakref import WeakValueDictionary

from flowactions_hookspecs import ConfigProblem
from flowactions_plugin.chat.answers import BUILT_IN_USER, channel_choice, member_choice
from flowactions_plugin.chat.app import read_scopes
from flowactions_plugin.chat.calls import SEND_SECONDS, ProviderCalls, seconds_from_now
from flowactions_plugin.chat.failures import REVOKED, AnswerTooLarge, ChatRefused, advice
from flowactions_plugin.chat.pickers import FRESH_SECONDS, Choice, Page, PageCache, search
from flowactions_plugin.chat.provider import SlackProvider
from flowactions_plugin.chat.store import StoredConnection
from flowactions_plugin.chat.tokens import usable_token
from flowactions_plugin.storage.sealing import KeyRing

PAGE_SIZES: Final = (999, 200)
"""The provider's maximum, because it limits the calls; the other for a page whose answer is larger than what is read of one."""

CHANNEL_ID: Final = re.compile(r"[CG][A-Z0-9]{8,20}")
MEMBER_ID: Final = re.compile(r"[UW][A-Z0-9]{8,20}")

NO_TARGET: Final = frozenset(
    {"channel_not_found", "is_archived", "user_not_found", "user_not_visible", "user_disabled"}
)
"""What the provider says of a target that no message reaches."""

NOT_CHECKED: Final = "not_checked"


class Directory:
    """Searches channels and members for one host (§2.3).

    Pages are kept, and so is the delay that the provider asks for. Organizations that share a workspace share them, as
    the provider gives all of them one token.
    """

    def __init__(self, provider: SlackProvider, calls: ProviderCalls, keys: KeyRing) -> None:
        self._provider = provider
        self._calls = calls
        self._keys = keys
        self._pages = PageCache(time.monotonic)
        self._turns: WeakValueDictionary[Hashable, asyncio.Lock] = WeakValueDictionary()

    async def channels(self, stored: StoredConnection, text: str, cursor: str | None) -> Page:
        """Search the channels as `search` does: first those that the app is in, then the other public ones.

        A channel's id is asked for by itself.

        Raises:
            ChatRefused: the provider refused, or the connection cannot be used.
        """
        provider, private = self._provider, lists_private_channels(stored)
        uses = ("channels:read", "groups:read") if private else ("channels:read",)

        async def page(at: str | None) -> Page:
            found = await self._by_id(stored, at, CHANNEL_ID, text, provider.channel, channel_choice, uses[:1])
            if found is not None:
                return found
            kind, _, after = (at or "joined:").partition(":")
            if kind == "joined":
                fetch = partial(provider.joined_channels, private=private)
                joined = await self._page(stored, (kind, private), after, fetch, uses)
                return joined._replace(cursor=f"joined:{joined.cursor}" if joined.cursor else "others:")
            if kind != "others":
                raise ChatRefused("invalid_cursor")
            others = await self._page(stored, kind, after, provider.other_channels, uses[:1])
            return others._replace(cursor=others.cursor and f"others:{others.cursor}")

        return await search(page, text, cursor)

    async def members(self, stored: StoredConnection, text: str, cursor: str | None) -> Page:
        """Search the members, as `channels` does."""
        provider, uses = self._provider, ("users:read",)

        async def page(at: str | None) -> Page:
            found = await self._by_id(stored, at, MEMBER_ID, text, provider.member, member_choice, uses)
            return found or await self._page(stored, "members", at, provider.members, uses)

        return await search(page, text, cursor)

    async def target_problem(
        self, stored: StoredConnection, target: str, *, to_member: bool, until: float
    ) -> ConfigProblem | None:
        """Ask the provider whether a message can reach a channel or member; return what is wrong, ``None``: nothing.

        It is an error if a message would fail, as far as the provider says. The answer is there by that time of the event
        loop's clock. Nothing is sent, written or raised.
        """
        try:
            async with asyncio.timeout_at(until):
                token = usable_token(self._keys, stored)
                if to_member:
                    return _member_problem(target, await self._provider.member(token, target))
                return _channel_problem(stored, await self._provider.channel(token, target))
        except ChatRefused as refusal:
            return _refused_problem(stored, refusal)
        except TimeoutError:
            return _not_checked(ChatRefused("unreachable"))

    async def _by_id(
        self,
        stored: StoredConnection,
        at: str | None,
        form: re.Pattern[str],
        text: str,
        call: Callable[[str, str], Awaitable[Mapping[str, Any]]],
        read: Callable[[Mapping[str, Any]], Choice | None],
        uses: Sequence[str],
    ) -> Page | None:
        """Ask for the choice whose id a new search's text is; ``None``: it is no id, or the provider does not know it."""
        wanted = text.strip()
        if at is not None or form.fullmatch(wanted) is None:
            return None
        token, until = usable_token(self._keys, stored), seconds_from_now(SEND_SECONDS)
        try:
            choice = read(await self._calls.make(stored, until, call(token, wanted), uses))
        except ChatRefused:
            return None  # it may be a name, and the list's answer says what is wrong
        return Page([] if choice is None else [choice], None)

    async def _page(
        self,
        stored: StoredConnection,
        which: Hashable,
        cursor: str | None,
        fetch: Callable[[str, str | None, int], Awaitable[Page]],
        uses: Sequence[str],
    ) -> Page:
        """Return a page that is kept, or the largest whose answer can be read."""
        token = usable_token(self._keys, stored)
        whole = (stored.team_id, stored.bot_user_id, which)
        async with self._turns.setdefault(whole, asyncio.Lock()):
            if (kept := self._pages.get((whole, cursor))) is not None:
                return kept[0]
            if (pause := self._pages.get(whole)) is not None:
                raise ChatRefused("ratelimited", pause[1])
            until = seconds_from_now(SEND_SECONDS)
            try:
                try:
                    page = await self._calls.make(stored, until, fetch(token, cursor, PAGE_SIZES[0]), uses)
                except AnswerTooLarge:
                    page = await self._calls.make(stored, until, fetch(token, cursor, PAGE_SIZES[1]), uses)
            except ChatRefused as refusal:
                if refusal.throttled and refusal.retry_after:
                    self._pages.put(whole, Page((), None), min(refusal.retry_after, FRESH_SECONDS))
                raise
            self._pages.put((whole, cursor), page, FRESH_SECONDS)
            return page


def lists_private_channels(stored: StoredConnection) -> bool:
    """Return whether the app may list private channels; some workspaces do not grant that (§2.3)."""
    return "groups:read" not in stored.missing


def _channel_problem(stored: StoredConnection, channel: Mapping[str, Any]) -> ConfigProblem | None:
    """Return why a message cannot reach a channel, as far as its record says."""
    if channel.get("is_archived") is True:
        return _certain("is_archived")
    # With this scope, which is not asked for (§2.3), an app posts to public channels that it has not joined.
    posts = channel.get("is_private") is not True and "chat:write.public" in read_scopes(stored.scopes)
    if channel.get("is_member") is True or posts:
        return None
    if channel.get("is_member") is False:
        return _certain("not_in_channel")
    return _unsure(NOT_CHECKED, "The chat provider does not say whether the app is in it.")


def _member_problem(user: str, member: Mapping[str, Any]) -> ConfigProblem | None:
    """Return why a message cannot reach a member, as far as their record says."""
    if member.get("deleted") is True:
        return _certain("user_disabled")
    if member.get("is_bot") is True:
        return _certain("cannot_dm_bot")
    # The provider does not say of the built-in user that it is one.
    return _unsure("cannot_dm_bot", advice("cannot_dm_bot")) if user == BUILT_IN_USER else None


def _refused_problem(stored: StoredConnection, refusal: ChatRefused) -> ConfigProblem:
    if refusal.code not in NO_TARGET | REVOKED:
        # Sending may need less than asking, and a provider that fails now need not fail then.
        return _not_checked(refusal)
    if refusal.code == "channel_not_found" and not lists_private_channels(stored):
        return _unsure(refusal.code, str(refusal))
    return _certain(refusal.code)


def _certain(code: str) -> ConfigProblem:
    return ConfigProblem(code=code, message=advice(code))


def _unsure(code: str, message: str) -> ConfigProblem:
    return ConfigProblem(code=code, message=message, severity="warning")


def _not_checked(refusal: ChatRefused) -> ConfigProblem:
    return _unsure(NOT_CHECKED, f"The target could not be checked. {refusal}")
