"""What is told of deliveries: metrics and traces, lines of the log, and how busy this process is."""

from __future__ import annotations

import logging
import re
from collections import Counter
from collections.abc import Sequence
from typing import Final

import msgspec

from flowactions_plugin.clock import id_time
from flowactions_plugin.egress.signature import folded
from flowactions_plugin.log_text import printable
from flowactions_plugin.origins import HTTP, kind_of
from flowactions_plugin.queue.claimed import Attempted, ClaimedDelivery, Completion, End
from flowactions_plugin.queue.rules import FINISHED, failure_class
from flowactions_plugin.queue.standing import Standing
from flowactions_plugin.queue.turns import Tally
from flowactions_plugin.telemetry import names
from flowactions_plugin.telemetry.meters import Meters
from flowactions_plugin.telemetry.spans import TRACEPARENT, AttributeValue, Spans
from flowactions_plugin.telemetry.telemetry import Telemetry

log = logging.getLogger("flowactions.outbox")

_OUTCOMES: Final = frozenset(names.OUTCOMES)
_METHODS: Final = frozenset({"GET", "HEAD", "POST", "PUT", "DELETE", "PATCH", "OPTIONS"})
_TRACEPARENT: Final = re.compile("00-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}")


class Load(msgspec.Struct):
    """How busy the worker of a process is.

    Attributes:
        in_flight: rows that are being executed.
        claimed: rows that it has claimed since its start.
        limits: what it limits.
        slow: how many of these rows are of slow lanes.
    """

    in_flight: int = 0
    claimed: int = 0
    limits: Standing = msgspec.field(default_factory=Standing)
    slow: Tally = msgspec.field(default_factory=Tally)


def log_dead(row_id: object, destination: object, reason: str) -> None:
    """Log that a delivery is dead: one line each, whatever its row holds (§3.1)."""
    name, where, why = (printable(value, message=True) for value in (row_id, destination, reason))
    log.warning("delivery %s to %s is dead: %s", name, where, why, extra={"event": "delivery.dead"})


def log_lost(row_id: str, end: End) -> None:
    """Log what has ended a claim before its outcome was written."""
    if end.kind == "reclaimed":
        log.warning(
            "delivery %s was reclaimed by another worker", row_id, extra={"event": "delivery.reclaimed"}
        )
    elif end.kind == "purged":
        log.warning(
            "delivery %s was removed while it was sent: its organization was purged",
            row_id,
            extra={"event": "delivery.removed"},
        )
    else:
        log.warning(
            "delivery %s was changed to %s while it was sent, and its outcome is dropped",
            row_id,
            end.detail,
            extra={"event": "delivery.changed"},
        )


def record(telemetry: Telemetry, completions: Sequence[Completion]) -> None:
    """Record a batch of written ends of deliveries. Nothing that goes wrong here keeps deliveries from going on."""
    attempted = [each for each in completions if isinstance(each, Attempted)]
    try:
        if telemetry.meters.is_open:
            _measure(telemetry.meters, completions, attempted)
        if telemetry.spans.is_open:
            for each in attempted:
                _trace(telemetry.spans, each)
    except Exception:
        log.exception(
            "metrics or traces of deliveries could not be recorded", extra={"event": "telemetry.failed"}
        )


def _measure(meters: Meters, completions: Sequence[Completion], attempted: Sequence[Attempted]) -> None:
    attempts: Counter[str] = Counter()
    for each in attempted:
        outcome, name = each.outcome, outcome_name(each)
        attempts[name] += 1
        meters.observe(names.ATTEMPT_DURATION, outcome.duration_ms / 1000, outcome=name)
        for phase, seconds in (outcome.phases or {}).items():
            meters.observe(names.PHASE_DURATION, seconds, phase=phase)
        enqueued_at = id_time(each.delivery.id)
        if name == "delivered" and enqueued_at is not None:
            ended_at = outcome.started_at + outcome.duration_ms
            meters.observe(names.LATENCY, max(0, ended_at - enqueued_at) / 1000)
    ended = Counter(each.status for each in completions if each.status in FINISHED)
    for name, number in attempts.items():
        meters.count(names.ATTEMPTS, number, outcome=name)
    for status, number in ended.items():
        meters.count(names.ENDED, number, status=str(status))
    if attempts["refused"]:
        meters.count(names.REFUSALS, attempts["refused"], at="attempt")
    if reclaims := sum(each.delivery.reclaims for each in completions):
        meters.count(names.RECLAIMS, reclaims)


def _trace(spans: Spans, completion: Attempted) -> None:
    """Make the span of an attempt, by the semantic conventions."""
    delivery, outcome, result = completion.delivery, completion.outcome, outcome_name(completion)
    scheme, _, place = delivery.destination.partition("://")
    host, _, port = place.rpartition(":")
    status = outcome.status_code
    is_http = kind_of(delivery.destination) == HTTP
    attributes: dict[str, AttributeValue] = {
        "messaging.system": names.SCOPE,
        "messaging.operation.type": "send",
        "messaging.operation.name": "attempt",
        "messaging.destination.name": "outbox",
        "messaging.message.id": delivery.event_id,
        "flowactions.event.type": delivery.event_type,
        "flowactions.delivery.id": delivery.id,
        "flowactions.organization.id": delivery.organization_id,
        "flowactions.outcome": result,
    }
    name = delivery.method if is_http else "chat"
    if is_http:
        attributes |= {
            "http.request.method": delivery.method,
            "http.request.resend_count": delivery.earlier_attempts + delivery.attempts,
            "url.scheme": scheme,
            "server.address": host.strip("[]"),
        }
    if is_http and name not in _METHODS:
        name = "HTTP"
        attributes |= {"http.request.method": "_OTHER", "http.request.method_original": delivery.method}
    if is_http and port.isdigit():
        attributes["server.port"] = int(port)
    if status is not None:
        attributes["http.response.status_code"] = status
    if result != "delivered":
        attributes["error.type"] = result if status is None else str(status)
    for phase, seconds in (outcome.phases or {}).items():
        attributes[f"flowactions.phase.{phase}"] = seconds
    ended_at = outcome.started_at + outcome.duration_ms
    spans.attempt(name, delivery.trace, attributes, outcome.started_at, ended_at)


def with_traceparent(delivery: ClaimedDelivery) -> ClaimedDelivery:
    """Return a delivery with the header that continues its trace, unless there is none or its author has set one."""
    trace = delivery.trace
    if trace is None or _TRACEPARENT.fullmatch(trace) is None:
        return delivery
    if any(folded(name) == TRACEPARENT for name, _ in delivery.headers):
        return delivery
    return msgspec.structs.replace(delivery, headers=[*delivery.headers, (TRACEPARENT, trace)])


def outcome_name(completion: Attempted) -> str:
    """Return the outcome of an attempt as metrics have it: one of `names.OUTCOMES`."""
    if completion.status == "delivered":
        return "delivered"
    name = failure_class(completion.outcome)
    return name if name in _OUTCOMES else "http_other"
