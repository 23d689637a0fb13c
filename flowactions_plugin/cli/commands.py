"""The tree of commands."""

from __future__ import annotations

import click

from flowactions_plugin.cli.destinations import destinations
from flowactions_plugin.cli.frame import SETTINGS
from flowactions_plugin.cli.maintenance import doctor, migrate, purge, reseal
from flowactions_plugin.cli.outbox import outbox
from flowactions_plugin.cli.preparing import chat_manifest, completion, keygen
from flowactions_plugin.cli.send_and_listen import listen, send_test
from flowactions_plugin.cli.worker import worker, workers


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
    completion,
):
    flowactions.add_command(each)
