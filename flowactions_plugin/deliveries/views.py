"""Rows of the tables as their organization and operators see them: as far as they can be read, and without credentials."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, TypeVar

import msgspec

from flowactions_hookspecs import Header, Origin
from flowactions_plugin.clock import to_iso
from flowactions_plugin.deliveries.explain import after_the_end, certainty
from flowactions_plugin.deliveries.resend import source_of
from flowactions_plugin.deliveries.results import (
    SAFE_INTEGER,
    Attempt,
    AuditEntry,
    DeliveryDetail,
    DeliveryFacts,
    DeliveryRow,
    KnownAttempt,
    Milliseconds,
    Pause,
)
from flowactions_plugin.egress.attempt import NOTES
from flowactions_plugin.egress.transport_errors import THROUGH_PROXY
from flowactions_plugin.health.statistics import answered
from flowactions_plugin.http.masking import masked_header, masked_url, reason_for_tenants
from flowactions_plugin.operators.scope import Actor, Scope
from flowactions_plugin.queue.rules import FINISHED
from flowactions_plugin.storage.text import as_text

T = TypeVar("T")

_SURROGATE: Final = re.compile("[\ud800-\udfff]")


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


def row_of(row: Any, *, for_operators: bool) -> DeliveryRow:
    """Return a delivery of a list, whatever its row holds.

    Args:
        row: its columns.
        for_operators: as of `summary_values`.
    """
    reader = Reader(row)
    values = {**summary_values(reader, for_operators=for_operators), **_place(reader)}
    return DeliveryRow(**values, defect=reader.defect())


def facts_of(
    row: Any, log: Sequence[Any], now: int, *, for_operators: bool, workers: Mapping[str, str]
) -> tuple[DeliveryFacts, list[KnownAttempt]]:
    """Return a delivery and its attempts, whatever their rows hold.

    Args:
        row: all columns of the outbox.
        log: rows of the attempts log.
        now: Unix milliseconds; a lease that has expired holds nothing.
        for_operators: as of `detail_values`; they read which worker made an attempt, too.
        workers: names of workers by what their tokens begin with.
    """
    reader = Reader(row)
    values = {**detail_values(reader, log, for_operators=for_operators), **_place(reader)}
    ended = values["status"] in FINISHED
    due = reader.number("next_attempt_at")
    until = reader.number("claimed_until", optional=True)
    held = not ended and until is not None and until > now
    facts = DeliveryFacts(
        **values,
        due_at=None if ended or due is None else due,
        claimed_at=reader.number("updated_at") if held else None,
        claimed_until=until if held else None,
        waiting_since=reader.number("waiting_since", optional=True),
        reclaims=reader.number("takeovers"),
        quarantine_rounds=reader.number("quarantine_rounds"),
        trace=reader.text("trace", optional=True),
        action_id=reader.text("action_id", optional=True),
        defect=reader.defect(),
    )
    finished = reader.number("finished_at", optional=True)
    end = reader.number("updated_at") if finished is None else finished
    attempts = []
    for attempt, stored in zip(facts.attempt_log, log, strict=True):
        mark = Reader(stored).text("worker", optional=True) if for_operators else None
        worker = mark and workers.get(mark, mark)
        began = Reader(stored).number("started_at")
        remark = after_the_end(began, end, worker, has_ended=finished is not None)
        values = msgspec.structs.asdict(attempt)
        attempts.append(KnownAttempt(**values, certainty=certainty(attempt), worker=worker, remark=remark))
    return facts, attempts


def struct_of(row: Any, kind: Callable[..., T], leaves_out: Sequence[str] = ()) -> T:
    """Return the struct whose fields a row's columns have; text that is none is shown as far as possible."""
    values = row._mapping  # noqa: SLF001  public in SQLAlchemy
    return kind(
        **{
            name: as_text(value) if isinstance(value, str | bytes) else value
            for name, value in values.items()
            if name not in leaves_out
        }
    )


def pause_of(row: Any, scope: Scope) -> Pause:
    """Return a pause as somebody may see it."""
    pause = struct_of(row, Pause)
    # Where it is not known how they acted, it may have been an operator.
    actor = Actor("", pause.paused_by, pause.paused_role or "operator")
    who = scope.shown(actor)
    return pause if who == actor else msgspec.structs.replace(pause, paused_by=who.name, paused_role=who.role)


def entry_of(row: Any, scope: Scope) -> AuditEntry:
    """Return a line of the audit as somebody may see it."""
    entry = struct_of(row, AuditEntry)
    who = scope.shown(Actor(entry.actor_id, entry.actor_name, entry.actor_role))
    # What was there before a pause ended names who had begun it.
    before = None if scope.hides_operators else entry.before
    return msgspec.structs.replace(
        entry, actor_id=who.id, actor_name=who.name, actor_role=who.role, before=before
    )


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
            return None if value is None else to_iso(value)
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
        "last_error": answered(code) if error is None else error,
        "resent_from": source_of(reader.raw("origin")),
    }


def _place(reader: Reader) -> dict[str, Any]:
    return {
        "organization_id": reader.text("organization_id"),
        "destination": reader.text("destination"),
        "flow_id": reader.text("flow_id", optional=True),
        "node_id": reader.text("node_id", optional=True),
        "error_class": reader.text("error_class", optional=True),
    }


def _reason(text: str | None, url: str, *, for_operators: bool) -> str | None:
    return text if text is None or for_operators else reason_for_tenants(text, url)


def _shown(value: object) -> str:
    """Return any stored value as text that JSON can hold."""
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value).decode("utf-8", "replace")
    return _SURROGATE.sub("\ufffd", "" if value is None else str(value))
