"""The chat connection of an organization: adopt, show, change, send through, disconnect (§2.2)."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Final, TypeAlias, TypeVar

from flowactions_hookspecs import FlowActionsError
from flowactions_plugin.chat.failures import REVOKED, ChatRefused
from flowactions_plugin.chat.provider import ChatProvider, Page
from flowactions_plugin.chat.store import ConnectionStore, StoredConnection
from flowactions_plugin.clock import Clock
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
        sleep: waits between attempts.
    """

    def __init__(
        self,
        store: ConnectionStore,
        provider: ChatProvider,
        keys: KeyRing,
        clock: Clock,
        sleep: Sleep = asyncio.sleep,
    ) -> None:
        self._store = store
        self._provider = provider
        self._keys = keys
        self._clock = clock
        self._sleep = sleep

    async def adopt(
        self, organization_id: str, token: str, app_id: str, installed_by: tuple[str, str]
    ) -> StoredConnection:
        """Test a bot token and store it, sealed, as the organization's connection; an earlier one is replaced.

        The default channel outlives a reinstall into the same workspace.

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
        return stored

    async def get(self, organization_id: str) -> StoredConnection | None:
        """Give the organization's connection, ``None`` when it has none."""
        return await self._store.get(organization_id)

    async def set_default_channel(self, organization_id: str, channel_id: str) -> None:
        """Choose the channel that test messages go to.

        Raises:
            NotConnected: there is no connection.
        """
        if not await self._store.change(organization_id, default_channel=channel_id):
            raise NotConnected

    async def disconnect(self, organization_id: str) -> None:
        """Revoke the token at the provider, as far as it answers, and forget the connection."""
        stored = await self._store.get(organization_id)
        if stored is None:
            return
        try:
            await self._provider.revoke(self._token(stored))
        except FlowActionsError as exc:
            log.warning("the token of team %s could not be revoked: %s", stored.team_id, exc)
        await self._store.remove(organization_id)

    async def send_to_channel(self, organization_id: str, channel: str, text: str, *, retry: bool) -> str:
        """Post a message.

        Args:
            organization_id: the tenant.
            channel: a channel's id.
            text: mrkdwn.
            retry: whether to repeat what failed for a passing reason.

        Returns:
            The message's timestamp.

        Raises:
            NotConnected: there is no connection.
            ChatRefused: the provider refused.
        """
        stored, token = await self._usable(organization_id)
        return await self._bounded(stored, self._post(token, channel, text, retry=retry))

    async def send_to_member(self, organization_id: str, user: str, text: str, *, retry: bool) -> str:
        """Post a direct message; like `send_to_channel` otherwise. Only the post itself is repeated."""
        stored, token = await self._usable(organization_id)

        async def send() -> str:
            channel = await self._provider.open_dm(token, user)
            return await self._post(token, channel, text, retry=retry)

        return await self._bounded(stored, send())

    async def test(self, organization_id: str, text: str) -> str:
        """Post to the default channel, which confirms token, scopes and membership (§4.1).

        Raises:
            NotConnected: there is no connection.
            NoDefaultChannel: it has no default channel.
            ChatRefused: the provider refused.
        """
        stored, _ = await self._usable(organization_id)
        if not stored.default_channel:
            raise NoDefaultChannel
        return await self.send_to_channel(organization_id, stored.default_channel, text, retry=False)

    async def channels(self, organization_id: str, cursor: str | None) -> Page:
        """List a page of channels; raises as `send_to_channel` does."""
        stored, token = await self._usable(organization_id)
        return await self._bounded(stored, self._provider.channels(token, cursor))

    async def members(self, organization_id: str, cursor: str | None) -> Page:
        """List a page of members; raises as `send_to_channel` does."""
        stored, token = await self._usable(organization_id)
        return await self._bounded(stored, self._provider.members(token, cursor))

    async def _usable(self, organization_id: str) -> tuple[StoredConnection, str]:
        stored = await self._store.get(organization_id)
        if stored is None:
            raise NotConnected
        if stored.status != "active":
            raise ChatRefused(stored.status_reason or "token_revoked")
        return stored, self._token(stored)

    def _token(self, stored: StoredConnection) -> str:
        return self._keys.open(stored.sealed_token, stored.organization_id, TOKEN_PURPOSE)

    async def _post(self, token: str, channel: str, text: str, *, retry: bool) -> str:
        attempt = 1
        while True:
            try:
                return await self._provider.post_message(token, channel, text)
            except ChatRefused as refusal:
                delay = retry_delay(attempt, refusal) if retry else None
                if delay is None:
                    raise
                await self._sleep(delay)
                attempt += 1

    async def _bounded(self, stored: StoredConnection, call: Awaitable[Result]) -> Result:
        try:
            async with asyncio.timeout(SEND_SECONDS):
                return await call
        except TimeoutError:
            raise ChatRefused("unreachable") from None
        except ChatRefused as refusal:
            if refusal.code in REVOKED:
                await self._store.change(stored.organization_id, status="revoked", status_reason=refusal.code)
            raise


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
