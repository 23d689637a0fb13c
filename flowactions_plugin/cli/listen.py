"""``flowactions listen``: a local receiver that verifies and prints."""

from __future__ import annotations

import click

from flowactions_plugin.cli.frame import DONE, FAILED, command
from flowactions_plugin.cli.options import secret_option


@command(
    "listen",
    document="Received",
    exits={
        DONE: "stopped by Ctrl+C or SIGTERM; or, with --count, that many came and all of them were verified",
        FAILED: "with --count: not all of them were verified",
        2: "the address cannot be listened at, or a wrong option",
    },
)
@click.option(
    "--bind", default="127.0.0.1", show_default=True, metavar="ADDRESS", help="The address to listen at."
)
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    default=8420,
    show_default=True,
    help="The port; 0: any that is free.",
)
@secret_option
@click.option(
    "--status",
    "answer",
    type=click.IntRange(200, 599),
    default=200,
    show_default=True,
    help="The status of every answer; 500 or 429, for example, to watch retries.",
)
@click.option("--count", type=click.IntRange(min=1), help="End after so many requests.")
@click.option("--headers", "show_headers", is_flag=True, help="Print the headers and the body, too.")
async def listen(
    bind: str,
    port: int,
    secret: str | None,
    answer: int,
    count: int | None,
    show_headers: bool,
    as_json: bool,
) -> int:
    """Receive webhooks here, verify their signatures and print them.

    Without a signing secret, one is made and written to standard error: configure it in the webhook. A receiver on this
    machine is allowed as a destination with FLOWACTIONS_ENVIRONMENT=development.
    """
    import secrets

    from flowactions_plugin.cli.output import status
    from flowactions_plugin.cli.receiver import Receiver, serve

    if secret is None:
        secret = f"whsec_{secrets.token_urlsafe(24)}"
        status(f"signing secret of this run: {secret}")
    receiver = Receiver(secret, answer, count, show_headers=show_headers, as_json=as_json)
    await serve(receiver, bind, port)
    return FAILED if count is not None and not receiver.all_verified else DONE
