"""The session of the pages, for hosts whose dashboard sends a bearer token: a browser cannot send one with a link.

The token is sealed into a cookie, and opened at each request, so that the host decides at each request who calls.
"""

from __future__ import annotations

import base64
from collections.abc import Callable
from typing import Final

from flowactions_plugin.clock import Clock
from flowactions_plugin.errors import NotConfigured, SealBroken
from flowactions_plugin.storage.sealing import KeyRing

COOKIE: Final = "flowactions_session"
SESSION_SECONDS: Final = 30 * 60
TOKEN_BYTES: Final = 2900
"""Browsers drop a cookie of more than 4096 bytes, and sealing and base64 make a token a third longer."""

_PURPOSE: Final = "page session"
_NOBODY: Final = ""
"""Sealed values belong to an organization. Which one a session belongs to, the host says at each request."""


class Sessions:
    """Seals bearer tokens into cookies, and opens them.

    Args:
        keys: returns the keys; raises `NotConfigured` when there is no key.
        clock: Unix seconds.
    """

    def __init__(self, keys: Callable[[], KeyRing], clock: Clock) -> None:
        self._read_keys = keys
        self._keys: KeyRing | None = None
        self._clock = clock

    def __repr__(self) -> str:
        return "Sessions(…)"

    def seal(self, token: str) -> str:
        """Return the value of a session's cookie, which is valid for half an hour.

        Args:
            token: the bearer token, at most `TOKEN_BYTES` long.

        Raises:
            NotConfigured: there is no key; the message names the setting.
        """
        sealed = self._key_ring().seal(f"{int(self._clock()) + SESSION_SECONDS} {token}", _NOBODY, _PURPOSE)
        return base64.urlsafe_b64encode(sealed).decode().rstrip("=")

    def open(self, value: str | None) -> str | None:
        """Return the bearer token of a session; ``None`` when there is none, or it is over or was not sealed here.

        Args:
            value: the cookie's, as a browser has sent it.
        """
        if not value or not value.isascii():
            return None
        try:
            sealed = base64.urlsafe_b64decode(value + "=" * (-len(value) % 4))
            expires, _, token = self._key_ring().open(sealed, _NOBODY, _PURPOSE).partition(" ")
        except (ValueError, SealBroken, NotConfigured):
            return None
        return token if self._clock() < int(expires) else None

    def _key_ring(self) -> KeyRing:
        if self._keys is None:
            self._keys = self._read_keys()
        return self._keys
