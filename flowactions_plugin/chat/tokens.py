"""The bot token of a stored connection."""

from __future__ import annotations

from typing import Final

from flowactions_plugin.chat.failures import ChatRefused
from flowactions_plugin.chat.store import StoredConnection
from flowactions_plugin.errors import SealBroken
from flowactions_plugin.storage.sealing import KeyRing

TOKEN_PURPOSE: Final = "chat bot token"  # noqa: S105  the purpose of sealing, not a secret


def unseal_token(keys: KeyRing, stored: StoredConnection) -> str:
    """Return a connection's token, whatever its status.

    Raises:
        ChatRefused: the present keys do not open it.
    """
    try:
        return keys.open(stored.sealed_token, stored.organization_id, TOKEN_PURPOSE)
    except SealBroken:
        raise ChatRefused("token_unreadable") from None


def usable_token(keys: KeyRing, stored: StoredConnection) -> str:
    """Return the token of a connection that is active.

    Raises:
        ChatRefused: the connection was revoked, or the present keys do not open the token.
    """
    if stored.status != "active":
        raise ChatRefused(stored.status_reason or "token_revoked")
    return unseal_token(keys, stored)
