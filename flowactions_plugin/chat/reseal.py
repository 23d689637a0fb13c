"""Key rotation: every stored token sealed anew under the newest key (§5.2)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from flowactions_plugin.chat.store import ConnectionStore
from flowactions_plugin.chat.tokens import TOKEN_PURPOSE
from flowactions_plugin.errors import SealBroken
from flowactions_plugin.storage.sealing import KeyRing

PAGE: Final = 200


class Resealed(NamedTuple):
    """What a run of `reseal` found.

    Attributes:
        changed: how many tokens were under an older key; they are under the newest now, unless it only looked.
        current: how many were under the newest key already.
        broken: the organizations whose token none of the keys opens.
    """

    changed: int
    current: int
    broken: Sequence[str]


async def reseal(store: ConnectionStore, keys: KeyRing, *, dry: bool = False) -> Resealed:
    """Seal every token under the newest key, while hosts go on using them.

    Args:
        store: the connections.
        keys: the newest first, then those that tokens may still be under.
        dry: only look.

    Raises:
        StorageUnavailable: the database failed; what was done until then stays done, and it can be run again.
    """
    changed = current = 0
    broken: list[str] = []
    after = ""
    while page := await store.sealed_tokens(after, PAGE):
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
