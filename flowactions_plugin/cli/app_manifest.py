"""The app manifest of the chat provider: its form, and what this plugin needs in it."""

from __future__ import annotations

import ipaddress
from contextlib import suppress
from typing import Final

import msgspec

from flowactions_plugin.chat.app import CALLBACK_PATH, EVENTS_PATH, SCOPES, routes_url
from flowactions_plugin.chat.events import REASONS
from flowactions_plugin.errors import CannotRun
from flowactions_plugin.settings.urls import parse_url

MOST_NAME_CHARACTERS: Final = 35
"""The provider's limit of an app's name."""


class Part(msgspec.Struct, frozen=True):
    """A part of the manifest, with the provider's names."""


class DisplayInformation(Part, frozen=True):
    """What people see of the app.

    Attributes:
        name: the app's name.
        description: the app's description.
    """

    name: str
    description: str = "Posts the messages of flows to channels and members."


class AppHome(Part, frozen=True):
    """The app's own page in a workspace.

    Attributes:
        home_tab_enabled: false: the app has no home page.
        messages_tab_enabled: true: without it, the provider refuses direct messages of the app.
        messages_tab_read_only_enabled: true: nobody reads the answers of members.
    """

    home_tab_enabled: bool = False
    messages_tab_enabled: bool = True
    messages_tab_read_only_enabled: bool = True


class BotUser(Part, frozen=True):
    """The user that messages come from.

    Attributes:
        display_name: the app's name.
        always_online: false: nobody answers there.
    """

    display_name: str
    always_online: bool = False


class Features(Part, frozen=True):
    """Parts of the app that people see.

    Attributes:
        bot_user: the sender of messages.
        app_home: the app's own page in a workspace.
    """

    bot_user: BotUser
    app_home: AppHome = AppHome()


class Scopes(Part, frozen=True):
    """The permissions that the app requests.

    Attributes:
        bot: the scopes of its token, which an install requests (§2.3).
    """

    bot: tuple[str, ...] = SCOPES


class OAuthConfig(Part, frozen=True):
    """How the app is installed.

    Attributes:
        redirect_urls: the URL of the callback, to which the provider sends browsers after an install.
        scopes: the permissions that the app requests.
    """

    redirect_urls: tuple[str, ...]
    scopes: Scopes = Scopes()


class EventSubscriptions(Part, frozen=True):
    """The events that the provider sends to the app.

    Attributes:
        request_url: the URL that gets the events.
        bot_events: the events that end a chat connection (§6.2).
    """

    request_url: str
    bot_events: tuple[str, ...] = tuple(REASONS)


class Interactivity(Part, frozen=True):
    """Buttons and menus in messages.

    Attributes:
        is_enabled: false: messages are text.
    """

    is_enabled: bool = False


class AppSettings(Part, frozen=True):
    """How the provider talks to the app.

    Attributes:
        event_subscriptions: the events that the provider sends to the app.
        interactivity: buttons and menus in messages.
        org_deploy_enabled: false: an organization of this host connects one workspace.
        socket_mode_enabled: false: events come as signed requests.
        token_rotation_enabled: false: the stored token does not expire (§2.2).
    """

    event_subscriptions: EventSubscriptions
    interactivity: Interactivity = Interactivity()
    org_deploy_enabled: bool = False
    socket_mode_enabled: bool = False
    token_rotation_enabled: bool = False


class AppManifest(Part, frozen=True):
    """The app manifest.

    Attributes:
        display_information: what people see of the app.
        features: parts of the app that people meet.
        oauth_config: how the app is installed.
        settings: how the provider talks to the app.
    """

    display_information: DisplayInformation
    features: Features
    oauth_config: OAuthConfig
    settings: AppSettings


def app_manifest(name: str, public_url: str, prefix: str) -> AppManifest:
    """Return the manifest of a host's app; its URL has no slash at the end, its prefix is that of ``FlowActions.load``."""
    routes = routes_url(public_url, prefix)
    return AppManifest(
        display_information=DisplayInformation(name=name),
        features=Features(bot_user=BotUser(display_name=name)),
        oauth_config=OAuthConfig(redirect_urls=(f"{routes}{CALLBACK_PATH}",)),
        settings=AppSettings(event_subscriptions=EventSubscriptions(request_url=f"{routes}{EVENTS_PATH}")),
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
