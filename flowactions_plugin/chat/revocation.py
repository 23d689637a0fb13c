"""Revokes tokens at the provider, except those that another connection uses."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

from flowactions_plugin.chat.failures import REVOKED, ChatRefused, code_with_detail
from flowactions_plugin.chat.provider import SlackProvider
from flowactions_plugin.chat.store import ConnectionStore, StoredConnection, usable_of
from flowactions_plugin.chat.tokens import unseal_token
from flowactions_plugin.clock import new_id, system_clock
from flowactions_plugin.errors import StorageUnavailable
from flowactions_plugin.log_text import printable
from flowactions_plugin.storage.sealing import KeyRing

log = logging.getLogger("flowactions.chat")


class Revoker:
    """Tests tokens, and revokes those of connections that were removed or replaced, except ``CHAT_BOT_TOKEN``.

    The provider issues the same token for every install of one workspace, and revoking it uninstalls the app. So a token
    is revoked only while no connection of that workspace can be used, and in the workspace's turn: meanwhile no install
    stores its token. Other connections are tested afterwards.
    """

    def __init__(
        self, store: ConnectionStore, provider: SlackProvider, keys: KeyRing, static_token: str | None
    ) -> None:
        self._store = store
        self._provider = provider
        self._keys = keys
        self._static_token = static_token

    async def revoke(self, stored: StoredConnection) -> None:
        """Revoke the token of a connection that is no longer stored, after the commit; best effort."""
        team = printable(stored.team_id)
        try:
            token = unseal_token(self._keys, stored)
            if (stored.status != "active" and stored.ask_at is None) or token == self._static_token:
                return
            async with self.turn(stored.team_id):
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
    async def turn(self, team_id: str) -> AsyncIterator[None]:
        """Keep everybody else, in all processes, from installing or revoking a token of this workspace.

        Raises:
            ChatRefused: somebody else has had it for too long; they wait for the provider.
            StorageUnavailable: the database failed.
        """
        holder = new_id(system_clock())
        end = time.monotonic() + 15
        lease_ms = 30_000  # longer than the two calls of the provider that a turn lasts
        while not await self._store.take_turn(team_id, holder, lease_ms):
            if time.monotonic() >= end:
                raise ChatRefused("unreachable", detail="another install or revocation of the workspace waits")
            await asyncio.sleep(0.05)
        try:
            yield
        finally:
            # Otherwise its lease ends.
            with suppress(StorageUnavailable):
                await self._store.end_turn(team_id, holder)

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
