"""Where the chat routes are, and how the provider reaches them."""

from __future__ import annotations

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


def routes_url(public_url: str, prefix: str) -> str:
    """Return the URL to which the path of a route is added, without a slash at the end.

    Args:
        public_url: ``BACKEND_PUBLIC_URL``, without a slash at the end.
        prefix: the facade's; the result ends in it once, whether ``public_url`` does or not.
    """
    return public_url.removesuffix(prefix) + prefix
