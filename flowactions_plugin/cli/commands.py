"""The tree of commands, and those with which a host is prepared: ``keygen`` and ``chat-manifest``."""

from __future__ import annotations

from typing import Final

import click

from flowactions_plugin.cli.destinations import destinations
from flowactions_plugin.cli.frame import DONE, SETTINGS, command, host_option
from flowactions_plugin.cli.maintenance import doctor, migrate, purge, reseal
from flowactions_plugin.cli.options import WORDS
from flowactions_plugin.cli.outbox import outbox, show_status
from flowactions_plugin.cli.output import line, status, write_json
from flowactions_plugin.cli.send_and_listen import listen, send_test
from flowactions_plugin.cli.worker import worker

NEXT_STEPS: Final = (
    "Create the app: https://api.slack.com/apps, Create New App, From a manifest; paste what is above.",
    "Set CHAT_CLIENT_ID, CHAT_CLIENT_SECRET and CHAT_SIGNING_SECRET from its Basic Information; restart the host.",
    "Then verify the request URL under Event Subscriptions: the host answers there once it knows the signing secret.",
)
"""What is to be done with an app manifest."""


@command("keygen")
@click.option(
    "--signing", is_flag=True, help="Make a signing secret of a webhook instead of an encryption key."
)
def keygen(signing: bool) -> int:
    """Make an encryption key, for FLOWACTIONS_ENCRYPTION_KEYS.

    The key is 32 random bytes in base64. It is written to standard output and not stored. To rotate keys, put
    it before the older keys and run 'flowactions reseal'.
    """
    import base64
    import secrets

    line(("whsec_" if signing else "") + base64.b64encode(secrets.token_bytes(32)).decode())
    return DONE


@command("chat-manifest")
@host_option()
@click.option(
    "--url",
    type=WORDS,
    metavar="URL",
    help="The URL at which browsers and the provider reach this host's routes, with the prefix of FlowActions.load, if it has "
    "one. Without it, BACKEND_PUBLIC_URL.",
)
async def chat_manifest(host: str | None, url: str | None) -> int:
    """Write the app manifest of the chat provider for this host, as JSON.

    It has the scopes, events and URLs that this release uses. Paste it where the provider makes an app 'from a
    manifest'; you may change its name. It contains no secret. The command sends nothing and opens no database. The next
    steps are written to standard error.
    """
    from flowactions_plugin.cli.app_manifest import app_manifest
    from flowactions_plugin.cli.context import context_of
    from flowactions_plugin.settings.readers import base_url

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


@click.group("flowactions", context_settings=SETTINGS, no_args_is_help=False)
@click.option(
    "--log-level",
    type=click.Choice(["debug", "info", "warning", "error"]),
    default="info",
    show_default=True,
    help="What is logged to standard error.",
)
def flowactions(log_level: str) -> None:
    """Operate the flow-actions plugin."""


for each in (
    worker,
    migrate,
    reseal,
    doctor,
    show_status,
    outbox,
    destinations,
    purge,
    send_test,
    listen,
    chat_manifest,
    keygen,
):
    flowactions.add_command(each)
