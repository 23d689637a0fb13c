"""``flowactions send-test``: sends a delivery, and says how long each phase of the attempt took."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Sequence
from typing import BinaryIO, Final, NamedTuple

import msgspec

from flowactions_plugin.cli.context import context_of
from flowactions_plugin.cli.frame import DONE, FAILED
from flowactions_plugin.cli.options import read_secret
from flowactions_plugin.cli.output import block, line
from flowactions_plugin.clock import system_clock, to_iso
from flowactions_plugin.egress.attempt import Aborted, Outcome
from flowactions_plugin.egress.outbound import guard_of, outbound
from flowactions_plugin.egress.resolver import Resolver
from flowactions_plugin.egress.sender import Sender
from flowactions_plugin.errors import BodyTooLarge
from flowactions_plugin.http.masking import masked_url
from flowactions_plugin.queue.rules import delivery_headers, event_id

EVENT_TYPE: Final = "flowactions.test"


class Sent(msgspec.Struct, kw_only=True, rename="camel"):
    """A test delivery.

    Attributes:
        url: the destination.
        delivered: whether the answer is a success (2xx).
        signed: whether the request was signed.
        event_id: id of the test event.
        status_code: HTTP status of the answer; `null`: no answer.
        error: why no answer came, or why nothing was sent.
        note: a note that the egress proxy may have written the answer; `null`: it cannot have.
        response: the first 2 KiB of the answer's body, as text.
        duration_ms: milliseconds of the whole attempt.
        phases: milliseconds of each phase of the attempt that was needed: `resolve`, `connect`, `tls`, `send`, `wait` (until the
            kept part of the answer was read). If no answer came, the last one failed.
    """

    url: str
    delivered: bool
    signed: bool
    event_id: str
    status_code: int | None
    error: str | None
    note: str | None
    response: str
    duration_ms: int
    phases: dict[str, float]


class _Message(NamedTuple):
    """What is sent, before it is signed."""

    method: str
    url: str
    headers: Sequence[tuple[str, str]]
    body: bytes | None


def send_test(
    url: str, host: str | None, secret_file: BinaryIO | None, body_file: BinaryIO | None
) -> tuple[Sent, int]:
    """Send a delivery, and print what came of it."""
    # Files are read before the event loop runs: in it, Ctrl+C ends no read of the terminal.
    body = None if body_file is None else body_file.read()
    sent = asyncio.run(_send(url, host, read_secret(secret_file), body))
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
    return sent, DONE if sent.delivered else FAILED


async def _send(url: str, host: str | None, secret: str | None, body: bytes | None) -> Sent:
    """Make one attempt, as a worker of this host would; without a body, one with a small JSON document.

    Raises:
        BodyTooLarge: the body is larger than the settings allow.
    """
    now = system_clock()
    if body is None:
        data = {"occurredAt": to_iso(int(now * 1000)), "test": True}
        body = json.dumps({"type": EVENT_TYPE, "version": 1, "data": data}).encode()
    made = event_id(EVENT_TYPE, f"send-test {now}", body)
    headers, _ = delivery_headers((), event_id=made, event_type=EVENT_TYPE, has_body=True)
    async with context_of(host) as context:
        settings = context.settings
        if len(body) > settings.max_body_bytes:
            raise BodyTooLarge(
                f"The body has {len(body)} bytes, and FLOWACTIONS_MAX_BODY_BYTES is {settings.max_body_bytes}."
            )
        own = None if context.host is None else context.host.transport
        transport, validate = outbound(settings, guard_of(settings, Resolver(threads=4)), own)
        sender = Sender(
            transport,
            validate,
            system_clock,
            time.monotonic,
            times_all=True,
            standard_webhooks=settings.standard_webhooks,
        )
        try:
            outcome = await sender.send(_Message("POST", url, headers, body), secret)
        finally:
            await sender.aclose()
    if isinstance(outcome, Aborted):
        why = f"{outcome.reason} ({outcome.detail})" if outcome.detail else outcome.reason
        outcome = Outcome(0, int((system_clock() - now) * 1000), error=why)
    code = outcome.status_code
    return Sent(
        url=masked_url(url),
        delivered=outcome.error is None and code is not None and 200 <= code < 300,
        signed=secret is not None,
        event_id=made,
        status_code=code,
        error=outcome.error,
        note="; ".join(outcome.notes) or None,
        response=outcome.response.decode("utf-8", "replace"),
        duration_ms=outcome.duration_ms,
        phases={name: round(seconds * 1000, 2) for name, seconds in (outcome.phases or {}).items()},
    )
