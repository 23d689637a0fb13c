"""Rows of the tables as operators see them: as far as they can be read, and without credentials."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import msgspec

from flowactions_plugin.deliveries.explain import certainty
from flowactions_plugin.deliveries.results import AuditEntry, DeliveryFacts, DeliveryRow, KnownAttempt, Pause
from flowactions_plugin.deliveries.views import Reader, detail_values, summary_values
from flowactions_plugin.operators.scope import Actor, Scope
from flowactions_plugin.queue.rules import FINISHED, due_time
from flowactions_plugin.storage.text import as_text

T = TypeVar("T")


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
    row: Any, log: Sequence[Any], now: int, *, for_operators: bool
) -> tuple[DeliveryFacts, list[KnownAttempt]]:
    """Return a delivery and its attempts, whatever their rows hold.

    Args:
        row: all columns of the outbox.
        log: rows of the attempts log.
        now: Unix milliseconds; a lease that has expired holds nothing.
        for_operators: as of `detail_values`.
    """
    reader = Reader(row)
    values = {**detail_values(reader, log, for_operators=for_operators), **_place(reader)}
    ended = values["status"] in FINISHED
    due = reader.number("next_attempt_at")
    until = reader.number("claimed_until", optional=True)
    held = not ended and until is not None and until > now
    facts = DeliveryFacts(
        **values,
        due_at=None if ended or due is None else due_time(due),
        claimed_at=reader.number("updated_at") if held else None,
        claimed_until=until if held else None,
        waiting_since=reader.number("waiting_since", optional=True),
        reclaims=reader.number("takeovers"),
        quarantine_rounds=reader.number("quarantine_rounds"),
        trace=reader.text("trace", optional=True),
        action_id=reader.text("action_id", optional=True),
        defect=reader.defect(),
    )
    attempts = [
        KnownAttempt(**msgspec.structs.asdict(each), certainty=certainty(each)) for each in facts.attempt_log
    ]
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


def _place(reader: Reader) -> dict[str, Any]:
    return {
        "organization_id": reader.text("organization_id"),
        "destination": reader.text("destination"),
        "flow_id": reader.text("flow_id", optional=True),
        "node_id": reader.text("node_id", optional=True),
        "error_class": reader.text("error_class", optional=True),
    }
