"""The app manifest of the chat provider: its form, and what this plugin needs in it."""

from __future__ import annotations

import ipaddress
from contextlib import suppress
from typing import Any, Final

import msgspec

from flowactions_plugin.chat.app import CALLBACK_PATH, EVENTS_PATH, SCOPES, routes_url
from flowactions_plugin.chat.events import REASONS
from flowactions_plugin.errors import CannotRun
from flowactions_plugin.settings.urls import parse_url

MOST_NAME_CHARACTERS: Final = 35
"""The provider's limit of an app's name."""


class AppManifest(msgspec.Struct):
    """The app manifest, with the provider's names.

    Attributes:
        display_information: what people see of the app.
        features: the user that messages come from, and the app's own page in a workspace. Without its messages tab, the provider
            refuses direct messages.
        oauth_config: how the app is installed: the callback, and the scopes of its token (§2.3).
        settings: the events that end a chat connection (§6.2), as signed requests. The token does not expire (§2.2).
    """

    display_information: dict[str, Any]
    features: dict[str, Any]
    oauth_config: dict[str, Any]
    settings: dict[str, Any]


def app_manifest(name: str, public_url: str, prefix: str) -> AppManifest:
    """Return the manifest of a host's app; its URL has no slash at the end, its prefix is that of ``FlowActions.load``."""
    routes = routes_url(public_url, prefix)
    home = {"home_tab_enabled": False, "messages_tab_enabled": True, "messages_tab_read_only_enabled": True}
    return AppManifest(
        display_information={
            "name": name,
            "description": "Posts the messages of flows to channels and members.",
        },
        features={"bot_user": {"display_name": name, "always_online": False}, "app_home": home},
        oauth_config={"redirect_urls": [f"{routes}{CALLBACK_PATH}"], "scopes": {"bot": SCOPES}},
        settings={
            "event_subscriptions": {"request_url": f"{routes}{EVENTS_PATH}", "bot_events": tuple(REASONS)},
            "interactivity": {"is_enabled": False},
            "org_deploy_enabled": False,
            "socket_mode_enabled": False,
            "token_rotation_enabled": False,
        },
    )


def is_on_loopback(public_url: str, source: str) -> bool:
    """Return whether a URL, of this setting or option, leads to this machine only, where no real provider can reach it.

    Raises:
        CannotRun: it starts with ``http://`` and leads elsewhere: the provider takes ``https://`` only.
    """
    url = parse_url(public_url)
    loopback = url.host == "localhost"
    with suppress(ValueError):  # a name
        loopback = loopback or ipaddress.ip_address(url.host.strip("[]")).is_loopback
    if url.scheme != "https" and not loopback:
        raise CannotRun(
            f"{source} must start with https://, because the chat provider accepts no other URL: name the public URL, with --url"
        )
    return loopback
