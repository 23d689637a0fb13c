"""Commands that try webhooks out: ``send-test`` sends one, ``listen`` receives, verifies and prints."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from flowactions_plugin.cli.frame import DONE, FAILED, command, host_option
from flowactions_plugin.cli.options import content, read_file, secret_option
from flowactions_plugin.cli.output import block, line, status, write_json

if TYPE_CHECKING:
    from flowactions_plugin.cli.receiver import Received


@command(
    "send-test",
    document="cli.trial:Sent",
    exits={
        DONE: "the receiver answered with 2xx",
        FAILED: "it did not, or nothing could be sent; the line says why",
    },
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
    callback=content(read_file),
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
    from flowactions_plugin.cli.trial import send

    async with context_of(host) as context:
        transport = None if context.host is None else context.host.transport
        sent = await send(url, method, event_type, body, secret, context.settings, transport)
    if as_json:
        write_json(sent)
        return DONE if sent.delivered else FAILED
    for name, ms in sent.phases.items():
        failed = "  failed here" if sent.error and name == [*sent.phases][-1] else ""
        line(f"{name:10} {ms:10.1f} ms{failed}")
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
def listen(
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
    import signal

    from flowactions_plugin.cli.receiver import Receiver

    def show(received: Received) -> None:
        if as_json:
            write_json(received, indent=None)
            return
        answered = f"  answered {received.status}" if forward_to is not None else ""
        again = "  (this event id came before)" if received.repeated else ""
        line(
            f"{received.received_at}  {received.verified:8}  {received.method} {received.target}  "
            f"{received.event_type or '-'}  {received.event_id or '-'}  {received.body_bytes} bytes{answered}{again}"
        )
        if show_headers:
            for name, value in received.headers:
                line(f"    {name}: {value}")
            line()
            block(received.body)

    if secret is None:
        secret = f"whsec_{secrets.token_urlsafe(24)}"
        status(f"signing secret of this run: {secret}")
    if forward_to is not None and not forward_to.startswith(("http://", "https://")):
        raise click.UsageError("--forward-to must be a URL that begins with http:// or https://.")
    with Receiver((bind, port), secret, answer, forward_to, show, count) as receiver:
        signal.signal(signal.SIGTERM, signal.default_int_handler)
        address, bound = receiver.socket.getsockname()[:2]
        try:
            status(f"listening at http://{f'[{address}]' if ':' in address else address}:{bound}/")
            receiver.serve_forever(poll_interval=0.05)
        except KeyboardInterrupt:
            pass
    return FAILED if count is not None and not receiver.all_verified else DONE
