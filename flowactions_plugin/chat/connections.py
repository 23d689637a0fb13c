"""The chat connection of an organization: connect, read, change, disconnect, and the life of its token at the provider."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import Final

from flowactions_plugin.chat.answers import shown
from flowactions_plugin.chat.app import SCOPES
from flowactions_plugin.chat.failures import REVOKED, ChatRefused, code_with_detail
from flowactions_plugin.chat.provider import Installation, SlackProvider
from flowactions_plugin.chat.store import ConnectionStore, OAuthFlow, Revocation, StoredConnection, usable_of
from flowactions_plugin.chat.tokens import TOKEN_PURPOSE, unseal_token, usable_token
from flowactions_plugin.clock import Clock, new_id
from flowactions_plugin.errors import LeaseLost, NotConnected, SealBroken, StorageUnavailable
from flowactions_plugin.log_text import printable
from flowactions_plugin.storage.database import Transaction
from flowactions_plugin.storage.leases import renewing
from flowactions_plugin.storage.sealing import KeyRing

log = logging.getLogger("flowactions.chat")

TURN_SECONDS: Final = 15
"""The lease of a workspace's turn: a killed process keeps the others out for so long."""

RENEW_SECONDS: Final = TURN_SECONDS / 3


class Connections:
    """The chat connections of one host (§2.2). ``static_token`` is ``CHAT_BOT_TOKEN``, which is never revoked.

    The provider issues the same token for every install of one workspace, and revoking it uninstalls the app. So a token
    is revoked only while no connection of that workspace can be used, and in the workspace's turn: meanwhile no install
    stores its token. Other connections are tested afterwards.
    """

    def __init__(
        self,
        store: ConnectionStore,
        provider: SlackProvider,
        keys: KeyRing,
        clock: Clock,
        static_token: str | None,
    ) -> None:
        self._store = store
        self._provider = provider
        self._keys = keys
        self._clock = clock
        self._static_token = static_token

    async def adopt(
        self, flow: OAuthFlow, installation: Installation, seen: StoredConnection | None
    ) -> StoredConnection:
        """Test a bot token and store it, sealed, as the organization's connection; an earlier one is replaced.

        A reinstall into the same workspace keeps the default channel. When the replaced connection is of another
        workspace, its token is revoked. Of installs of several workspaces at the same time, the first that is stored
        stands; the others change nothing, and their tokens are revoked then.

        ``seen`` is the organization's connection when the install began, before its code was exchanged.

        Raises:
            ChatRefused: the provider does not accept the token, or has revoked it meanwhile; ``connected_meanwhile``:
                another workspace is connected now.
        """
        organization_id = flow.organization_id
        identity = await self._provider.identify(installation.token)
        now = self._clock()
        granted = identity.scopes or installation.scopes
        stored = StoredConnection(
            organization_id=organization_id,
            team_id=identity.team_id,
            team_name=identity.team_name,
            bot_user_id=identity.bot_user_id,
            app_id=installation.app_id,
            scopes=",".join(granted),
            installed_by_id=shown(flow.user_id),
            installed_by_name=shown(flow.user_name),
            installed_at=int(now * 1000),
            default_channel=None,
            status="active",
            status_reason=None,
            sealed_token=self._keys.seal(installation.token, organization_id, TOKEN_PURPOSE),
            install_id=new_id(now),
            # Of what the provider does not report, nothing counts as missing (§2.3).
            missing_scopes=",".join(scope for scope in SCOPES if granted and scope not in granted),
        )
        async with self._turn(stored.team_id):
            # Whoever had the turn before may have revoked the token.
            await self._provider.identify(installation.token)
            before = await self._store.replace(stored, seen)
        if before == "lost":
            await self._revoke(stored)
            raise ChatRefused("connected_meanwhile")
        log.info(
            "organization %s has connected team %s",
            printable(organization_id),
            stored.team_id,
            extra={"event": "chat.connected"},
        )
        if before is not None and before.team_id != stored.team_id:
            await self._revoke(before)
        stands = await self._store.get(organization_id)
        if stands is None or stands.status != "active":
            raise ChatRefused("token_revoked")
        if stands.team_id != stored.team_id:
            raise ChatRefused("connected_meanwhile")
        return stored

    async def get(self, organization_id: str) -> StoredConnection | None:
        """Return the organization's connection; ``None`` when it has none."""
        return await self._store.get(organization_id)

    async def existing(self, organization_id: str) -> StoredConnection:
        """Return the organization's connection.

        Raises:
            NotConnected: it has none.
        """
        stored = await self._store.get(organization_id)
        if stored is None:
            raise NotConnected
        return stored

    async def set_default_channel(self, organization_id: str, channel_id: str, seen: str | None = None) -> None:
        """Set the channel of test messages.

        Raises:
            ConnectionChanged: the connection is not of the version ``seen``; ``None``: any.
            NotConnected: there is no connection.
        """
        if not await self._store.set_default_channel(organization_id, channel_id, seen):
            raise NotConnected

    async def disconnect(self, organization_id: str, seen: str | None = None) -> None:
        """Remove the connection, then revoke its token at the provider. Revoking is best effort.

        A connection that is installed while the provider revokes the token is kept.

        Raises:
            ConnectionChanged: the connection is not of the version ``seen``; ``None``: any.
        """
        stored = await self._store.pop(organization_id, seen=seen)
        if stored is None:
            return
        log.info(
            "organization %s has disconnected team %s",
            printable(organization_id),
            printable(stored.team_id),
            extra={"event": "chat.disconnected"},
        )
        await self._revoke(stored)

    async def organization_deleted(
        self, organization_id: str, transaction: Transaction
    ) -> Callable[[], Awaitable[None]] | None:
        """Remove a deleted organization's connection, within the caller's transaction; return what revokes its token later."""
        stored = await self._store.pop(organization_id, transaction)
        return None if stored is None else partial(self._revoke, stored)

    async def revoked(self, revocation: Revocation) -> bool:
        """Mark the connections that an event applies to as revoked (§6.2); return whether it was processed before."""
        organizations = await self._store.revoke_by_event(revocation)
        for organization_id in organizations or ():
            log.warning(
                "team %s has revoked the connection of organization %s: %s",
                printable(revocation.team_id),
                printable(organization_id),
                revocation.reason,
                extra={"event": "chat.revoked"},
            )
        return organizations is None

    async def verify(self, stored: StoredConnection) -> ChatRefused | None:
        """Ask the provider about a connection's token, and store the answer (§6.2).

        A refused token is asked about again later: the answer may be somebody else's, such as a proxy's, or be about where
        the call comes from.

        Returns:
            Why the token is not accepted, or not known to be; ``None``: it is accepted.

        Raises:
            StorageUnavailable: the database failed.
        """
        whose = printable(stored.organization_id)
        try:
            identity = await self._provider.identify(unseal_token(self._keys, stored))
        except ChatRefused as refusal:
            if refusal.code in REVOKED and stored.ask_at is None:
                await self._store.refused(stored, refusal.code)
                log.warning(
                    "the provider refuses the token of organization %s: %s: it is asked again in a minute",
                    whose,
                    refusal.code,
                    extra={"event": "chat.token_refused"},
                )
            return refusal
        if identity.team_id != stored.team_id:
            return ChatRefused("unreachable", detail="the answer is about another workspace")
        if await self._store.accepted(stored):
            log.info(
                "the provider accepts the token of organization %s again",
                whose,
                extra={"event": "chat.token_accepted"},
            )
        return None

    def unreadable(self, organization_id: str, sealed_token: bytes) -> str | None:
        """Return the code of why a stored token cannot be used here; ``None`` when it can."""
        try:
            self._keys.open(sealed_token, organization_id, TOKEN_PURPOSE)
        except SealBroken:
            return "token_unreadable"
        return None

    def reason(self, stored: StoredConnection) -> str | None:
        """Return the code of why a connection cannot be used; ``None`` when it can."""
        try:
            usable_token(self._keys, stored)
        except ChatRefused as refusal:
            return refusal.code
        return None

    async def _revoke(self, stored: StoredConnection) -> None:
        """Revoke the token of a connection that is no longer stored, after the commit; best effort."""
        team = printable(stored.team_id)
        try:
            token = unseal_token(self._keys, stored)
            if (stored.status != "active" and stored.ask_at is None) or token == self._static_token:
                return
            async with self._turn(stored.team_id):
                if await self._store.some(usable_of(stored.team_id), 1):
                    log.info(
                        "team %s stays connected: no token is revoked", team, extra={"event": "chat.token_kept"}
                    )
                    return
                try:
                    await self._provider.revoke(token)
                finally:
                    # Also without an answer, because the token may have been revoked.
                    for other in await self._store.some(usable_of(stored.team_id)):
                        await self.verify(other)
        except Exception as exc:  # noqa: BLE001  the connection is removed already
            reason = exc if isinstance(exc, StorageUnavailable) else type(exc).__name__
            if isinstance(exc, ChatRefused):
                if exc.code in REVOKED:
                    return  # by an install that lost against another one, or by the workspace
                reason = f"{code_with_detail(exc)}: {exc}"
            log.warning(
                "the token of team %s could not be revoked: %s",
                team,
                reason,
                extra={"event": "chat.token_not_revoked"},
            )

    @asynccontextmanager
    async def _turn(self, team_id: str) -> AsyncIterator[None]:
        """Keep everybody else, in all processes, from installing or revoking a token of this workspace."""
        holder = new_id(self._clock())
        end = time.monotonic() + 15
        while not await self._store.take_turn(team_id, holder, TURN_SECONDS * 1000):
            if time.monotonic() >= end:
                raise ChatRefused("unreachable", detail="another install or revocation of the workspace waits")
            await asyncio.sleep(0.05)
        renew = partial(self._store.renew_turn, team_id, holder, TURN_SECONDS * 1000)
        try:
            async with renewing(renew, TURN_SECONDS, RENEW_SECONDS):
                yield
        except LeaseLost:
            raise ChatRefused("unreachable", detail="this install or revocation took too long") from None
        finally:
            # Otherwise its lease ends.
            with suppress(StorageUnavailable):
                await self._store.end_turn(team_id, holder)
