"""A test delivery: what is sent, and how long each phase of the attempt took."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from flowactions_plugin.clock import system_clock, to_iso
from flowactions_plugin.egress.attempt import Aborted, Outcome
from flowactions_plugin.egress.outbound import guard_of, outbound
from flowactions_plugin.egress.resolver import Resolver
from flowactions_plugin.egress.sender import Sender
from flowactions_plugin.errors import BodyTooLarge, CannotRun
from flowactions_plugin.http.masking import masked_url
from flowactions_plugin.queue.rules import BODYLESS_METHODS, delivery_headers, event_id, method_name
from flowactions_plugin.settings.model import Settings


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


async def send(
    url: str,
    method: str,
    event_type: str,
    body: bytes | None,
    secret: str | None,
    settings: Settings,
    host_transport: object | None,
) -> Sent:
    """Make one attempt, as a worker with these settings would.

    Args:
        url: where to.
        method: the HTTP method; `GET` and `HEAD` have no body (§2.4).
        event_type: the event's type.
        body: ``None``: a small JSON document.
        secret: the signing secret; ``None``: it is not signed.
        settings: those of the host.
        host_transport: the host's own transport; ``None``: it has none.

    Raises:
        BodyTooLarge: the body is larger than the settings allow.
        CannotRun: the method or the type is none.
    """
    named, now = method_name(method), system_clock()
    if named is None:
        raise CannotRun("--method is not the name of an HTTP method")
    if not event_type.strip() or not event_type.isprintable() or not event_type.isascii():
        raise CannotRun("--event-type must be printable ASCII")
    if named in BODYLESS_METHODS:
        if body is not None:
            raise CannotRun(f"--body-file cannot be used with {named}, which is sent without a body")
    elif body is None:
        data = {"occurredAt": to_iso(int(now * 1000)), "test": True}
        body = json.dumps({"type": event_type, "version": 1, "data": data}).encode()
    elif len(body) > settings.max_body_bytes:
        raise BodyTooLarge(
            f"The body has {len(body)} bytes, and FLOWACTIONS_MAX_BODY_BYTES is {settings.max_body_bytes}."
        )
    made = event_id(event_type, f"send-test {now}", body or b"")
    headers, _ = delivery_headers((), event_id=made, event_type=event_type, has_body=body is not None)
    transport, validate = outbound(settings, guard_of(settings, Resolver(threads=4)), host_transport)
    sender = Sender(
        transport,
        validate,
        system_clock,
        time.monotonic,
        times_all=True,
        standard_webhooks=settings.standard_webhooks,
    )
    try:
        outcome = await sender.send(_Message(named, url, headers, body), secret)
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
