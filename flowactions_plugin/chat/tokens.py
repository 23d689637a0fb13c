"""The sealed bot tokens of stored connections, and the rotation of the keys that seal them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from flowactions_plugin.chat.failures import ChatRefused
from flowactions_plugin.chat.store import ConnectionStore, StoredConnection
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


class Resealed(NamedTuple):
    """How many tokens were sealed with an older key and with the newest; organizations whose token no key opens."""

    changed: int
    current: int
    broken: Sequence[str]


async def reseal(store: ConnectionStore, keys: KeyRing, *, dry: bool = False) -> Resealed:
    """Seal every token with the newest key, while hosts continue to use them (§5.2); a dry run changes nothing.

    Raises:
        StorageUnavailable: the database failed. Resealed tokens stay resealed, and the command can be repeated.
    """
    changed = current = 0
    broken: list[str] = []
    after = ""
    while page := await store.sealed_tokens(after, 200):
        for organization_id, sealed in page:
            try:
                token = keys.open(sealed, organization_id, TOKEN_PURPOSE)
            except SealBroken:
                broken.append(organization_id)
                continue
            if keys.is_newest(sealed):
                current += 1
            elif dry or await store.reseal(
                organization_id, sealed, keys.seal(token, organization_id, TOKEN_PURPOSE)
            ):
                changed += 1
        after = page[-1][0]
    return Resealed(changed, current, broken)
