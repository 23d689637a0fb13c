"""``flowactions doctor``: what is wrong, and what to do."""

from __future__ import annotations

import click

from flowactions_plugin.cli.frame import DONE, FAILED, command
from flowactions_plugin.cli.options import host_option

STALLED = 4
FAILING = 5


@command(
    "doctor",
    document="Diagnosis",
    exits={
        DONE: "no check failed, and deliveries go on, or nothing is due",
        FAILED: "a check failed",
        STALLED: "deliveries are stalled: rows are due, and nobody claims them",
        FAILING: "deliveries are failing: most attempts of the last minutes have failed",
    },
)
@host_option()
@click.option(
    "--url", multiple=True, help="Say what would happen to a webhook to this URL, and why. May be repeated."
)
@click.option(
    "--chat/--no-chat",
    "with_chat",
    default=True,
    show_default=True,
    help="Ask the chat provider about stored tokens.",
)
async def doctor(host: str | None, url: tuple[str, ...], with_chat: bool, as_json: bool) -> int:
    """Check settings, database, tables, clocks, keys, chat tokens, egress, its proxy and deliveries.

    It leaves nothing behind: what it writes to see that the database can be written is removed in the same transaction. The
    exit status is that of the verdict, so that a monitor can run it.
    """
    from flowactions_plugin.cli.diagnosis import diagnose
    from flowactions_plugin.cli.output import line, write_json

    found = await diagnose(host, url, with_chat=with_chat)
    if as_json:
        write_json(found)
        return found.exit_status
    for check in found.checks:
        line(f"{check.result:8} {check.name:12} {check.message}")
        if check.advice:
            line(f"{'':21} -> {check.advice}")
    return found.exit_status
