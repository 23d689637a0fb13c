"""What an attempt consists of: a request, how far it has got, the response, and the outcome.

What is made for each of them is a `msgspec.Struct`: a named tuple takes several times as long to make.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from email.utils import mktime_tz, parsedate_tz
from types import MappingProxyType
from typing import Final, Literal, NamedTuple, Protocol

import msgspec

from flowactions_plugin.egress.destination import Destination
from flowactions_plugin.egress.transport_errors import THROUGH_PROXY

PHASES: Final[Mapping[str, str]] = {
    "resolving the name": "resolve",
    "connecting": "connect",
    "making the TLS handshake": "tls",
    "sending the request": "send",
    "sending the request or waiting for the answer": "wait",
    "waiting for the answer": "wait",
    "reading the body": "wait",
}
"""What transports call the phases, in their order → their names in what is recorded."""

SLOW_MS: Final = 200
"""From this duration on, it is kept of an attempt that delivers, too, how long its phases took."""

DEADLINE_SECONDS: Final = 10.0
"""The total time of one attempt: resolve, connect, TLS, send, status and the kept part of the body (§8)."""

RESPONSE_KEPT_BYTES: Final = 2048

CHAT_LIMITED: Final = "chat_limited"
CHAT_REFUSED: Final = "chat_refused"
CHAT_UNREACHABLE: Final = "chat_unreachable"
"""Kinds of failure of chat messages, for which no HTTP status stands."""

CLOSED_KEPT: Final = "the other side closed a kept connection without an answer"
LOST_KEPT: Final = "nothing acknowledged the request on a kept connection for three seconds"
SENT_AGAIN: Final = "sent again on a fresh connection"
FLAWED: Final = "after its status line, the answer was incomplete, too long or not valid HTTP"
UNSIGNED: Final = "not signed"
PROBE: Final = "probe"
NOTES: Final = MappingProxyType(
    {
        "closed": CLOSED_KEPT,
        "lost": LOST_KEPT,
        "again": SENT_AGAIN,
        "flawed": FLAWED,
        "proxy": THROUGH_PROXY,
        "unsigned": UNSIGNED,
        PROBE: "a probe of a paused destination, it used up no attempt",
    }
)
"""What is noted of an attempt beside its result, in the order in which it happens: its name where it is stored → its text."""


class Message(Protocol):
    """What is sent, before it is signed."""

    @property
    def method(self) -> str:
        """The HTTP method."""

    @property
    def url(self) -> str:
        """The URL, not validated yet."""

    @property
    def headers(self) -> Sequence[tuple[str, str]]:
        """The headers, timestamp and signature excepted."""

    @property
    def body(self) -> bytes | None:
        """The exact bytes, if any."""


class Progress:
    """How far an attempt has got, as its transport reports it.

    Args:
        timer: monotonic seconds.

    Attributes:
        phase: what is being done, to follow "while": ``resolving the name``, ``connecting``, …
        proxy: the host and port of the egress proxy, while it is what has to answer; for the log.
        relayed: the same of the proxy that the request goes through in clear; ``None``: it does not.
        blamed: whether it is the destination's failure that the proxy gave no tunnel to it; ``None``: it was not asked, or gave one.
        response: the status and headers of the response, as soon as they are there.
        notes: the texts of `NOTES` that apply.
    """

    __slots__ = ("_began", "_now", "blamed", "notes", "phase", "proxy", "relayed", "response")

    def __init__(self, timer: Callable[[], float] = time.monotonic) -> None:
        self._now = timer
        self._began: list[tuple[str, float]] = []
        self.phase = "resolving the name"
        self.proxy: str | None = None
        self.relayed: str | None = None
        self.blamed: bool | None = None
        self.response: Response | None = None
        self.notes: tuple[str, ...] = ()

    def enter(self, phase: str) -> None:
        """Record the start of a phase of `PHASES`."""
        self.phase = phase
        self._began.append((phase, self._now()))

    def phases(self) -> dict[str, float]:
        """Return how long each phase has taken, in seconds, in the order of `PHASES`.

        An attempt over a connection that was open has neither ``resolve`` nor ``connect`` nor ``tls``. ``wait`` is from when
        the request was handed over until the kept part of the response was read.
        """
        taken = dict.fromkeys(PHASES.values(), 0.0)
        began = {PHASES[phase] for phase, _ in self._began}
        ends = [*(at for _, at in self._began[1:]), self._now()]
        for (phase, at), end in zip(self._began, ends, strict=False):  # none began: one more end
            taken[PHASES[phase]] += end - at
        return {name: seconds for name, seconds in taken.items() if name in began}


class Request(msgspec.Struct, frozen=True):
    """A request as it is sent, to a destination that was parsed once (§8)."""

    method: str
    destination: Destination
    headers: Sequence[tuple[str, str]]
    body: bytes | None
    progress: Progress


class Response(msgspec.Struct, frozen=True):
    """What a receiver answered.

    Attributes:
        status_code: of the final response.
        headers: found by their names in any case.
        body_prefix: the body's first bytes, as they came, at most `RESPONSE_KEPT_BYTES`.
        flawed: whether what came after the status line was incomplete, too long or not HTTP.
    """

    status_code: int
    headers: Mapping[str, str]
    body_prefix: bytes
    flawed: bool = False


class Outcome(msgspec.Struct, frozen=True):
    """The result of one attempt (§4.5).

    Attributes:
        started_at: Unix milliseconds.
        duration_ms: how long it took.
        status_code: the destination's answer, if there was one.
        error: why there was none, or why the attempt may not be repeated.
        response: the first bytes of the answer's body.
        retry_after: seconds that the destination asked for (429 and 503 only).
        final: whether repeating is pointless, whatever attempts remain.
        phases: phase → seconds; ``None`` where they are not measured.
        notes: the texts of `NOTES` that apply.
        stalled_ms: for how long of the duration this process stood still.
        arrived: whether it has arrived; ``None``: the status code says it, as of each request.
        failure: the kind of failure; ``None``: by the status code and the error.
        of_one: whether the failure is of this one delivery, and says nothing about its destination.
    """

    started_at: int
    duration_ms: int
    status_code: int | None = None
    error: str | None = None
    response: bytes = b""
    retry_after: float | None = None
    final: bool = False
    phases: Mapping[str, float] | None = None
    notes: tuple[str, ...] = ()
    stalled_ms: int = 0
    arrived: bool | None = None
    failure: str | None = None
    of_one: bool = False

    @property
    def is_answered(self) -> bool:
        """Whether the other side has answered."""
        return self.status_code is not None or (self.arrived is not None and self.failure != CHAT_UNREACHABLE)

    @property
    def is_delivered(self) -> bool:
        """Whether it has arrived (§4.5)."""
        by_status = self.status_code is not None and 200 <= self.status_code < 300 and self.error is None
        return by_status if self.arrived is None else self.arrived


class Aborted(NamedTuple):
    """The result of a try that was no attempt: neither the destination nor the network caused its end.

    Attributes:
        cause: the kind of reason, so that it is logged once while it lasts.
        reason: what happened here.
        waits: whether the row waits for the host to be mended, at a growing interval; otherwise it is due again after
            a few seconds.
        detail: more of it, for the log alone.
        delay: seconds until it is due again, because of something that is neither of this side nor an attempt; ``None``: it is.
        failure: what that is: a kind of failure; ``None``: the row waits.
        ends: whether the delivery ends without an attempt.
    """

    cause: Literal["stall", "resources", "host", "proxy", "tunnel", "stopped", "defect", "chat"]
    reason: str
    waits: bool = False
    detail: str = ""
    delay: float | None = None
    failure: str | None = None
    ends: bool = False


class Transport(Protocol):
    """Makes requests; it follows no redirects and decompresses nothing."""

    async def send(self, request: Request) -> Response:
        """Send a request, keep its `Progress` up to date, and read the start of the response.

        Raises:
            EgressRefused: an address is forbidden.
            HostFailed: the transport is the host's, and does not do what one has to.
            SendFailed: there is no response; the message says why.
        """

    async def aclose(self) -> None:
        """Close every connection."""


def retry_after(value: str, now: float) -> float | None:
    """Return the seconds that ``Retry-After`` asks for, from ``now`` in Unix seconds; ``None``: it cannot be parsed."""
    value = value.strip()
    if value.isascii() and value.isdigit():
        return float(value[:9])
    try:
        parsed = parsedate_tz(value)
        return None if parsed is None else max(0.0, mktime_tz(parsed) - now)
    except (OverflowError, ValueError):
        return None
