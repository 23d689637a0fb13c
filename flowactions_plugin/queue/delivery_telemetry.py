"""What metrics and traces have of deliveries."""

from __future__ import annotations

import logging
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Final

import msgspec

from flowactions_plugin.clock import id_time
from flowactions_plugin.egress.header_names import folded
from flowactions_plugin.queue.claimed import ClaimedDelivery, Completion
from flowactions_plugin.queue.limits import NOTHING_LIMITED, Limited
from flowactions_plugin.queue.observer import Load
from flowactions_plugin.queue.rules import FINISHED, failure_class
from flowactions_plugin.telemetry import names
from flowactions_plugin.telemetry.spans import TRACEPARENT, Attempted
from flowactions_plugin.telemetry.telemetry import Telemetry

log = logging.getLogger("flowactions.outbox")

_OUTCOMES: Final = frozenset(names.OUTCOMES)
_TRACEPARENT: Final = re.compile("00-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}")


class DeliveryTelemetry:
    """Records attempts and ends of deliveries, a batch of written outcomes at a time.

    Args:
        telemetry: open, or not: then nothing is done.
    """

    def __init__(self, telemetry: Telemetry) -> None:
        self._meters = telemetry.meters
        self._spans = telemetry.spans
        self._load: Callable[[], Load] | None = None

    def in_flight(self) -> int:
        """Return how many deliveries this process has in flight."""
        return 0 if self._load is None else self._load().in_flight

    def limited(self) -> Limited:
        """Return what this process limits."""
        return NOTHING_LIMITED if self._load is None else self._load().limited

    @contextmanager
    def watching(self, load: Callable[[], Load]) -> Iterator[None]:
        """Know within the block how busy this process is."""
        self._load = load
        try:
            yield
        finally:
            self._load = None

    def __call__(self, completions: Sequence[Completion]) -> None:
        """Record a batch. Nothing that goes wrong here keeps deliveries from going on."""
        try:
            if self._meters.is_open:
                self._measure(completions)
            if self._spans.is_open:
                self._trace(completions)
        except Exception:
            log.exception(
                "metrics or traces of deliveries could not be recorded", extra={"event": "telemetry.failed"}
            )

    def _measure(self, completions: Sequence[Completion]) -> None:
        attempts: Counter[str] = Counter()
        ended: Counter[str] = Counter()
        meters = self._meters
        for each in completions:
            if each.change.status in FINISHED:
                ended[each.change.status] += 1
            if not each.attempted:
                continue
            name = outcome_name(each)
            attempts[name] += 1
            meters.observe(names.ATTEMPT_DURATION, each.outcome.duration_ms / 1000, outcome=name)
            for phase, seconds in (each.outcome.phases or {}).items():
                meters.observe(names.PHASE_DURATION, seconds, phase=phase)
            enqueued_at = id_time(each.delivery.id)
            if name == "delivered" and enqueued_at is not None:
                ended_at = each.outcome.started_at + each.outcome.duration_ms
                meters.observe(names.LATENCY, max(0, ended_at - enqueued_at) / 1000)
        for name, number in attempts.items():
            meters.count(names.ATTEMPTS, number, outcome=name)
        for status, number in ended.items():
            meters.count(names.ENDED, number, status=status)
        if attempts["refused"]:
            meters.count(names.REFUSALS, attempts["refused"], at="attempt")
        reclaims = sum(each.delivery.reclaims for each in completions)
        if reclaims:
            meters.count(names.RECLAIMS, reclaims)

    def _trace(self, completions: Sequence[Completion]) -> None:
        for each in completions:
            if not each.attempted:
                continue
            delivery, outcome = each.delivery, each.outcome
            self._spans.attempt(
                Attempted(
                    traceparent=delivery.trace,
                    started_at=outcome.started_at,
                    duration_ms=outcome.duration_ms,
                    method=delivery.method,
                    destination=delivery.destination,
                    delivery_id=delivery.id,
                    event_id=delivery.event_id,
                    event_type=delivery.event_type,
                    organization_id=delivery.organization_id,
                    earlier=delivery.earlier_attempts + delivery.attempts,
                    status_code=outcome.status_code,
                    outcome=outcome_name(each),
                    phases=outcome.phases or {},
                )
            )


def with_traceparent(delivery: ClaimedDelivery) -> ClaimedDelivery:
    """Return a delivery with the header that continues its trace, unless there is none or its author has set one."""
    trace = delivery.trace
    if trace is None or _TRACEPARENT.fullmatch(trace) is None:
        return delivery
    if any(folded(name) == TRACEPARENT for name, _ in delivery.headers):
        return delivery
    return msgspec.structs.replace(delivery, headers=[*delivery.headers, (TRACEPARENT, trace)])


def outcome_name(completion: Completion) -> str:
    """Return the outcome of an attempt as metrics have it: one of `names.OUTCOMES`."""
    if completion.change.status == "delivered":
        return "delivered"
    name = failure_class(completion.outcome)
    return name if name in _OUTCOMES else "http_other"
