"""The chat app as the provider knows it: where its routes are, and its scopes."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

BASE_PATH: Final = "/integrations/chat"

CALLBACK: Final = "/callback"
"""Below the base path: where the provider sends browsers back."""

EVENTS: Final = "/events"
"""Below the base path: where the provider sends its events."""

CALLBACK_PATH: Final = f"{BASE_PATH}{CALLBACK}"
EVENTS_PATH: Final = f"{BASE_PATH}{EVENTS}"
CHANNELS_PATH: Final = f"{BASE_PATH}/channels"
MEMBERS_PATH: Final = f"{BASE_PATH}/members"

SCOPES: Final = ("chat:write", "channels:read", "groups:read", "users:read", "im:write")
"""The requested scopes, exactly as in §2.3."""

_SEPARATOR = re.compile(r"[,\s]+")
_SCOPE = re.compile(r"[A-Za-z0-9:._-]{1,100}", re.ASCII)


def routes_url(public_url: str, prefix: str) -> str:
    """Return ``BACKEND_PUBLIC_URL`` with the facade's prefix at its end, once. Neither ends with a slash."""
    return public_url.removesuffix(prefix) + prefix


def read_scopes(text: object) -> tuple[str, ...]:
    """Parse at most a hundred scopes separated by commas. Other types give none, and malformed scopes are ignored."""
    if not isinstance(text, str):
        return ()
    found = dict.fromkeys(scope for scope in _SEPARATOR.split(text) if _SCOPE.fullmatch(scope))
    return tuple(found)[:100]


def in_order(scopes: Iterable[str]) -> tuple[str, ...]:
    """Return each scope once: requested ones first, in the order of the request."""
    unique = dict.fromkeys(scopes)
    return tuple(sorted(unique, key=lambda scope: SCOPES.index(scope) if scope in SCOPES else len(SCOPES)))


def is_covered(scope: str, used: Iterable[str]) -> bool:
    """Return whether a scope, or a special form of it such as ``chat:write.public``, is one that a call used."""
    return any(scope == each or scope.startswith((f"{each}.", f"{each}:")) for each in used)
