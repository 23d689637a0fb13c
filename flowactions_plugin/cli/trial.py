"""``flowactions send-test``: sends a test event, and says how long each phase of the attempt took."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Sequence
from typing import Final, NamedTuple

from flowactions_plugin.cli.context import context_of
from flowactions_plugin.cli.frame import DONE, FAILED
from flowactions_plugin.cli.output import block, line
from flowactions_plugin.clock import system_clock, to_iso
from flowactions_plugin.egress.attempt import Aborted, Outcome
from flowactions_plugin.egress.outbound import guard_of, outbound
from flowactions_plugin.egress.resolver import Resolver
from flowactions_plugin.egress.sender import Sender
from flowactions_plugin.queue.rules import delivery_headers, event_id

EVENT_TYPE: Final = "flowactions.test"


class _Message(NamedTuple):
    """What is sent, before it is signed."""

    method: str
    url: str
    headers: Sequence[tuple[str, str]]
    body: bytes | None


async def send_test(url: str, host: str | None) -> int:
    """Send a test event, and print the result."""
    secret = os.environ.get("WEBHOOK_SECRET") or None
    sent = await _send(url, host, secret)
    phases = {name: seconds * 1000 for name, seconds in (sent.phases or {}).items()}
    for name, ms in phases.items():
        failed = "  failed here" if sent.error and name == [*phases][-1] else ""
        line(f"{name:10} {ms:10.1f} ms{failed}")
    line(f"{'total':10} {sent.duration_ms:10.1f} ms")
    if sent.error is not None:
        line(f"not delivered: {sent.error}")
        return FAILED
    signed = "signed" if secret is not None else "not signed, because no secret was given"
    is_delivered = sent.status_code is not None and 200 <= sent.status_code < 300
    came = "delivered" if is_delivered else "not delivered"
    line("; ".join([f"{came}: it answered {sent.status_code} ({signed})", *sent.notes]))
    if sent.response:
        block(sent.response.decode("utf-8", "replace"))
    return DONE if is_delivered else FAILED


async def _send(url: str, host: str | None, secret: str | None) -> Outcome:
    """Make one attempt, as a worker of this host would."""
    now = system_clock()
    data = {"occurredAt": to_iso(int(now * 1000)), "test": True}
    body = json.dumps({"type": EVENT_TYPE, "version": 1, "data": data}).encode()
    made = event_id(EVENT_TYPE, f"send-test {now}", body)
    headers, _ = delivery_headers((), event_id=made, event_type=EVENT_TYPE, has_body=True)
    async with context_of(host) as context:
        settings = context.settings
        own = None if context.host is None else context.host.transport
        transport, validate = outbound(settings, guard_of(settings, Resolver(threads=4)), own)
        sender = Sender(
            transport,
            validate,
            system_clock,
            time.monotonic,
            deadline_seconds=settings.delivery_timeout,
            times_all=True,
            standard_webhooks=settings.standard_webhooks,
        )
        try:
            outcome = await sender.send(_Message("POST", url, headers, body), secret)
        finally:
            await sender.aclose()
    if isinstance(outcome, Aborted):
        why = f"{outcome.reason} ({outcome.detail})" if outcome.detail else outcome.reason
        return Outcome(0, int((system_clock() - now) * 1000), error=why)
    return outcome
