"""Rows of the tables as their organization and operators see them: as far as they can be read, and without credentials."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final, TypeVar

import msgspec

from flowactions_hookspecs import Header, Origin
from flowactions_plugin.clock import is_id, to_iso
from flowactions_plugin.egress.attempt import CLOSED_KEPT, LOST_KEPT, NOTES
from flowactions_plugin.egress.transport_errors import PROXY_FAILED, THROUGH_PROXY
from flowactions_plugin.http.masking import masked_header, masked_url, reason_for_tenants
from flowactions_plugin.insights.facts import about
from flowactions_plugin.insights.results import (
    Action,
    Attempt,
    AuditEntry,
    Certainty,
    Delivery,
    DeliveryDetail,
    Milliseconds,
    Pause,
)
from flowactions_plugin.operators.scope import Actor, Scope
from flowactions_plugin.origins import CHAT, HTTP, kind_of
from flowactions_plugin.queue.rules import FINISHED
from flowactions_plugin.storage.schema import BEHIND_MS
from flowactions_plugin.watch.statistics import answered

T = TypeVar("T", bound=msgspec.Struct)
D = TypeVar("D", bound=Delivery)

RESENT_FROM: Final = "resentFrom"
"""The field of a stored origin that names the delivered row."""


_NEVER_CONNECTED: Final = re.compile(
    r"timed out after \S+ s while (resolving the name|connecting|making the TLS handshake)"
    r"|cannot connect to |the TLS certificate of |.{1,300} has no address now: "
    rf"|{re.escape(PROXY_FAILED)}"
    # Refused by a rule, before anything was dialled.
    r"|Requests to .{1,300} are not allowed|The URL "
)
_ANSWERED: Final = re.compile(r".{1,300} broke its answer off|what .{1,300} answered is not HTTP")

UNANSWERED: Final = ("unreachable:", "maybe_posted:")
"""How errors of chat messages begin that may have been posted."""

AHEAD_MS: Final = 1000
"""An attempt that began so long after its end is remarked on; clocks that are synchronized differ by less."""


class _Source(msgspec.Struct, rename="camel"):
    resent_from: str | None = None


def source_of(origin: Any) -> str | None:
    """Return the id of the delivered row that a stored origin names; ``None``: it names none, or cannot be read."""
    found = _decoded(origin, _Source)
    source = None if found is None else found.resent_from
    return source if source is not None and is_id(source) else None


def struct_of(row: Any, kind: type[T], **others: Any) -> T:
    """Return a struct whose fields a row's columns have, but for these others."""
    names = kind.__struct_fields__
    return kind(**{name: getattr(row, name) for name in names if name not in others}, **others)


def is_behind(row: Any) -> bool:
    """Return whether a row waits for the delivery before it in its sequence."""
    return bool(row.next_attempt_at == BEHIND_MS and row.status == "pending")


def delivery_of(row: Any, *, for_operators: bool) -> Delivery:
    """Return a delivery of a list, from its columns; ``for_operators``: who sees it may read why something failed here."""
    return _delivery(row, Delivery, for_operators=for_operators)


def _delivery(row: Any, kind: type[D], *, for_operators: bool, **others: Any) -> D:
    error = _reason(row.last_error, row.url, for_operators=for_operators)
    return struct_of(
        row,
        kind,
        agent_id=row.agent_id or None,
        url=masked_url(row.url),
        next_attempt_at=None if row.status in FINISHED or is_behind(row) else _moment(row.next_attempt_at),
        created_at=_moment(row.created_at),
        updated_at=_moment(row.updated_at),
        finished_at=_moment(row.finished_at),
        last_error=answered(row.last_status_code) if error is None else error,
        resent_from=source_of(row.origin),
        **others,
    )


def detail_of(
    row: Any, log: Sequence[Any], now: int, workers: Mapping[str, str], *, for_operators: bool
) -> DeliveryDetail:
    """Return a delivery with its attempts.

    Args:
        row: all columns of the outbox.
        log: rows of the attempts log.
        now: Unix milliseconds; a lease that has expired holds nothing.
        workers: names of workers by what their tokens begin with.
        for_operators: whether people see it who may read what the egress proxy answers, why something failed here, and which
            worker made an attempt.
    """
    origin, headers = _decoded(row.origin, Origin), _decoded(row.headers, list[tuple[str, str]])
    phases = [{} if each.phases is None else _decoded(each.phases, dict[str, Milliseconds]) for each in log]
    unreadable = [name for name, value in (("origin", origin), ("headers", headers)) if value is None]
    unreadable += ["attempts"] if None in phases else []
    until = row.claimed_until
    held = row.status not in FINISHED and until is not None and until > now
    return _delivery(
        row,
        DeliveryDetail,
        for_operators=for_operators,
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
        defect=f"stored values that cannot be read: {', '.join(unreadable)}" if unreadable else msgspec.UNSET,
    )


def _attempt(
    row: Any, stored: Any, phases: dict[str, int], workers: Mapping[str, str], *, for_operators: bool
) -> Attempt:
    notes = [text for name, text in NOTES.items() if phases.pop(name, None) is not None]
    note = "; ".join(notes) or None
    mark = stored.worker if for_operators else None
    worker = mark and workers.get(mark, mark)
    end = row.updated_at if row.finished_at is None else row.finished_at
    error = _reason(stored.error, row.url, for_operators=for_operators)
    return struct_of(
        stored,
        Attempt,
        started_at=_moment(stored.started_at),
        error=error,
        response="" if THROUGH_PROXY in notes and not for_operators else _shown(stored.response or b""),
        phases=phases,
        note=note,
        certainty=certainty(stored.status_code, error, note, kind_of(row.destination)),
        worker=worker,
        remark=after_the_end(stored.started_at, end, worker, has_ended=row.finished_at is not None),
    )


def pause_of(row: Any, scope: Scope) -> Pause:
    """Return a pause as somebody may see it."""
    # Where it is not known how they acted, it may have been an operator.
    actor = Actor("", row.paused_by, row.paused_role or "operator")
    who = scope.shown(actor)
    return struct_of(row, Pause, paused_by=who.name, paused_role=row.paused_role if who == actor else who.role)


def action_of(row: Any, scope: Scope) -> Action:
    """Return a bulk action as somebody may see it."""
    who = scope.shown(Actor(row.actor_id, row.actor_name, row.actor_role))
    return struct_of(
        row,
        Action,
        actor_id=who.id,
        actor_name=who.name,
        reset_attempts=bool(row.reset_attempts),
    )


def entry_of(row: Any, scope: Scope) -> AuditEntry:
    """Return a line of the audit as somebody may see it."""
    who = scope.shown(Actor(row.actor_id, row.actor_name, row.actor_role))
    # What was there before a pause ended names who had begun it.
    before = None if scope.hides_operators else row.before
    return struct_of(row, AuditEntry, actor_id=who.id, actor_name=who.name, actor_role=who.role, before=before)


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


def _reason(text: str | None, url: str, *, for_operators: bool) -> str | None:
    return text if text is None or for_operators else reason_for_tenants(text, url)


def _shown(value: bytes) -> str:
    """Return bytes as text that JSON can hold."""
    return bytes(value).decode("utf-8", "replace")


def certainty(status_code: int | None, error: str | None, note: str | None, kind: str = HTTP) -> Certainty:
    """Return whether the receiver can have had an attempt, from its answer, its error and its note.

    A timeout is not a failure of the receiver's: it may have done what the webhook asked for. Where the reason says
    nothing of how far the request has got, it may have left.
    """
    if kind == CHAT:
        return "sent, no answer" if (error or "").startswith(UNANSWERED) else "answered"
    if THROUGH_PROXY in (note or ""):
        return "answered through the proxy"
    if status_code is not None or _ANSWERED.match(error or ""):
        return "answered"
    # If the request was to be sent again, only the second connection can have failed.
    sent_again = any(each in (note or "") for each in (CLOSED_KEPT, LOST_KEPT))
    sent = sent_again or not _NEVER_CONNECTED.match(error or "")
    return "sent, no answer" if sent else "never connected"


def after_the_end(began: int | None, end: int | None, worker: str | None, *, has_ended: bool) -> str | None:
    """Return a remark on an attempt that began after its outcome was stored; ``None``: it did not.

    Attempts have the time of the machine that made them, outcomes have the database's.

    Args:
        began: the attempt, Unix milliseconds.
        end: when the delivery ended or, before that, when it was last changed.
        worker: which made the attempt; ``None``: not known.
        has_ended: whether the delivery has ended.
    """
    if began is None or end is None or began - end < AHEAD_MS:
        return None
    late = about(began - end)
    what = "the delivery ended" if has_ended else "its outcome was stored"
    whose = "a worker" if worker is None else f"worker {worker}"
    return f"began {late} after {what}, by the database's clock: the clock of {whose} was ahead"
