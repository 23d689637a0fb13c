"""The rules of a delivery, without I/O: states, attempts, backoff, event id, headers (§2.5, §2.6, §3.1, §8)."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable
from email.utils import mktime_tz, parsedate_tz
from typing import Final, Literal, NamedTuple, TypeAlias

import msgspec

from flowactions_hookspecs import Header, Origin
from flowactions_plugin.errors import HeadersTooLarge

Status: TypeAlias = Literal["pending", "retrying", "delivered", "dead"]

FINISHED: Final = frozenset({"delivered", "dead"})

DEFAULT_MAX_ATTEMPTS: Final = 5
MAX_ATTEMPTS_CAP: Final = 10
MAX_TAKEOVERS: Final = 3
"""The takeover at which a row that kills its workers ends."""

DEADLINE_SECONDS: Final = 10.0
"""The total time of one attempt: resolve, connect, TLS, send, status and the kept part of the body (§8)."""

CLAIM_SECONDS: Final = DEADLINE_SECONDS * 3
"""How long a claim holds: a tick's sends run side by side under one deadline, the rest is margin."""

BACKOFF_CAP_SECONDS: Final = 300
LONGEST_WAIT_SECONDS: Final = BACKOFF_CAP_SECONDS + CLAIM_SECONDS
"""No rule makes a row wait longer than this."""

REASON_LENGTH: Final = 1000
RESPONSE_KEPT_BYTES: Final = 2048
DROPPED_NAME_LENGTH: Final = 80
USER_AGENT: Final = "Service-Webhooks/1"
BODYLESS_METHODS: Final = frozenset({"GET", "HEAD"})

MAX_HEADER_NAME_BYTES: Final = 256
MAX_HEADER_VALUE_BYTES: Final = 8192
"""Of one custom header; most servers take no longer line."""

MAX_HEADERS_BYTES: Final = 64 << 10
"""Of all custom headers of a webhook, names and values."""

_NAME = re.compile(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")
_RESERVED: Final = frozenset(
    {
        "host",
        "content-length",
        "transfer-encoding",
        "user-agent",
        # Hop by hop: they steer the connection, which is the sender's.
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
_RESERVED_PREFIX: Final = "x-service-webhook-"


class NewDelivery(msgspec.Struct, frozen=True, kw_only=True):
    """What is frozen when a webhook is enqueued: every attempt sends exactly this."""

    id: str
    organization_id: str
    agent_id: str
    origin: Origin
    event_id: str
    event_type: str
    url: str
    destination: str
    method: str
    headers: tuple[tuple[str, str], ...]
    body: bytes | None
    max_attempts: int
    idempotency_key: str | None = None


class Outcome(NamedTuple):
    """What came of one attempt.

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


class Transition(NamedTuple):
    """The state a row goes to, and for ``retrying`` the seconds until it is due."""

    status: Status
    delay_seconds: float = 0.0


def backoff(attempt: int) -> int:
    """Give the seconds to wait after attempt ``attempt`` (1, 2, …) failed (§8)."""
    return min(BACKOFF_CAP_SECONDS, max(5, 1 << min(attempt, 10)))


def transition(attempt: int, max_attempts: int, outcome: Outcome) -> Transition:
    """Decide where a row goes after an attempt (§3.1).

    Args:
        attempt: the number of this attempt, counted from 1.
        max_attempts: the row's cap.
        outcome: what came of it.
    """
    if outcome.status_code is not None and 200 <= outcome.status_code < 300 and outcome.error is None:
        return Transition("delivered")
    if outcome.final or attempt >= max_attempts:
        return Transition("dead")
    asked = min(outcome.retry_after or 0.0, BACKOFF_CAP_SECONDS)
    return Transition("retrying", max(float(backoff(attempt)), asked))


def retry_after(status_code: int, value: str | None, now: float) -> float | None:
    """Read ``Retry-After``, seconds or a date, where it counts (429 and 503); ``None`` for anything else."""
    if value is None or status_code not in {429, 503}:
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


def capped_attempts(wanted: int) -> int:
    """Keep a row's attempt cap within 1 and 10 (§8)."""
    return max(1, min(MAX_ATTEMPTS_CAP, wanted))


def event_id(event_type: str, entity: str, payload: bytes) -> str:
    """Derive the id by which receivers dedupe: the same event always gets the same id (§2.5).

    Args:
        event_type: as in ``x-service-webhook-event``.
        entity: what the event is about, unique within its type.
        payload: the body's bytes, empty when there is none.
    """
    digest = hashlib.sha256()
    for part in (event_type.encode(), entity.encode(), payload):
        digest.update(len(part).to_bytes(8, "big"))
        digest.update(part)
    return f"evt_{digest.hexdigest()}"


def frozen_headers(
    custom: Iterable[Header], *, event_id: str, event_type: str, has_body: bool
) -> tuple[tuple[tuple[str, str], ...], tuple[str, ...]]:
    """Build the headers that every attempt of a row sends, timestamp and signature excepted (§2.6).

    Control characters in values become spaces. Custom headers whose name is invalid, longer than 256 bytes or
    reserved are dropped.

    Returns:
        The headers, and the names that were dropped, shortened.

    Raises:
        HeadersTooLarge: a value, or all custom headers together, are larger than receivers take.
    """
    kept: list[tuple[str, str]] = []
    dropped: list[str] = []
    size = 0
    for header in custom:
        name = header.key.strip()
        if not name:
            continue
        lowered = name.lower()
        valid = len(name) <= MAX_HEADER_NAME_BYTES and _NAME.fullmatch(name)
        if not valid or lowered in _RESERVED or lowered.startswith(_RESERVED_PREFIX):
            dropped.append(name[:DROPPED_NAME_LENGTH])
            continue
        value = _CONTROL.sub(" ", header.value).strip()
        value_bytes = len(value.encode(errors="replace"))
        if value_bytes > MAX_HEADER_VALUE_BYTES:
            raise HeadersTooLarge(f"The value of header {name} is larger than {MAX_HEADER_VALUE_BYTES} bytes.")
        size += len(name) + value_bytes
        check_headers_size(size)
        kept.append((name, value))
    if has_body and not any(name.lower() == "content-type" for name, _ in kept):
        kept.append(("content-type", "application/json"))
    own = (
        ("user-agent", USER_AGENT),
        (f"{_RESERVED_PREFIX}id", event_id),
        (f"{_RESERVED_PREFIX}event", event_type),
    )
    return (*own, *kept), tuple(dropped)


def check_headers_size(size: int) -> None:
    """Check the size of a webhook's custom headers, in bytes.

    Raises:
        HeadersTooLarge: it is more than receivers take.
    """
    if size > MAX_HEADERS_BYTES:
        raise HeadersTooLarge(f"The headers are larger than {MAX_HEADERS_BYTES} bytes in all.")


def storable(text: str | None) -> str | None:
    """Put a reason into a form that any database can store: it may quote what a receiver sent."""
    if text is None:
        return None
    return _CONTROL.sub(" ", text[:REASON_LENGTH]).encode("utf-8", "replace").decode()


def method_name(text: str) -> str | None:
    """Give the HTTP method in its usual capitals, ``None`` when it is not a method's name."""
    method = text.strip().upper() or "POST"
    return method if _NAME.fullmatch(method) and len(method) <= 32 and method != "CONNECT" else None
