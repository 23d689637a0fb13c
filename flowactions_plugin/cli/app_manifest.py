"""``flowactions chat-manifest``: the app manifest of the chat provider, with what this plugin needs in it."""

from __future__ import annotations

from typing import Any, Final

import click

from flowactions_plugin.chat.app import CALLBACK_PATH, EVENTS_PATH, SCOPES
from flowactions_plugin.chat.events import REASONS
from flowactions_plugin.cli.context import context_of
from flowactions_plugin.cli.frame import DONE
from flowactions_plugin.cli.output import status, write_json
from flowactions_plugin.settings.readers import base_url

NAME: Final = "Flow messages"
"""What people see of the app; who pastes the manifest may change it."""

NEXT_STEPS: Final = (
    "Create the app: https://api.slack.com/apps, Create New App, From a manifest; paste what is above.",
    "Set CHAT_CLIENT_ID, CHAT_CLIENT_SECRET and CHAT_SIGNING_SECRET from its Basic Information; restart the host.",
    "Then verify the request URL under Event Subscriptions: the host answers there once it knows the signing secret.",
)
"""What is to be done with an app manifest."""


async def chat_manifest(host: str | None, url: str | None) -> int:
    """Write the manifest for a host whose routes are at a URL, else at the public one of its settings."""
    if url is None:
        async with context_of(host) as context:
            public_url = context.settings.public_url
        if public_url is None:
            raise click.UsageError("Nothing says where the routes are: set BACKEND_PUBLIC_URL, or add --url.")
    else:
        try:
            public_url = base_url(url)
        except ValueError as exc:
            raise click.UsageError(f"--url {exc}.") from None
    write_json(app_manifest(public_url))
    if not public_url.startswith("https://"):
        status(
            "flowactions: warning: a real provider accepts no URL but https://: name the public one, with --url."
        )
    for step in NEXT_STEPS:
        status(step)
    return DONE


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
