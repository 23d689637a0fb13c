"""The chat connection of an organization: adopt, show, change, send through, disconnect (§2.2)."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Final, TypeAlias, TypeVar

from flowactions_hookspecs import FlowActionsError
from flowactions_plugin.chat.failures import REVOKED, ChatRefused
from flowactions_plugin.chat.pickers import Page, PageCache
from flowactions_plugin.chat.provider import ChatProvider
from flowactions_plugin.chat.store import ConnectionStore, StoredConnection
from flowactions_plugin.clock import Clock
from flowactions_plugin.errors import SealBroken, StorageUnavailable
from flowactions_plugin.storage.database import Connection
from flowactions_plugin.storage.sealing import KeyRing

log = logging.getLogger("flowactions.chat")

TOKEN_PURPOSE: Final = "chat bot token"  # noqa: S105  what is sealed, not a secret
MAX_ATTEMPTS: Final = 4
RETRY_DELAYS: Final = (0.25, 0.5, 1.0)
"""Seconds before attempts two, three and four (§8)."""

LONGEST_WAIT_SECONDS: Final = 3.0
"""A provider that asks for more is not asked again in this walk."""

SEND_SECONDS: Final = 6.0
"""The longest that a walk is held by one message, all attempts together."""

NOTE_SECONDS: Final = 1.0
"""The longest that a walk is held to note that its token is dead."""

PAGE_SIZE: Final = 200
SEARCHED_PAGE_SIZE: Final = 999
"""The provider's most: a search goes through thousands of names in few calls."""

Sleep: TypeAlias = Callable[[float], Awaitable[None]]
Result = TypeVar("Result")


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
        self._static_token = static_token
        self._sleep = sleep
        self._pages = PageCache(time.monotonic)
        self._noting: set[asyncio.Task[None]] = set()

    async def aclose(self) -> None:
        """Wait for what is still being written."""
        if self._noting:
            await asyncio.wait(self._noting)

    async def adopt(
        self, organization_id: str, token: str, app_id: str, installed_by: tuple[str, str]
    ) -> StoredConnection:
        """Test a bot token and store it, sealed, as the organization's connection; an earlier one is replaced.

        The default channel outlives a reinstall into the same workspace. The token of another workspace that
        is replaced is revoked.

        Args:
            organization_id: the tenant.
            token: the bot token.
            app_id: the provider's app, empty when unknown.
            installed_by: the id and name of who connected.

        Raises:
            ChatRefused: the provider does not accept the token.
        """
        identity = await self._provider.identify(token)
        before = await self._store.get(organization_id)
        same_workspace = before is not None and before.team_id == identity.team_id
        stored = StoredConnection(
            organization_id=organization_id,
            team_id=identity.team_id,
            team_name=identity.team_name,
            bot_user_id=identity.bot_user_id,
            app_id=app_id,
            scopes=",".join(identity.scopes),
            installed_by_id=installed_by[0],
            installed_by_name=installed_by[1],
            installed_at=int(self._clock() * 1000),
            default_channel=before.default_channel if before is not None and same_workspace else None,
            status="active",
            status_reason=None,
            sealed_token=self._keys.seal(token, organization_id, TOKEN_PURPOSE),
        )
        await self._store.replace(stored)
        log.info("organization %s has connected team %s", organization_id, stored.team_id)
        if before is not None and not same_workspace:
            await self._revoke(before)
        return stored

    async def get(self, organization_id: str) -> StoredConnection | None:
        """Give the organization's connection, ``None`` when it has none."""
        return await self._store.get(organization_id)

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
        """Forget the connection, and revoke its token at the provider as far as that answers."""
        stored = await self._store.get(organization_id)
        if stored is None:
            return
        await self._revoke(stored)
        await self._store.remove(organization_id)
        log.info("organization %s has disconnected team %s", organization_id, stored.team_id)

    async def organization_deleted(
        self, organization_id: str, connection: Connection
    ) -> Callable[[], Awaitable[None]] | None:
        """Forget a deleted organization's connection, within the caller's transaction.

        Returns:
            What is left to do when that has committed: its token is revoked at the provider. ``None``: nothing.
        """
        stored = await self._store.take(organization_id, connection)
        return None if stored is None else partial(self._revoke, stored)

    def reason(self, stored: StoredConnection) -> str | None:
        """Say why a connection cannot be used, with a code that has advice; ``None`` when it can."""
        try:
            self._usable_token(stored)
        except ChatRefused as refusal:
            return refusal.code
        return None

    async def send_to_channel(self, stored: StoredConnection, channel: str, text: str, *, retry: bool) -> str:
        """Post a message.

        Args:
            stored: the organization's connection.
            channel: a channel's id.
            text: mrkdwn.
            retry: whether to repeat what failed for a passing reason.

        Returns:
            The message's timestamp.

        Raises:
            ChatRefused: the provider refused, or the connection cannot be used.
        """
        token = self._usable_token(stored)
        until = _in(SEND_SECONDS)
        return await self._watched(stored, until, self._post(token, channel, text, until if retry else None))

    async def send_to_member(self, stored: StoredConnection, user: str, text: str, *, retry: bool) -> str:
        """Post a direct message; like `send_to_channel` otherwise. Only the post itself is repeated."""
        token = self._usable_token(stored)
        until = _in(SEND_SECONDS)

        async def send() -> str:
            channel = await self._provider.open_dm(token, user)
            return await self._post(token, channel, text, until if retry else None)

        return await self._watched(stored, until, send())

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
        )

    async def members(self, stored: StoredConnection, cursor: str | None, *, searched: bool) -> Page:
        """List a page of members; like `channels` otherwise."""
        return await self._page(
            stored,
            ("members", cursor, searched),
            lambda token, size: self._provider.members(token, cursor, size),
        )

    async def _page(
        self,
        stored: StoredConnection,
        which: tuple[str, str | None, bool],
        ask: Callable[[str, int], Awaitable[Page]],
    ) -> Page:
        token = self._usable_token(stored)
        key = (stored.organization_id, stored.installed_at, *which)
        page = self._pages.get(key)
        if page is None:
            size = SEARCHED_PAGE_SIZE if which[2] else PAGE_SIZE
            page = await self._watched(stored, _in(SEND_SECONDS), ask(token, size))
            self._pages.put(key, page)
        return page

    def _usable_token(self, stored: StoredConnection) -> str:
        if stored.status != "active":
            raise ChatRefused(stored.status_reason or "token_revoked")
        return self._token(stored)

    def _token(self, stored: StoredConnection) -> str:
        try:
            return self._keys.open(stored.sealed_token, stored.organization_id, TOKEN_PURPOSE)
        except SealBroken:
            raise ChatRefused("token_unreadable") from None

    async def _post(self, token: str, channel: str, text: str, retry_until: float | None) -> str:
        attempt = 1
        while True:
            try:
                return await self._provider.post_message(token, channel, text)
            except ChatRefused as refusal:
                delay = None if retry_until is None else retry_delay(attempt, refusal)
                # Not to hold the walk for an attempt that there is no time left for.
                if delay is None or retry_until is None or _in(delay) >= retry_until:
                    raise
                await self._sleep(delay)
                attempt += 1

    async def _watched(self, stored: StoredConnection, until: float, call: Awaitable[Result]) -> Result:
        """Bound a call in time, and note on the connection that its token is dead."""
        try:
            async with asyncio.timeout_at(until):
                return await call
        except TimeoutError:
            raise ChatRefused("unreachable") from None
        except ChatRefused as refusal:
            if refusal.code in REVOKED:
                # Begun at once, but not waited for at any cost: on SQLite, a host that reaches the node within a
                # transaction of its own holds the lock that this needs.
                noting = asyncio.create_task(self._note_revoked(stored, refusal.code))
                self._noting.add(noting)
                noting.add_done_callback(self._noting.discard)
                await asyncio.wait({noting}, timeout=NOTE_SECONDS)
            raise

    async def _note_revoked(self, stored: StoredConnection, reason: str) -> None:
        try:
            await self._store.revoke([stored], reason)
        except StorageUnavailable as exc:
            log.warning(
                "team %s no longer accepts its token, which could not be noted: %s", stored.team_id, exc
            )

    async def _revoke(self, stored: StoredConnection) -> None:
        """Make a token worthless at the provider, unless somebody else's connection hangs on it.

        The provider takes the app out of a workspace with its last token, so another organization that is
        connected with the same workspace would be cut off, too.
        """
        try:
            token = self._token(stored)
            if stored.status != "active" or token == self._static_token:
                return
            if await self._store.is_shared(stored):
                log.info(
                    "team %s stays connected with another organization: no token is revoked", stored.team_id
                )
                return
            await self._provider.revoke(token)
        except ChatRefused as exc:
            log.warning("the token of team %s could not be revoked: %s", stored.team_id, exc)


def lists_private_channels(stored: StoredConnection) -> bool:
    """Tell whether the app was granted to list private channels, which some workspaces hold back (§2.3)."""
    return not stored.scopes or "groups:read" in stored.scopes.split(",")


def retry_delay(attempt: int, refusal: ChatRefused) -> float | None:
    """Give the seconds to wait before the next attempt, ``None`` when there is none (§8).

    Args:
        attempt: the number of the attempt that failed, counted from 1.
        refusal: why it failed.
    """
    if not refusal.transient or attempt >= MAX_ATTEMPTS:
        return None
    asked = refusal.retry_after or 0.0
    return max(RETRY_DELAYS[attempt - 1], asked) if asked <= LONGEST_WAIT_SECONDS else None


def _in(seconds: float) -> float:
    return asyncio.get_running_loop().time() + seconds
