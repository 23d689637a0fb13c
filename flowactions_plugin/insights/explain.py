"""Why a delivery is not sent yet, and whether a receiver can have had an attempt: pure, no I/O."""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import datetime
from typing import Final

from flowactions_plugin.egress.attempt import CLOSED_KEPT, LOST_KEPT
from flowactions_plugin.egress.transport_errors import PROXY_FAILED, THROUGH_PROXY
from flowactions_plugin.insights.results import Certainty, DeliveryDetail, Pause, Worker
from flowactions_plugin.insights.verdict import about, moment
from flowactions_plugin.queue.rules import QUARANTINE_ROUNDS
from flowactions_plugin.storage.schema import QUARANTINE_AFTER

_NEVER_CONNECTED: Final = re.compile(
    r"timed out after \S+ s while (resolving the name|connecting|making the TLS handshake)"
    r"|cannot connect to |the TLS certificate of |.{1,300} has no address now: "
    rf"|{re.escape(PROXY_FAILED)}"
    # Refused by a rule, before anything was dialled.
    r"|Requests to .{1,300} are not allowed|The URL "
)
_ANSWERED: Final = re.compile(r".{1,300} broke its answer off|what .{1,300} answered is not HTTP")

LATE_MS: Final = 10_000
"""What has been due for longer waits for a slot, as a rule one for its destination."""

AHEAD_MS: Final = 1000
"""An attempt that began so long after its end is remarked on; clocks that are synchronized differ by less."""


def certainty(status_code: int | None, error: str | None, note: str | None) -> Certainty:
    """Return whether the receiver can have had an attempt, from its answer, its error and its note.

    A timeout is not a failure of the receiver's: it may have done what the webhook asked for. Where the reason says
    nothing of how far the request has got, it may have left.
    """
    if THROUGH_PROXY in (note or ""):
        return "answered through the proxy"
    if status_code is not None or _ANSWERED.match(error or ""):
        return "answered"
    # If the request was to be sent again, only the second connection can have failed.
    sent = any(each in (note or "") for each in (CLOSED_KEPT, LOST_KEPT)) or not _NEVER_CONNECTED.match(
        error or ""
    )
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


def why_not_sent(
    row: DeliveryDetail,
    pause: Pause | None,
    now: int,
    *,
    workers: Sequence[Worker] = (),
    holder: Worker | None = None,
    limited_since: int | None = None,
) -> str:
    """Return why a delivery is not sent yet, or how it ended, in one sentence.

    Args:
        row: the delivery.
        pause: of its destination; ``None``: it is not paused.
        now: Unix milliseconds.
        workers: the processes that deliver, whatever their state.
        holder: the one whose claim holds it, its name empty for people who may not read it; ``None``: none does, or nothing
            is known of it.
        limited_since: since when a worker limits its destination (Unix milliseconds); ``None``: none does.
    """
    alive = [each for each in workers if each.state == "alive"]
    due = now if row.next_attempt_at is None else _ms(row.next_attempt_at)
    earlier = _ended(row) or _waits(row, pause, now, due, holder)
    if earlier is not None:
        return earlier
    late = f"It has been due since {moment(due)}"
    if not alive:
        return f"{late}, and no worker is alive that could send it."
    return f"{late}{_is_due(row, alive, now - due, limited_since)}."


def _is_due(row: DeliveryDetail, alive: Sequence[Worker], late_ms: int, limited_since: int | None) -> str:
    """Return why a delivery that may be claimed is not claimed yet."""
    if (row.reclaims or 0) >= QUARANTINE_AFTER:
        return f", in quarantine: {_quarantine(row)}"
    if limited_since is not None:
        return (
            f", and its destination is limited to one delivery at a time since {moment(limited_since)}, "
            "because attempts to it time out"
        )
    if all(each.mode == "scheduled" for each in alive):
        return ", and a worker claims it at its next tick"
    return f", and a worker claims it {'when it has a slot free for its destination' if late_ms >= LATE_MS else 'soon'}"


def _quarantine(row: DeliveryDetail) -> str:
    begun = row.quarantine_rounds or 0
    return (
        f"{row.reclaims} workers ended while they sent it, so it is sent alone; {begun} of {QUARANTINE_ROUNDS} such "
        f"attempts have ended their worker: "
        f"after {QUARANTINE_ROUNDS} it is dead"
    )


def _ended(row: DeliveryDetail) -> str | None:
    if row.status == "delivered":
        return f"It was delivered at {moment(row.finished_at)}, by attempt {row.attempts}."
    if row.status == "dead":
        return f"It failed at {moment(row.finished_at)}: {_sentence(row.last_error)}"
    return None


def _waits(row: DeliveryDetail, pause: Pause | None, now: int, due: int, holder: Worker | None) -> str | None:
    """Return why a delivery may not be claimed now; ``None``: it may."""
    attempt = f"attempt {row.attempts + 1}"
    if row.claimed_until is not None:
        return (
            f"It is claimed by {_holding(holder)} for {attempt} since {moment(row.claimed_at)}, and at the latest until "
            f"{moment(row.claimed_until)}, when any worker may claim it again."
        )
    if pause is not None and pause.probe_at is not None:
        return (
            f"Its destination was paused automatically at {moment(pause.paused_at)} ({pause.reason}): it waits, without "
            f"using up an attempt, until one delivery arrives; the next one is sent at {moment(pause.probe_at)}."
        )
    if pause is not None:
        whose = "this organization" if pause.organization_id else "all organizations"
        why = f" ({pause.reason})" if pause.reason else ""
        return (
            f"Its destination was paused for {whose} by {pause.paused_by} at {moment(pause.paused_at)}{why}: "
            "it waits, without using up an attempt, until the destination is resumed."
        )
    if row.waiting_since is not None:
        what = "egress proxy" if (row.last_error or "").startswith(PROXY_FAILED) else "host"
        again = "it is tried again" if due <= now else f"it is tried again in {about(max(1000, due - now))}"
        return f"It waits for the {what} since {moment(row.waiting_since)}, and {again}: {_sentence(row.last_error)}"
    if due > now:
        status = "" if row.last_status_code is None else f" ({row.last_status_code})"
        last = "" if row.error_class is None else f"; the last one failed: {row.error_class}{status}"
        return f"The backoff before {attempt} ends in {about(max(1000, due - now))}, at {moment(due)}{last}."
    return None


def _holding(worker: Worker | None) -> str:
    """Return who has claimed a delivery, and whether they can still send it."""
    if worker is None:
        return "a worker"
    name = f"worker {worker.name}" if worker.name else "a worker"
    if worker.state == "stale":
        return f"{name}, which does not answer since {moment(worker.last_seen_at)},"
    return f"{name}, which has stopped," if worker.state == "stopped" else name


def _ms(iso: str) -> int:
    return round(datetime.fromisoformat(iso).timestamp() * 1000)


def _sentence(reason: str | None) -> str:
    """Return a stored reason with a full stop."""
    text = (reason or "it was answered with a failure").strip()
    return text if text.endswith((".", "!", "?")) else f"{text}."
