"""Making a token worthless at the provider without taking it from a connection that uses it."""

from __future__ import annotations

import logging
from typing import Final

from flowactions_plugin.chat.failures import REVOKED, ChatRefused, code_with_detail
from flowactions_plugin.chat.provider import ChatProvider
from flowactions_plugin.chat.store import ConnectionStore, StoredConnection
from flowactions_plugin.errors import SealBroken, StorageUnavailable
from flowactions_plugin.log_text import printable
from flowactions_plugin.storage.sealing import KeyRing

log = logging.getLogger("flowactions.chat")

TOKEN_PURPOSE: Final = "chat bot token"  # noqa: S105  what is sealed, not a secret


def unsealed(keys: KeyRing, stored: StoredConnection) -> str:
    """Give a connection's token.

    Raises:
        ChatRefused: the present keys do not open it.
    """
    try:
        return keys.open(stored.sealed_token, stored.organization_id, TOKEN_PURPOSE)
    except SealBroken:
        raise ChatRefused("token_unreadable") from None


class Revoker:
    """Revokes the tokens of connections that were removed or replaced.

    The provider gives every install of one workspace the same token, and takes the app out of the workspace with it.
    So a token is revoked only while no connection of that workspace is active. An install can still end while the
    provider revokes: whoever comes second, install or revocation, looks whether the token works, and notes on the
    connection when it does not. No connection stays ``active`` with a dead token.

    Args:
        store: where connections are kept.
        provider: the chat provider.
        keys: open the tokens.
        static_token: ``CHAT_BOT_TOKEN``; it belongs to the operator and is never revoked from here.
    """

    def __init__(
        self, store: ConnectionStore, provider: ChatProvider, keys: KeyRing, static_token: str | None
    ) -> None:
        self._store = store
        self._provider = provider
        self._keys = keys
        self._static_token = static_token

    async def revoke(self, stored: StoredConnection) -> None:
        """Revoke the token of a connection that is no longer stored, as far as provider and database answer.

        Args:
            stored: what was removed or replaced, after that has committed.
        """
        team = printable(stored.team_id)
        try:
            token = unsealed(self._keys, stored)
            if stored.status != "active" or token == self._static_token:
                return
            if await self._store.active_of_team(stored.team_id, 1):
                log.info("team %s stays connected: no token is revoked", team)
                return
            try:
                await self._provider.revoke(token)
            finally:
                # Also when there was no answer: it may have been done all the same.
                for other in await self._store.active_of_team(stored.team_id):
                    await self._verify(other)
        except ChatRefused as refusal:
            log.warning(
                "the token of team %s could not be revoked: %s: %s", team, code_with_detail(refusal), refusal
            )
        except Exception as exc:  # noqa: BLE001  what was asked for has been done before
            reason = exc if isinstance(exc, StorageUnavailable) else type(exc).__name__
            log.warning("the token of team %s could not be revoked: %s", team, reason)

    async def verify(self, stored: StoredConnection) -> None:
        """Look whether the token of a connection that has just been stored works.

        Raises:
            ChatRefused: it was revoked in the meantime, which is noted on the connection.
        """
        try:
            await self._provider.identify(unsealed(self._keys, stored))
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
            )
