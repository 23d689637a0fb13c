"""Rows of the tables as their organization and operators see them: as far as they can be read, and without credentials."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final, TypeVar

import msgspec

from flowactions_hookspecs import Header, Origin
from flowactions_plugin.clock import is_id, to_iso
from flowactions_plugin.egress.attempt import NOTES
from flowactions_plugin.egress.transport_errors import THROUGH_PROXY
from flowactions_plugin.http.masking import masked_header, masked_url, reason_for_tenants
from flowactions_plugin.insights.explain import after_the_end, certainty
from flowactions_plugin.insights.filters import Filter
from flowactions_plugin.insights.results import (
    Action,
    Attempt,
    AuditEntry,
    Delivery,
    DeliveryDetail,
    Milliseconds,
    Pause,
)
from flowactions_plugin.operators.scope import Actor, Scope
from flowactions_plugin.queue.rules import FINISHED
from flowactions_plugin.watch.statistics import answered

T = TypeVar("T")

RESENT_FROM: Final = "resentFrom"
"""The field of a stored origin that names the delivered row."""


class _Source(msgspec.Struct, rename="camel"):
    resent_from: str | None = None


def source_of(origin: Any) -> str | None:
    """Return the id of the delivered row that a stored origin names; ``None``: it names none, or cannot be read."""
    found = _decoded(origin, _Source)
    source = None if found is None else found.resent_from
    return source if source is not None and is_id(source) else None


def delivery_of(row: Any, *, for_operators: bool) -> Delivery:
    """Return a delivery of a list.

    Args:
        row: its columns.
        for_operators: whether people see it who may read why something failed here.
    """
    return Delivery(**_values(row, for_operators=for_operators))


def detail_of(
    row: Any,
    log: Sequence[Any],
    now: int,
    *,
    for_operators: bool,
    workers: Mapping[str, str] = MappingProxyType({}),
) -> DeliveryDetail:
    """Return a delivery with its attempts.

    Args:
        row: all columns of the outbox.
        log: rows of the attempts log.
        now: Unix milliseconds; a lease that has expired holds nothing.
        for_operators: whether people see it who may read what the egress proxy answers, why something failed here, and which
            worker made an attempt.
        workers: names of workers by what their tokens begin with.
    """
    origin, headers = _decoded(row.origin, Origin), _decoded(row.headers, list[tuple[str, str]])
    phases = [{} if each.phases is None else _decoded(each.phases, dict[str, Milliseconds]) for each in log]
    unreadable = [name for name, value in (("origin", origin), ("headers", headers)) if value is None]
    unreadable += ["attempts"] if None in phases else []
    until = row.claimed_until
    held = row.status not in FINISHED and until is not None and until > now
    return DeliveryDetail(
        **_values(row, for_operators=for_operators),
        origin=origin,
        headers=[Header(key=key, value=masked_header(key, value)) for key, value in headers or ()],
        body=None if row.body is None else _shown(row.body),
        attempt_log=[
            _attempt(row, each, taken or {}, workers, for_operators=for_operators)
            for each, taken in zip(log, phases, strict=True)
        ],
        claimed_at=_moment(row.updated_at) if held else None,
        claimed_until=_moment(until) if held else None,
        waiting_since=_moment(row.waiting_since),
        reclaims=row.takeovers,
        quarantine_rounds=row.quarantine_rounds,
        trace=row.trace,
        action_id=row.action_id,
        defect=f"stored values that cannot be read: {', '.join(unreadable)}" if unreadable else msgspec.UNSET,
    )


def _attempt(
    row: Any, stored: Any, phases: dict[str, int], workers: Mapping[str, str], *, for_operators: bool
) -> Attempt:
    notes = [text for name, text in NOTES.items() if phases.pop(name, None) is not None]
    hidden = THROUGH_PROXY in notes and not for_operators
    mark = stored.worker if for_operators else None
    worker = mark and workers.get(mark, mark)
    end = row.updated_at if row.finished_at is None else row.finished_at
    note = "; ".join(notes) or None
    error = _reason(stored.error, row.url, for_operators=for_operators)
    return Attempt(
        number=stored.number,
        started_at=_moment(stored.started_at),
        duration_ms=stored.duration_ms,
        status_code=stored.status_code,
        error=error,
        response="" if hidden else _shown(stored.response or b""),
        phases=phases,
        note=note,
        certainty=certainty(stored.status_code, error, note),
        worker=worker,
        remark=after_the_end(stored.started_at, end, worker, has_ended=row.finished_at is not None),
    )


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


def action_of(row: Any, scope: Scope) -> Action:
    """Return a bulk action as somebody may see it."""
    values: dict[str, Any] = {name: getattr(row, name) for name in Action.__struct_fields__}
    who = scope.shown(Actor(row.actor_id, row.actor_name, row.actor_role))
    values |= {"actor_id": who.id, "actor_name": who.name, "reset_attempts": bool(row.reset_attempts)}
    try:
        values["filter"] = msgspec.json.decode(row.filter, type=Filter)
    except msgspec.MsgspecError:
        values["filter"] = Filter()
    return Action(**values)


def entry_of(row: Any, scope: Scope) -> AuditEntry:
    """Return a line of the audit as somebody may see it."""
    entry = struct_of(row, AuditEntry)
    who = scope.shown(Actor(entry.actor_id, entry.actor_name, entry.actor_role))
    # What was there before a pause ended names who had begun it.
    before = None if scope.hides_operators else entry.before
    return msgspec.structs.replace(
        entry, actor_id=who.id, actor_name=who.name, actor_role=who.role, before=before
    )


def _decoded(stored: Any, kind: Any) -> Any:
    """Return what a column holds as JSON; ``None`` for what is not of this kind."""
    try:
        found = msgspec.json.decode(stored, type=kind)
        msgspec.json.encode(found)
    except (msgspec.MsgspecError, UnicodeError, TypeError, ValueError, RecursionError):
        return None
    return found


def _moment(value: int | None) -> str | None:
    return None if value is None else to_iso(value)


_AS_STORED: Final = (
    "id",
    "status",
    "organization_id",
    "flow_id",
    "node_id",
    "idempotency_key",
    "event_id",
    "event_type",
    "destination",
    "method",
    "attempts",
    "max_attempts",
    "last_status_code",
    "error_class",
)


def _values(row: Any, *, for_operators: bool) -> dict[str, Any]:
    """Return the fields of a `Delivery`."""
    error = _reason(row.last_error, row.url, for_operators=for_operators)
    return {
        **{name: getattr(row, name) for name in _AS_STORED},
        "agent_id": row.agent_id or None,
        "url": masked_url(row.url),
        "next_attempt_at": None if row.status in FINISHED else _moment(row.next_attempt_at),
        "created_at": _moment(row.created_at),
        "updated_at": _moment(row.updated_at),
        "finished_at": _moment(row.finished_at),
        "last_error": answered(row.last_status_code) if error is None else error,
        "resent_from": source_of(row.origin),
    }


def _reason(text: str | None, url: str, *, for_operators: bool) -> str | None:
    return text if text is None or for_operators else reason_for_tenants(text, url)


def _shown(value: bytes) -> str:
    """Return bytes as text that JSON can hold."""
    return bytes(value).decode("utf-8", "replace")
