"""Rows of the outbox as their organization sees them: as far as they can be read, and without credentials."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Annotated, Any, Final, TypeAlias, TypeVar

import msgspec

from flowactions_hookspecs import Header, Origin, UnsignedTestOrigin
from flowactions_plugin.clock import to_iso
from flowactions_plugin.egress.attempt import NOTES
from flowactions_plugin.egress.transport_errors import THROUGH_PROXY
from flowactions_plugin.http.masking import masked_header, masked_url, reason_for_tenants
from flowactions_plugin.queue.rules import FINISHED, due_time

T = TypeVar("T")

SAFE_INTEGER: Final = 2**53
"""Programs read larger ones differently (RFC 7493 §2.2)."""

_SURROGATE: Final = re.compile("[\ud800-\udfff]")

Milliseconds: TypeAlias = Annotated[int, msgspec.Meta(ge=0, lt=SAFE_INTEGER)]


class DeliverySummary(msgspec.Struct, rename="camel", kw_only=True):
    """A row of the outbox. Its times are ``null``, and its counts 0, when what is stored is none; ``defect`` says so.

    ``agentId`` is ``null`` for a webhook that belongs to no agent. ``lastError`` says of an answer that is no success, too, that it
    was one.
    """

    id: str
    status: str
    idempotency_key: str | None
    event_id: str
    event_type: str
    agent_id: str | None
    url: str
    method: str
    attempts: int
    max_attempts: int
    next_attempt_at: str | None
    created_at: str | None
    updated_at: str | None
    finished_at: str | None
    last_status_code: int | None
    last_error: str | None
    defect: str | msgspec.UnsetType = msgspec.UNSET


class Attempt(msgspec.Struct, rename="camel", kw_only=True):
    """One attempt of a delivery; of the answer's body the first 2 KiB are kept.

    ``phases`` says how many milliseconds each phase of an attempt took that failed, or was slow: ``resolve``, ``connect``,
    ``tls``, ``send`` and ``wait`` (for the answer). It is empty for others, and what an open connection spared is left out.

    ``note`` says if the request was sent twice in this attempt, if the answer's headers were not kept, and if the answer came
    through the egress proxy in clear. The proxy may have written such an answer, so ``response`` is empty then, except for
    operators.
    """

    number: int
    started_at: str | None
    duration_ms: int
    status_code: int | None
    error: str | None
    response: str
    phases: dict[str, Milliseconds] = {}
    note: str | None = None


class DeliveryDetail(DeliverySummary, rename="camel", kw_only=True):
    """A row of the outbox with what it sends and its attempts."""

    origin: Origin | None
    headers: list[Header]
    body: str | None
    attempt_log: list[Attempt]

    @property
    def is_unsigned_test(self) -> bool:
        """Return whether a test of a draft has enqueued it, so that no attempt is signed (§5.3.6)."""
        return isinstance(self.origin, UnsignedTestOrigin)


def detail(row: Any, log: Sequence[Any]) -> DeliveryDetail:
    """Return a row with its attempts, whatever they hold."""
    reader = Reader(row)
    values = detail_values(reader, log)
    return DeliveryDetail(**values, defect=reader.defect())


def detail_values(reader: Reader, log: Sequence[Any], *, for_operators: bool = False) -> dict[str, Any]:
    """Return the fields of a `DeliveryDetail`, its defect excepted.

    Args:
        reader: of the row; it records what cannot be read of the attempts, too.
        log: the attempts.
        for_operators: whether people see it who may read what the egress proxy answers, and why something failed here.
    """
    values = summary_values(reader, for_operators=for_operators)
    url = reader.text("url") or ""
    origin = reader.decoded("origin", Origin)
    headers = reader.decoded("headers", list[tuple[str, str]]) or []
    body = reader.raw("body")
    attempts = []
    for attempt in log:
        stored = Reader(attempt, "attempts")
        phases = {} if attempt.phases is None else stored.decoded("phases", dict[str, Milliseconds]) or {}
        notes = [text for name, text in NOTES.items() if phases.pop(name, None) is not None]
        hidden = THROUGH_PROXY in notes and not for_operators
        attempts.append(
            Attempt(
                number=stored.number("number") or 0,
                started_at=stored.moment("started_at"),
                duration_ms=stored.number("duration_ms") or 0,
                status_code=stored.number("status_code", optional=True),
                error=_reason(stored.text("error", optional=True), url, for_operators=for_operators),
                response="" if hidden else _shown(attempt.response or b""),
                phases=phases,
                note="; ".join(notes) or None,
            )
        )
        reader.unreadable += stored.unreadable
    return {
        **values,
        "origin": origin,
        "headers": [Header(key=key, value=masked_header(key, value)) for key, value in headers],
        "body": None if body is None else _shown(body),
        "attempt_log": attempts,
    }


class Reader:
    """Reads the columns of one row, and records those that do not hold their type.

    Args:
        row: the row.
        label: one name for all columns in the record; empty: their own names.
    """

    def __init__(self, row: Any, label: str = "") -> None:
        self._row = row
        self._label = label
        self.unreadable: list[str] = []

    def defect(self) -> str | msgspec.UnsetType:
        """Return which columns could not be read."""
        names = ", ".join(dict.fromkeys(self.unreadable))
        return f"stored values that cannot be read: {names}" if names else msgspec.UNSET

    def raw(self, name: str) -> Any:
        """Return what is stored, whatever it is."""
        return getattr(self._row, name)

    def text(self, name: str, *, optional: bool = False) -> str | None:
        """Return a text; what is not text is shown as far as possible."""
        value = getattr(self._row, name)
        if value is None and optional:
            return None
        shown = _shown(value)
        if shown != value:
            self._record(name)
        return shown

    def number(self, name: str, *, optional: bool = False) -> int | None:
        """Return a whole number; ``None`` for anything else."""
        value = getattr(self._row, name)
        if type(value) is int and -SAFE_INTEGER < value < SAFE_INTEGER:
            return value
        if value is not None or not optional:
            self._record(name)
        return None

    def moment(self, name: str, *, optional: bool = False) -> str | None:
        """Return a time as ISO 8601; ``None`` for what is not a time, or lies outside the calendar."""
        value = self.number(name, optional=optional)
        try:
            return None if value is None else to_iso(due_time(value))
        except (ValueError, OverflowError, OSError):
            self._record(name)
            return None

    def decoded(self, name: str, kind: Any) -> Any:
        """Return what a column holds as JSON; ``None`` for what is not of this kind."""
        try:
            found = msgspec.json.decode(getattr(self._row, name), type=kind)
            msgspec.json.encode(found)
        except (msgspec.MsgspecError, UnicodeError, TypeError, ValueError, RecursionError):
            self._record(name)
            return None
        return found

    def _record(self, name: str) -> None:
        self.unreadable.append(self._label or name)


def summary_values(reader: Reader, *, for_operators: bool = False) -> dict[str, Any]:
    """Return the fields of a `DeliverySummary`, its defect excepted.

    Args:
        reader: of the row.
        for_operators: whether people see it who may read why something failed here.
    """
    status, url = reader.text("status"), reader.text("url") or ""
    code = reader.number("last_status_code", optional=True)
    error = _reason(reader.text("last_error", optional=True), url, for_operators=for_operators)
    if error is None and code is not None and not 200 <= code < 300:
        error = f"it answered {code}"
    finished = status in FINISHED
    return {
        "id": reader.text("id"),
        "status": status,
        "idempotency_key": reader.text("idempotency_key", optional=True),
        "event_id": reader.text("event_id"),
        "event_type": reader.text("event_type"),
        "agent_id": reader.text("agent_id") or None,
        "url": masked_url(url),
        "method": reader.text("method"),
        "attempts": reader.number("attempts") or 0,
        "max_attempts": reader.number("max_attempts") or 0,
        "next_attempt_at": None if finished else reader.moment("next_attempt_at"),
        "created_at": reader.moment("created_at"),
        "updated_at": reader.moment("updated_at"),
        "finished_at": reader.moment("finished_at", optional=True),
        "last_status_code": code,
        "last_error": error,
    }


def _reason(text: str | None, url: str, *, for_operators: bool) -> str | None:
    return text if text is None or for_operators else reason_for_tenants(text, url)


def _shown(value: object) -> str:
    """Return any stored value as text that JSON can hold."""
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value).decode("utf-8", "replace")
    return _SURROGATE.sub("\ufffd", "" if value is None else str(value))
