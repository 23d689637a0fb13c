"""Rows of the tables as their organization and operators see them: as far as they can be read, and without credentials."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import msgspec

from flowactions_hookspecs import Header, Origin
from flowactions_plugin.clock import to_iso
from flowactions_plugin.deliveries.explain import after_the_end, certainty
from flowactions_plugin.deliveries.resend import source_of
from flowactions_plugin.deliveries.results import (
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

T = TypeVar("T")


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
    row = reader.row
    values = summary_values(reader, for_operators=for_operators)
    url = row.url
    origin = reader.decoded("origin", Origin)
    headers = reader.decoded("headers", list[tuple[str, str]]) or []
    body = row.body
    attempts = []
    for attempt in log:
        stored = Reader(attempt, "attempts")
        phases = {} if attempt.phases is None else stored.decoded("phases", dict[str, Milliseconds]) or {}
        notes = [text for name, text in NOTES.items() if phases.pop(name, None) is not None]
        hidden = THROUGH_PROXY in notes and not for_operators
        attempts.append(
            Attempt(
                number=attempt.number,
                started_at=_moment(attempt.started_at),
                duration_ms=attempt.duration_ms,
                status_code=attempt.status_code,
                error=_reason(attempt.error, url, for_operators=for_operators),
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
    values = {**summary_values(reader, for_operators=for_operators), **_place(row)}
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
    values = {**detail_values(reader, log, for_operators=for_operators), **_place(row)}
    ended = values["status"] in FINISHED
    due = row.next_attempt_at
    until = row.claimed_until
    held = not ended and until is not None and until > now
    facts = DeliveryFacts(
        **values,
        due_at=None if ended or due is None else due,
        claimed_at=row.updated_at if held else None,
        claimed_until=until if held else None,
        waiting_since=row.waiting_since,
        reclaims=row.takeovers,
        quarantine_rounds=row.quarantine_rounds,
        trace=row.trace,
        action_id=row.action_id,
        defect=reader.defect(),
    )
    finished = row.finished_at
    end = row.updated_at if finished is None else finished
    attempts = []
    for attempt, stored in zip(facts.attempt_log, log, strict=True):
        mark = stored.worker if for_operators else None
        worker = mark and workers.get(mark, mark)
        began = stored.started_at
        remark = after_the_end(began, end, worker, has_ended=finished is not None)
        values = msgspec.structs.asdict(attempt)
        attempts.append(KnownAttempt(**values, certainty=certainty(attempt), worker=worker, remark=remark))
    return facts, attempts


def struct_of(row: Any, kind: Callable[..., T], leaves_out: Sequence[str] = ()) -> T:
    """Return the struct whose fields a row's columns have."""
    values = row._mapping  # noqa: SLF001  public in SQLAlchemy
    return kind(**{name: value for name, value in values.items() if name not in leaves_out})


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
    """Reads the columns of one row, and records those whose JSON cannot be decoded.

    Args:
        row: the row.
        label: one name for all columns in the record; empty: their own names.
    """

    def __init__(self, row: Any, label: str = "") -> None:
        self.row = row
        self._label = label
        self.unreadable: list[str] = []

    def defect(self) -> str | msgspec.UnsetType:
        """Return which columns could not be read."""
        names = ", ".join(dict.fromkeys(self.unreadable))
        return f"stored values that cannot be read: {names}" if names else msgspec.UNSET

    def decoded(self, name: str, kind: Any) -> Any:
        """Return what a column holds as JSON; ``None`` for what is not of this kind."""
        try:
            found = msgspec.json.decode(getattr(self.row, name), type=kind)
            msgspec.json.encode(found)
        except (msgspec.MsgspecError, UnicodeError, TypeError, ValueError, RecursionError):
            self.unreadable.append(self._label or name)
            return None
        return found


def _moment(value: int | None) -> str | None:
    return None if value is None else to_iso(value)


def summary_values(reader: Reader, *, for_operators: bool = False) -> dict[str, Any]:
    """Return the fields of a `DeliverySummary`, its defect excepted.

    Args:
        reader: of the row.
        for_operators: whether people see it who may read why something failed here.
    """
    row = reader.row
    status, url = row.status, row.url
    code = row.last_status_code
    error = _reason(row.last_error, url, for_operators=for_operators)
    finished = status in FINISHED
    return {
        "id": row.id,
        "status": status,
        "idempotency_key": row.idempotency_key,
        "event_id": row.event_id,
        "event_type": row.event_type,
        "agent_id": row.agent_id or None,
        "url": masked_url(url),
        "method": row.method,
        "attempts": row.attempts,
        "max_attempts": row.max_attempts,
        "next_attempt_at": None if finished else _moment(row.next_attempt_at),
        "created_at": _moment(row.created_at),
        "updated_at": _moment(row.updated_at),
        "finished_at": _moment(row.finished_at),
        "last_status_code": code,
        "last_error": answered(code) if error is None else error,
        "resent_from": source_of(row.origin),
    }


def _place(row: Any) -> dict[str, Any]:
    return {
        "organization_id": row.organization_id,
        "destination": row.destination,
        "flow_id": row.flow_id,
        "node_id": row.node_id,
        "error_class": row.error_class,
    }


def _reason(text: str | None, url: str, *, for_operators: bool) -> str | None:
    return text if text is None or for_operators else reason_for_tenants(text, url)


def _shown(value: bytes) -> str:
    """Return bytes as text that JSON can hold."""
    return bytes(value).decode("utf-8", "replace")
