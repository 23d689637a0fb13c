"""The tree of commands, and those with which a host is prepared: ``keygen`` and ``chat-manifest``."""

from __future__ import annotations

from typing import Final

import click

from flowactions_plugin.cli.destinations import destinations
from flowactions_plugin.cli.frame import DONE, SETTINGS, command
from flowactions_plugin.cli.maintenance import doctor, migrate, purge, reseal
from flowactions_plugin.cli.options import WORDS, host_option
from flowactions_plugin.cli.outbox import outbox
from flowactions_plugin.cli.output import line, status, write_json
from flowactions_plugin.cli.send_and_listen import listen, send_test
from flowactions_plugin.cli.worker import worker, workers

NEXT_STEPS: Final = (
    "Create the app: https://api.slack.com/apps, Create New App, From a manifest; paste what is above.",
    "Set CHAT_CLIENT_ID, CHAT_CLIENT_SECRET and CHAT_SIGNING_SECRET from its Basic Information; restart the host.",
    "Then verify the request URL under Event Subscriptions: the host answers there once it knows the signing secret.",
)
"""What is to be done with an app manifest."""


@command("keygen", document="cli.documents:Key")
@click.option(
    "--signing", is_flag=True, help="Make a signing secret of a webhook instead of an encryption key."
)
def keygen(signing: bool, as_json: bool) -> int:
    """Make an encryption key, for FLOWACTIONS_ENCRYPTION_KEYS.

    The key is 32 random bytes in base64. It is written to standard output and not stored. To rotate keys, put
    it before the older keys and run 'flowactions reseal'.
    """
    import base64
    import secrets

    key = ("whsec_" if signing else "") + base64.b64encode(secrets.token_bytes(32)).decode()
    if as_json:
        from flowactions_plugin.cli.documents import Key

        write_json(Key(kind="signing" if signing else "encryption", key=key))
    else:
        line(key)
    return DONE


@command("chat-manifest", document="cli.app_manifest:AppManifest")
@host_option()
@click.option(
    "--url",
    type=WORDS,
    metavar="URL",
    help="The URL at which browsers and the provider reach this host's routes. Without it, BACKEND_PUBLIC_URL.",
)
@click.option(
    "--prefix",
    type=WORDS,
    default="",
    metavar="PATH",
    help="The prefix of FlowActions.load, if the host has one; it is added to a URL that does not end in it.",
)
@click.option(
    "--name",
    type=WORDS,
    default="Flow messages",
    show_default=True,
    help="The app's name, which people see in their workspace; at most 35 characters.",
)
async def chat_manifest(host: str | None, url: str | None, prefix: str, name: str, as_json: bool) -> int:
    """Write the app manifest of the chat provider for this host.

    It has the scopes, events and URLs that this release uses. Paste it where the provider makes an app 'from a
    manifest'. It contains no secret. The command sends nothing and opens no database. Without --json, it also
    writes the next steps to standard error.
    """
    from flowactions_hookspecs.routes import check_prefix
    from flowactions_plugin.cli.app_manifest import MOST_NAME_CHARACTERS, app_manifest, is_on_loopback
    from flowactions_plugin.cli.context import context_of
    from flowactions_plugin.settings.readers import base_url

    try:
        check_prefix(prefix)
    except ValueError as exc:
        raise click.UsageError(f"--{exc}.") from None  # it begins with "prefix"
    try:
        public_url = None if url is None else base_url(url)
    except ValueError as exc:
        raise click.UsageError(f"--url {exc}.") from None
    if not name.strip() or not name.isprintable() or len(name) > MOST_NAME_CHARACTERS:
        raise click.UsageError(f"--name must be up to {MOST_NAME_CHARACTERS} printable characters.")
    if public_url is None:
        async with context_of(host) as context:
            public_url = context.settings.public_url
    if public_url is None:
        raise click.UsageError("Nothing says where the routes are: set BACKEND_PUBLIC_URL, or add --url.")
    loopback = is_on_loopback(public_url, "BACKEND_PUBLIC_URL" if url is None else "--url")
    write_json(app_manifest(name, public_url, prefix))
    if loopback:
        status("flowactions: warning: the URL leads to this machine only: a real provider cannot reach it.")
    if not as_json:
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
    outbox,
    destinations,
    workers,
    purge,
    send_test,
    listen,
    chat_manifest,
    keygen,
):
    flowactions.add_command(each)
