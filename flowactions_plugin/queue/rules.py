"""The rules of a delivery, without I/O: states, attempts, backoff, event id, headers."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Final, Literal, NamedTuple, TypeAlias

import msgspec

from flowactions_hookspecs import Header, Origin
from flowactions_plugin.egress.attempt import DEADLINE_SECONDS, Outcome
from flowactions_plugin.egress.signature import (
    EVENT_ID_HEADER,
    EVENT_TYPE_HEADER,
    RESERVED_PREFIX,
    STANDARD_PREFIX,
    folded,
)
from flowactions_plugin.egress.transport_errors import THROUGH_PROXY
from flowactions_plugin.errors import HeadersTooLarge
from flowactions_plugin.log_text import CONTROL
from flowactions_plugin.log_text import size as size_text

Status: TypeAlias = Literal["pending", "retrying", "delivered", "dead"]

FINISHED: Final = frozenset({"delivered", "dead"})

DEFAULT_MAX_ATTEMPTS: Final = 5
HELD_SECONDS: Final = 0.5
"""How often a worker looks whether what it has claimed and not begun may still begin."""

MAX_ATTEMPTS_CAP: Final = 10
SPARE_SECONDS: Final = 20.0
"""By how much a claim holds longer than an attempt may take: all that happens to a row before and after its attempt."""

QUARANTINE_ROUNDS: Final = 3
"""How many rounds in quarantine may begin and not end before a delivery is dead."""

RETURN_SECONDS: Final = 5.0
"""The delay of a row that was given back because this process had no time, descriptors or memory for it."""

WAIT_FIRST_SECONDS: Final = 5
WAIT_CAP_SECONDS: Final = 600
WAIT_LIMIT_SECONDS: Final = 90 * 24 * 3600
"""How long a row waits for the host, or for a process that can read it, before it is dead."""

UNKNOWN_SECONDS: Final = 60
UNKNOWN: Final = tuple(
    f"the host does not know this node or action; asked {number} of 4 times" for number in range(1, 5)
)
"""Why a row waits whose node or action the host does not know: one text for each time that it was asked, which is how a row keeps
that number. With the last one, the row is dead."""

CHAT_WAIT_SECONDS: Final = 60
"""The longest time until a chat message that waits is tried again."""

CHAT_HOURS: Final = 24
TOO_LATE: Final = f"too late: it could not be posted within {CHAT_HOURS} hours"
"""Why a chat message is dead that has waited for so long since its enqueue, or since a person's retry."""

CHAT_PACE_SECONDS: Final = 1.0
"""How long after a chat message the next one to its channel or person is posted: the provider takes about one a second."""

BACKOFF_CAP_SECONDS: Final = 300
JITTER: Final = 0.1
"""The part of a schedule's delay by which it is longer or shorter at the most, so that rows that failed together do not
come back together."""

GONE_STATUS: Final = 410

PROBE_FIRST_MS: Final = 60_000
PROBE_LONGEST_MS: Final = 3600_000
"""After so long, a destination that was paused automatically is probed; then after twice as long each time, up to this."""

DROPPED_NAME_LENGTH: Final = 80
USER_AGENT: Final = "Service-Webhooks/1"
ACCEPT: Final = ("accept", "*/*")
"""Some servers refuse a request without it."""

BODYLESS_METHODS: Final = frozenset({"GET", "HEAD"})

MAX_HEADER_NAME_BYTES: Final = 256
MAX_HEADER_VALUE_BYTES: Final = 8192
"""Of one custom header; most servers accept no longer line."""

MAX_HEADERS_BYTES: Final = 64 << 10
"""Of all custom headers of a webhook, names and values."""

_NAME = re.compile(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")
_BREAKS = re.compile(r"[\x00\r\n]")
_RESERVED: Final = frozenset(
    {
        "host",
        "content-length",
        "transfer-encoding",
        "user-agent",
        # Hop-by-hop headers: they control the connection, which belongs to the sender.
        "connection",
        "expect",
        "keep-alive",
        "proxy-authorization",
        "proxy-connection",
        "te",
        "trailer",
        "upgrade",
    }
)
_RESERVED_PREFIXES: Final = {False: (RESERVED_PREFIX,), True: (RESERVED_PREFIX, STANDARD_PREFIX)}
"""By whether deliveries carry the headers of Standard Webhooks."""


class NewDelivery(msgspec.Struct, frozen=True, kw_only=True):
    """A new row: every attempt sends exactly its values."""

    id: str
    organization_id: str
    agent_id: str | None
    origin: Origin
    event_id: str
    event_type: str
    url: str
    destination: str
    lane: int
    method: str
    headers: tuple[tuple[str, str], ...]
    body: bytes | None
    max_attempts: int
    idempotency_key: str | None = None
    trace: str | None = None
    sequence: int | None = None
    expires_at: int | None = None


class Timing(NamedTuple):
    """The times of claims and attempts: those of `timing_of`, or a test's.

    Attributes:
        lease_seconds: how long a claim holds.
        deadline_seconds: the total time of one attempt.
        quarantine_seconds: from one round in quarantine to the next, and from a worker's start to its first.
    """

    lease_seconds: float = DEADLINE_SECONDS + SPARE_SECONDS
    deadline_seconds: float = DEADLINE_SECONDS
    quarantine_seconds: float = 10.0

    @property
    def spare_seconds(self) -> float:
        """The part of a lease that is not for the attempt."""
        return self.lease_seconds - self.deadline_seconds

    @property
    def wait_seconds(self) -> float:
        """How long a claimed row may wait before it begins. A database that is away is tried at least as often."""
        return self.spare_seconds / 2

    @property
    def stall_seconds(self) -> float:
        """How long this process may stand still, and its leases surely hold: `wait_seconds` and an attempt come before."""
        return self.spare_seconds * 3 / 8

    @property
    def outage_seconds(self) -> float:
        """How long the queue may not be written to, and no lease ends in which a row was sent and its outcome not written."""
        return self.spare_seconds / 4

    @property
    def stop_seconds(self) -> float:
        """How long deliveries may take to stop: attempts, and 8 s for their outcomes. What closes after them takes 7 s at the most."""
        return min(self.deadline_seconds + 8, self.lease_seconds)

    def is_too_late(self, now: float, lease_end: float) -> bool:
        """Return whether the rest of a lease is too short for an attempt and its outcome; times are of the clock of leases."""
        return now + self.deadline_seconds + self.spare_seconds / 10 > lease_end


class Transition(NamedTuple):
    """The next state of a row.

    Attributes:
        status: the state.
        delay_seconds: for ``retrying``, until it is due.
        gone: whether the receiver has ended it, by a 410.
    """

    status: Status
    delay_seconds: float = 0.0
    gone: bool = False


DELIVERED: Final = Transition("delivered")
DEAD: Final = Transition("dead")
GONE: Final = Transition("dead", gone=True)


def timing_of(deadline_seconds: float) -> Timing:
    """Return the times, by how long an attempt may take. A row in quarantine that hangs has the same part of a worker's time."""
    return Timing(deadline_seconds + SPARE_SECONDS, deadline_seconds, max(10.0, deadline_seconds))


def probe_delay_ms(probes: int) -> int:
    """Return the milliseconds to the next probe of a destination, when so many were sent."""
    return min(PROBE_LONGEST_MS, PROBE_FIRST_MS << min(max(probes, 0), 10))


def backoff(attempt: int) -> int:
    """Return the seconds to wait after attempt ``attempt`` (1, 2, …) failed (§8)."""
    return min(BACKOFF_CAP_SECONDS, max(5, 1 << min(attempt, 10)))


def delays(attempts: int, schedule: Sequence[int] = ()) -> tuple[int, ...]:
    """Return the seconds from each attempt of a row to the next, jitter and ``Retry-After`` apart.

    An empty schedule is the rule of §8. Beyond the end of another one, its last delay is repeated.
    """
    return tuple(_delay(attempt, schedule) for attempt in range(1, attempts))


def attempts_of(schedule: Sequence[int], default: int) -> int:
    """Return how many attempts a row has whose author has not said a number: one more than delays, or the default."""
    return len(schedule) + 1 if schedule else default


def _delay(attempt: int, schedule: Sequence[int]) -> int:
    return schedule[min(attempt, len(schedule)) - 1] if schedule else backoff(attempt)


def transition(
    attempt: int, max_attempts: int, outcome: Outcome, schedule: Sequence[int] = (), chance: float = 0.5
) -> Transition:
    """Return the state of a row after an attempt (§3.1).

    Args:
        attempt: the number of this attempt, counted from 1.
        max_attempts: the row's cap.
        outcome: the attempt's.
        schedule: the seconds after each failed attempt, an operator's choice beyond §8: they vary by chance, the longest
            is the most that a receiver can ask for, and a 410 ends the row. Empty: the rule of §8.
        chance: from 0 to 1: how long the delay of a schedule is, between its least and its most.
    """
    if outcome.is_delivered:
        return DELIVERED
    if schedule and outcome.status_code == GONE_STATUS:
        return GONE
    if outcome.final or attempt >= max_attempts:
        return DEAD
    delay, longest = float(_delay(attempt, schedule)), BACKOFF_CAP_SECONDS
    if schedule:
        delay, longest = delay * (1 + JITTER * (2 * chance - 1)), max(schedule)
    return Transition("retrying", max(delay, min(outcome.retry_after or 0.0, longest)))


def failure_reason(outcome: Outcome) -> str:
    """Return why an attempt failed, in one phrase."""
    through = f" ({THROUGH_PROXY})" if THROUGH_PROXY in outcome.notes else ""
    return outcome.error or f"it answered {outcome.status_code}{through}"


def failure_class(outcome: Outcome) -> str:
    """Return the kind of failure of an attempt, as operators search for it: ``refused`` is what may not be dialled."""
    if outcome.failure is not None:
        return outcome.failure
    if outcome.status_code is not None:
        return f"http_{outcome.status_code // 100}xx"
    if outcome.final:
        return "refused"
    return "timeout" if (outcome.error or "").startswith("timed out") else "network"


def capped_attempts(wanted: int) -> int:
    """Return an attempt cap within 1 and 10 (§8)."""
    return max(1, min(MAX_ATTEMPTS_CAP, wanted))


def event_id(event_type: str, entity: str, payload: bytes) -> str:
    """Return the id by which receivers deduplicate: the same event always gets the same id (§2.5).

    Args:
        event_type: as in ``x-service-webhook-event``.
        entity: what the event is about, unique within its type.
        payload: the body's bytes, empty when there is none.
    """
    return f"evt_{digest(event_type.encode(), entity.encode(), payload).hex()}"


def digest(*parts: bytes) -> bytes:
    """Return the SHA-256 of parts, each after its length: no other parts have the same."""
    made = hashlib.sha256()
    for part in parts:
        made.update(len(part).to_bytes(8, "big"))
        made.update(part)
    return made.digest()


def delivery_headers(
    custom: Iterable[Header],
    *,
    event_id: str,
    event_type: str,
    has_body: bool,
    standard_webhooks: bool = False,
) -> tuple[tuple[tuple[str, str], ...], tuple[str, ...]]:
    """Return the headers that every attempt of a row sends, timestamp and signature excepted (§2.6).

    Control characters in values become spaces. Custom headers whose name is invalid, longer than 256 bytes or
    reserved are dropped; names are compared as `folded` gives them.

    Args:
        custom: the author's.
        event_id: what receivers dedupe on.
        event_type: as in ``x-service-webhook-event``.
        has_body: whether there is one, which has a content type.
        standard_webhooks: whether the names of that scheme's headers are reserved, too.

    Returns:
        The headers, and the names that were dropped, shortened.

    Raises:
        HeadersTooLarge: a value, or all custom headers together, are larger than receivers accept.
    """
    reserved = _RESERVED_PREFIXES[standard_webhooks]
    kept: list[tuple[str, str]] = []
    dropped: list[str] = []
    size = 0
    for header in custom:
        name = header.key.strip()
        if not name:
            continue
        compared = folded(name)
        valid = len(name) <= MAX_HEADER_NAME_BYTES and _NAME.fullmatch(name)
        if not valid or compared in _RESERVED or compared.startswith(reserved):
            dropped.append(name[:DROPPED_NAME_LENGTH])
            continue
        value = CONTROL.sub(" ", header.value).strip()
        value_bytes = len(value.encode(errors="replace"))
        if value_bytes > MAX_HEADER_VALUE_BYTES:
            raise HeadersTooLarge(
                f"The value of header {name} is larger than {size_text(MAX_HEADER_VALUE_BYTES)}."
            )
        size += len(name) + value_bytes
        check_headers_size(size)
        kept.append((name, value))
    authored = {name.lower() for name, _ in kept}
    if has_body and "content-type" not in authored:
        kept.append(("content-type", "application/json"))
    own = (
        ("user-agent", USER_AGENT),
        *(() if "accept" in authored else (ACCEPT,)),
        (EVENT_ID_HEADER, event_id),
        (EVENT_TYPE_HEADER, event_type),
    )
    return (*own, *kept), tuple(dropped)


def check_headers_size(size: int) -> None:
    """Raise `HeadersTooLarge` if a webhook's custom headers have more bytes than receivers accept."""
    if size > MAX_HEADERS_BYTES:
        raise HeadersTooLarge(f"The headers are larger than {size_text(MAX_HEADERS_BYTES)} in all.")


def sendable_headers(headers: Sequence[tuple[str, str]], text: str) -> bool:
    """Return whether headers can be sent: names are names, and no value ends its line.

    Without an escape in ``text``, the JSON that they were decoded from, no value holds a line break.
    """
    if not all(_is_name(name) for name, _ in headers):
        return False
    return "\\" not in text or not _BREAKS.search("".join([value for _, value in headers]))


@lru_cache(maxsize=1024)
def _is_name(text: str) -> bool:
    return _NAME.fullmatch(text) is not None


def method_name(text: str) -> str | None:
    """Return an HTTP method in capitals; ``None`` when the text is not a method's name."""
    method = text.strip().upper() or "POST"
    return method if _NAME.fullmatch(method) and len(method) <= 32 and method != "CONNECT" else None
