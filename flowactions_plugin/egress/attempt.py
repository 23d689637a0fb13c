"""What an attempt consists of: a request, how far it has got, the response, and the outcome (§4.5, §8)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from email.utils import mktime_tz, parsedate_tz
from typing import Final, Literal, NamedTuple, Protocol

from flowactions_plugin.egress.destination import Destination

DEADLINE_SECONDS: Final = 10.0
"""The total time of one attempt: resolve, connect, TLS, send, status and the kept part of the body (§8)."""

RESPONSE_KEPT_BYTES: Final = 2048

RETRY_AFTER_STATUSES: Final = frozenset({429, 503})
"""The responses whose ``Retry-After`` counts."""


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

    Attributes:
        phase: what is being done, to follow "while": ``resolving the name``, ``connecting``, …
        refine: returns the phase more exactly, where that costs something.
        response: the status and headers of the response, as soon as they are there.
    """

    def __init__(self) -> None:
        self.phase = "resolving the name"
        self.refine: Callable[[], str] | None = None
        self.response: Response | None = None

    def settle(self) -> None:
        """Find out the exact phase, before the attempt is interrupted and its connection is gone."""
        if self.refine is not None:
            self.phase = self.refine()


class Request(NamedTuple):
    """A request as it is sent, to a destination that was parsed once."""

    method: str
    destination: Destination
    headers: Sequence[tuple[str, str]]
    body: bytes | None
    progress: Progress


class Response(NamedTuple):
    """What a receiver answered.

    Attributes:
        status_code: of the final response.
        headers: found by their names in any case.
        body_prefix: the body's first bytes, as they came, at most `RESPONSE_KEPT_BYTES`.
    """

    status_code: int
    headers: Mapping[str, str]
    body_prefix: bytes


class Outcome(NamedTuple):
    """The result of one attempt.

    Attributes:
        started_at: Unix milliseconds.
        duration_ms: how long it took.
        status_code: the destination's answer, if there was one.
        error: why there was none, or why the attempt may not be repeated.
        response: the first bytes of the answer's body.
        retry_after: seconds that the destination asked for (429 and 503 only).
        final: whether repeating is pointless, whatever attempts remain.
    """

    started_at: int
    duration_ms: int
    status_code: int | None = None
    error: str | None = None
    response: bytes = b""
    retry_after: float | None = None
    final: bool = False


class Aborted(NamedTuple):
    """The result of a try that was no attempt: neither the destination nor the network caused its end.

    Attributes:
        cause: the kind of reason, so that it is logged once while it lasts.
        reason: what happened here.
        waits: whether the row waits for the host to be mended, at a growing interval; otherwise it is due again after
            a few seconds.
    """

    cause: Literal["stall", "resources", "host", "stopped", "defect"]
    reason: str
    waits: bool = False


class Transport(Protocol):
    """Makes requests; it follows no redirects and decompresses nothing."""

    async def send(self, request: Request) -> Response:
        """Send a request, and read the start of its response; its `Progress` is kept up to date.

        Raises:
            EgressRefused: an address is forbidden.
            HostFailed: the transport is the host's, and does not do what one has to.
            SendFailed: there is no response; the message says why.
        """

    async def aclose(self) -> None:
        """Close every connection."""


def retry_after(status_code: int, value: str | None, now: float) -> float | None:
    """Parse ``Retry-After``, seconds or a date.

    Args:
        status_code: of the response; the header counts with 429 and 503 only.
        value: the header's value, if it is there.
        now: Unix seconds.

    Returns:
        The seconds to wait; ``None`` when the header does not count or cannot be parsed.
    """
    if value is None or status_code not in RETRY_AFTER_STATUSES:
        return None
    value = value.strip()
    if value.isascii() and value.isdigit():
        return float(value[:9])
    parsed = parsedate_tz(value)
    if parsed is None:
        return None
    try:
        return max(0.0, mktime_tz(parsed) - now)
    except (OverflowError, ValueError):
        return None
