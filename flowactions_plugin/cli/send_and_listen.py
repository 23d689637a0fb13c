"""Commands that try webhooks out: ``send-test`` sends one, ``listen`` receives, verifies and prints."""

from __future__ import annotations

import click

from flowactions_plugin.cli.frame import DONE, FAILED, command
from flowactions_plugin.cli.options import host_option, read_secret, secret_option
from flowactions_plugin.cli.output import block, line, status, write_json


def _read_body(path: str | None) -> bytes | None:
    """Return the bytes of a file; ``None`` without one."""
    if path is None:
        return None
    try:
        with click.open_file(path, "rb") as file:
            body: bytes = file.read()
    except OSError as exc:
        raise click.UsageError(f"The body's file cannot be read: {exc.strerror}.") from None
    return body


@command(
    "send-test",
    document="cli.trial:Sent",
    exits={
        DONE: "the receiver answered with 2xx",
        FAILED: "it did not, or nothing could be sent; the line says why",
    },
    read={"secret": read_secret, "body": _read_body},
)
@click.argument("url")
@host_option()
@secret_option
@click.option("--method", default="POST", show_default=True, help="The HTTP method.")
@click.option("--event-type", default="flowactions.test", show_default=True, help="The type of the event.")
@click.option(
    "--body-file",
    "body",
    metavar="FILE",
    help="A file with the body; '-': standard input. Without it, a small test event.",
)
async def send_test(
    url: str,
    host: str | None,
    secret: str | None,
    method: str,
    event_type: str,
    body: bytes | None,
    as_json: bool,
) -> int:
    """Send one delivery to a URL, and time each phase of it.

    This process sends it, with the egress rules, the proxy and the certificates of the settings. If a secret is
    given, the request is signed. The command writes nothing to a database, and does not retry.
    """
    from flowactions_plugin.cli.context import context_of
    from flowactions_plugin.cli.trial import a_message, send

    async with context_of(host) as context:
        message = a_message(url, method, event_type, body, context.settings.max_body_bytes)
        transport = None if context.host is None else context.host.transport
        sent = await send(message, secret, context.settings, transport)
    if as_json:
        write_json(sent)
        return DONE if sent.delivered else FAILED
    for phase in sent.phases:
        failed = "  failed here" if sent.error and phase.name == sent.phase else ""
        line(f"{phase.name:10} {phase.ms:10.1f} ms{failed}")
    line(f"{'total':10} {sent.duration_ms:10.1f} ms")
    if sent.error is not None:
        line(f"not delivered: {sent.error}")
    else:
        signed = "signed" if sent.signed else "not signed, because no secret was given"
        through = f", {sent.note}" if sent.note else ""
        came = "delivered" if sent.delivered else "not delivered"
        line(f"{came}: it answered {sent.status_code} ({signed}){through}")
        if sent.response:
            block(sent.response)
    return DONE if sent.delivered else FAILED


@command(
    "listen",
    document="cli.receiver:Received",
    exits={
        DONE: "stopped by Ctrl+C or SIGTERM; or, with --count, this many requests arrived and all of them were verified",
        FAILED: "with --count: not all of them were verified",
        2: "the address cannot be used, or an option is wrong",
    },
    read={"secret": read_secret},
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
@click.option(
    "--forward-to",
    metavar="URL",
    help="Send each request on to this URL as it came, and answer with the status that it gives.",
)
@click.option("--count", type=click.IntRange(min=1), help="End after this many requests.")
@click.option("--headers", "show_headers", is_flag=True, help="Print the headers and the body, too.")
async def listen(
    bind: str,
    port: int,
    secret: str | None,
    answer: int,
    forward_to: str | None,
    count: int | None,
    show_headers: bool,
    as_json: bool,
) -> int:
    """Receive webhooks here, verify their signatures and print them.

    Without a signing secret, the command makes one and writes it to standard error: configure it in the
    webhook. With FLOWACTIONS_ENVIRONMENT=development, webhooks may go to a receiver on this machine.
    """
    import secrets

    from flowactions_plugin.cli.receiver import Receiver, serve

    if secret is None:
        secret = f"whsec_{secrets.token_urlsafe(24)}"
        status(f"signing secret of this run: {secret}")
    if forward_to is not None and not forward_to.startswith(("http://", "https://")):
        raise click.UsageError("--forward-to must be a URL that begins with http:// or https://.")
    receiver = Receiver(
        secret, answer, count, forward_to=forward_to, show_headers=show_headers, as_json=as_json
    )
    await serve(receiver, bind, port)
    return FAILED if count is not None and not receiver.all_verified else DONE
