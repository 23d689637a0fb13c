"""Revokes tokens at the provider, except those that another connection uses."""

from __future__ import annotations

import logging

from flowactions_plugin.chat.failures import REVOKED, ChatRefused, code_with_detail
from flowactions_plugin.chat.provider import ChatProvider
from flowactions_plugin.chat.store import ConnectionStore, StoredConnection
from flowactions_plugin.chat.tokens import unseal_token
from flowactions_plugin.errors import StorageUnavailable
from flowactions_plugin.log_text import printable
from flowactions_plugin.storage.sealing import KeyRing

log = logging.getLogger("flowactions.chat")


class Revoker:
    """Revokes the tokens of connections that were removed or replaced.

    The provider issues the same token for every install of one workspace, and revoking it uninstalls the app. So a token
    is revoked only while no connection of that workspace is active. An install can still finish while the provider
    revokes: the later of the two, install or revocation, checks that the token works, and marks the connection as revoked
    when it does not. So no connection stays ``active`` with a revoked token.

    Args:
        store: where connections are kept.
        provider: the chat provider.
        keys: open the tokens.
        static_token: ``CHAT_BOT_TOKEN``; it is never revoked.
    """

    def __init__(
        self, store: ConnectionStore, provider: ChatProvider, keys: KeyRing, static_token: str | None
    ) -> None:
        self._store = store
        self._provider = provider
        self._keys = keys
        self._static_token = static_token

    async def revoke(self, stored: StoredConnection) -> None:
        """Revoke the token of a connection that is no longer stored; best effort.

        Args:
            stored: the removed or replaced connection, after the commit.
        """
        team = printable(stored.team_id)
        try:
            token = unseal_token(self._keys, stored)
            if stored.status != "active" or token == self._static_token:
                return
            if await self._store.active_of_team(stored.team_id, 1):
                log.info(
                    "team %s stays connected: no token is revoked", team, extra={"event": "chat.token_kept"}
                )
                return
            try:
                await self._provider.revoke(token)
            finally:
                # Also without an answer, because the token may have been revoked.
                for other in await self._store.active_of_team(stored.team_id):
                    await self._verify(other)
        except ChatRefused as refusal:
            log.warning(
                "the token of team %s could not be revoked: %s: %s",
                team,
                code_with_detail(refusal),
                refusal,
                extra={"event": "chat.token_not_revoked"},
            )
        except Exception as exc:  # noqa: BLE001  the connection is removed already
            reason = exc if isinstance(exc, StorageUnavailable) else type(exc).__name__
            log.warning(
                "the token of team %s could not be revoked: %s",
                team,
                reason,
                extra={"event": "chat.token_not_revoked"},
            )

    async def verify(self, stored: StoredConnection) -> None:
        """Check that the token of a connection that has just been stored works.

        Raises:
            ChatRefused: it was revoked meanwhile; the connection is marked as revoked.
        """
        try:
            await self._provider.identify(unseal_token(self._keys, stored))
        except ChatRefused as refusal:
            if refusal.code in REVOKED:
                await self._store.revoke([stored], refusal.code)
                raise

    async def _verify(self, stored: StoredConnection) -> None:
        try:
            await self.verify(stored)
        except ChatRefused as refusal:
            log.warning(
                "organization %s connected team %s while its token was being revoked: %s",
                printable(stored.organization_id),
                printable(stored.team_id),
                refusal,
                extra={"event": "chat.connected_meanwhile"},
            )
