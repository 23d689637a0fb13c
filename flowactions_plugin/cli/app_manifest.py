"""The app manifest of the chat provider: its form, and what this plugin needs in it."""

from __future__ import annotations

from typing import Any, Final

from flowactions_plugin.chat.app import CALLBACK_PATH, EVENTS_PATH, SCOPES
from flowactions_plugin.chat.events import REASONS

NAME: Final = "Flow messages"
"""What people see of the app; who pastes the manifest may change it."""


def app_manifest(routes: str) -> dict[str, Any]:
    """Return the manifest of the app of a host whose routes are at a URL without a slash at its end.

    Its parts: what people see of the app; the user that messages come from, with the messages tab, without which the provider
    refuses direct messages; how it is installed, with the scopes of its token (§2.3); and the events that end a chat
    connection (§6.2), as signed requests. The token does not expire (§2.2).
    """
    home = {"home_tab_enabled": False, "messages_tab_enabled": True, "messages_tab_read_only_enabled": True}
    return {
        "display_information": {
            "name": NAME,
            "description": "Posts the messages of flows to channels and members.",
        },
        "features": {"bot_user": {"display_name": NAME, "always_online": False}, "app_home": home},
        "oauth_config": {"redirect_urls": [f"{routes}{CALLBACK_PATH}"], "scopes": {"bot": SCOPES}},
        "settings": {
            "event_subscriptions": {"request_url": f"{routes}{EVENTS_PATH}", "bot_events": tuple(REASONS)},
            "interactivity": {"is_enabled": False},
            "org_deploy_enabled": False,
            "socket_mode_enabled": False,
            "token_rotation_enabled": False,
        },
    }
