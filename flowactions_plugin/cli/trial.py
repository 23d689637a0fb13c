"""A test delivery: what is sent, and how long each phase of the attempt took."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

import msgspec

from flowactions_plugin.clock import lease_clock, system_clock, to_iso
from flowactions_plugin.egress import attempt
from flowactions_plugin.egress.attempt import Aborted, Outcome, Progress
from flowactions_plugin.egress.lag import LagMeter
from flowactions_plugin.egress.outbound import guard_of, outbound
from flowactions_plugin.egress.resolver import Resolver
from flowactions_plugin.egress.sender import Sender
from flowactions_plugin.errors import BodyTooLarge, CannotRun
from flowactions_plugin.http.masking import masked_url
from flowactions_plugin.queue.rules import BODYLESS_METHODS, delivery_headers, event_id, method_name
from flowactions_plugin.settings.model import Settings

POLL_SECONDS: Final = 0.001
"""How exactly the phases of the exchange are told apart; resolving, connecting and TLS are exact."""

PHASES: Final = {
    **attempt.PHASES,
    "sending the request or waiting for the answer": "firstByte",
    "waiting for the answer": "firstByte",
    "reading the body": "body",
}
"""What a transport calls a phase → its name here, where the answer has two."""


class Phase(msgspec.Struct, kw_only=True, rename="camel"):
    """A phase of an attempt.

    Attributes:
        name: `resolve`, `connect`, `tls`, `send`, `firstByte` (until the head of the answer is there), `body`.
        ms: how long it took, milliseconds.
    """

    name: str
    ms: float


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
        phase: the phase that failed; `null`: an answer came.
        response: the first 2 KiB of the answer's body, as text.
        duration_ms: milliseconds of the whole attempt.
        phases: the phases of the attempt, in order; a phase that was not needed is left out.
    """

    url: str
    delivered: bool
    signed: bool
    event_id: str
    status_code: int | None
    error: str | None
    note: str | None
    phase: str | None
    response: str
    duration_ms: int
    phases: list[Phase]


class TestMessage(NamedTuple):
    """What is sent, before it is signed."""

    method: str
    url: str
    headers: Sequence[tuple[str, str]]
    body: bytes | None
    event_id: str


def a_message(url: str, method: str, event_type: str, body: bytes | None, most: int) -> TestMessage:
    """Return the test event.

    Args:
        url: where to.
        method: the HTTP method; `GET` and `HEAD` have no body (§2.4).
        event_type: its type.
        body: ``None``: a small JSON document.
        most: how many bytes the body may have.

    Raises:
        BodyTooLarge: it has more.
        CannotRun: the method or the type is none.
    """
    named = method_name(method)
    if named is None:
        raise CannotRun("--method is not the name of an HTTP method")
    if not event_type.strip() or not event_type.isprintable() or not event_type.isascii():
        raise CannotRun("--event-type must be printable ASCII")
    if body is not None and named in BODYLESS_METHODS:
        raise CannotRun(f"--body-file cannot be used with {named}, which is sent without a body")
    now = system_clock()
    if body is None:
        event = {
            "type": event_type,
            "version": 1,
            "data": {"occurredAt": to_iso(int(now * 1000)), "test": True},
        }
        body = json.dumps(event).encode()
    if len(body) > most:
        raise BodyTooLarge(f"The body has {len(body)} bytes, and FLOWACTIONS_MAX_BODY_BYTES is {most}.")
    sent = None if named in BODYLESS_METHODS else body
    made = event_id(event_type, f"send-test {now}", sent or b"")
    headers, _ = delivery_headers((), event_id=made, event_type=event_type, has_body=sent is not None)
    return TestMessage(named, url, headers, sent, made)


async def send(
    message: TestMessage,
    secret: str | None,
    settings: Settings,
    host_transport: object | None,
) -> Sent:
    """Make one attempt, as a worker with these settings would; without a secret, it is not signed."""
    guard = guard_of(settings, Resolver(threads=4))
    transport, validate = outbound(settings, guard, host_transport)
    timeline = Timeline()
    with LagMeter(lease_clock) as lag:
        sender = Sender(
            transport,
            validate,
            system_clock,
            time.monotonic,
            lag,
            progress=timeline.begin,
            standard_webhooks=settings.standard_webhooks,
        )
        try:
            outcome = await sender.send(message, secret)
            timeline.end()
        finally:
            await sender.aclose()
    phases = timeline.timed()
    if isinstance(outcome, Aborted):
        why = f"{outcome.reason} ({outcome.detail})" if outcome.detail else outcome.reason
        outcome = Outcome(0, round(sum(phase.ms for phase in phases)), error=why)
    code = outcome.status_code
    return Sent(
        url=masked_url(message.url),
        delivered=outcome.error is None and code is not None and 200 <= code < 300,
        signed=secret is not None,
        event_id=message.event_id,
        status_code=code,
        error=outcome.error,
        note="; ".join(outcome.notes) or None,
        phase=phases[-1].name if outcome.error is not None and phases else None,
        response=outcome.response.decode("utf-8", "replace"),
        duration_ms=outcome.duration_ms,
        phases=phases,
    )


class Timeline(Progress):
    """The progress of one attempt, which tells the phases of the answer apart: it asks for the exact phase all the time."""

    def __init__(self) -> None:
        super().__init__(time.perf_counter)
        self._poll: asyncio.Handle | None = None
        self._refine: Callable[[], str] | None = None
        self._ended = 0.0

    def begin(self) -> Timeline:
        """Note that the attempt begins."""
        self.enter("resolving the name")
        return self

    def enter(self, phase: str) -> None:
        """Record the start of a phase, which ends that of sending."""
        self._refine = None
        super().enter(phase)

    def sending(self, refine: Callable[[], str]) -> None:
        """Record that the request is being sent, and check the exact phase every millisecond."""
        super().sending(refine)
        self._refine = refine
        if self._poll is not None:
            self._poll.cancel()
        self._poll = asyncio.get_running_loop().call_soon(self._look)

    def _look(self) -> None:
        if self._refine is not None:
            phase = self._refine()
            if phase != self._began[-1][0]:
                self._began.append((phase, self._now()))
            self._poll = asyncio.get_running_loop().call_later(POLL_SECONDS, self._look)

    def end(self) -> None:
        """Record the end of the attempt."""
        self._ended = self._now()
        if self._poll is not None:
            self._poll.cancel()

    def timed(self) -> list[Phase]:
        """Return how long each phase took."""
        return [
            Phase(name=name, ms=round(seconds * 1000, 2))
            for name, seconds in self.phases(PHASES, self._ended).items()
        ]
