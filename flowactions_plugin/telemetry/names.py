"""The metrics: their names, units and labels. The reference page is made from them; the dashboard and the alert rules use them.

This module lists every value of every label. So the number of time series is bounded, with any input of
customers, receivers and strangers.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Literal, NamedTuple, TypeAlias

Kind: TypeAlias = Literal["counter", "histogram", "gauge"]

SCOPE: Final = "flowactions"
"""The name of the meter and of the tracer."""

DURATION_BUCKETS: Final = (
    0.005,
    0.01,
    0.025,
    0.05,
    0.1,
    0.25,
    0.5,
    1.0,
    2.5,
    5.0,
    7.5,
    10.0,
    15.0,
    30.0,
    60.0,
    75.0,
)
"""Seconds. An attempt ends within ten, or within what the settings say; all processes have the same buckets."""

LATENCY_BUCKETS: Final = (0.05, 0.1, 0.25, 0.5, 1.0, 5.0, 15.0, 60.0, 300.0, 900.0, 3600.0, 21600.0, 86400.0)
"""Seconds. With retries, a delivery may take minutes; after a replay, weeks."""

OUTCOMES: Final = (
    "delivered",
    "http_1xx",
    "http_3xx",
    "http_4xx",
    "http_5xx",
    "http_other",
    "timeout",
    "network",
    "refused",
    "chat_refused",
    "chat_unreachable",
)
PHASES: Final = ("resolve", "connect", "tls", "send", "wait")
VERDICTS: Final = ("ok", "idle", "stalled", "failing", "no_worker", "unwritable")


class Metric(NamedTuple):
    """A metric.

    Attributes:
        name: as OpenTelemetry has it.
        kind: of its instrument.
        unit: ``s`` for seconds, or what is counted, in braces.
        meaning: a sentence for its description.
        labels: label → all values that it can have.
        buckets: upper bounds of a histogram.
    """

    name: str
    kind: Kind
    unit: str
    meaning: str
    labels: Mapping[str, tuple[str, ...]] = {}
    buckets: tuple[float, ...] = ()

    @property
    def prometheus(self) -> str:
        """The name that OpenTelemetry's exporters give it in Prometheus."""
        name = self.name.replace(".", "_")
        if self.unit == "s":
            name += "_seconds"
        return name + "_total" if self.kind == "counter" else name


def _counter(name: str, unit: str, meaning: str, **labels: tuple[str, ...]) -> Metric:
    return Metric(f"flowactions.{name}", "counter", unit, meaning, labels)


def _gauge(name: str, unit: str, meaning: str, **labels: tuple[str, ...]) -> Metric:
    return Metric(f"flowactions.{name}", "gauge", unit, meaning, labels)


def _histogram(name: str, buckets: tuple[float, ...], meaning: str, **labels: tuple[str, ...]) -> Metric:
    return Metric(f"flowactions.{name}", "histogram", "s", meaning, labels, buckets)


ENQUEUED: Final = _counter(
    "outbox.enqueued",
    "{delivery}",
    "Deliveries that were written to the outbox. One in a transaction of the host counts although that may roll back.",
    origin=("flow_node", "chat_node", "logic_action", "host", "plugin", "unsigned_test"),
)
REFUSED: Final = _counter(
    "outbox.refused",
    "{delivery}",
    "Webhooks that were not queued, and deferred nodes that were not recorded, by reason. `read_only`, `full`: the database"
    " takes no writes; `unavailable`: it did not answer; `conflict`: a serialization conflict or deadlock; `blocked_url`,"
    " `too_large`: the webhook itself may not be sent.",
    reason=("read_only", "full", "unavailable", "conflict", "blocked_url", "too_large"),
)
ATTEMPTS: Final = _counter(
    "delivery.attempts", "{attempt}", "Attempts whose outcome was written.", outcome=OUTCOMES
)
ENDED: Final = _counter(
    "delivery.ended",
    "{delivery}",
    "Deliveries that ended: `delivered`, or `dead` for any reason.",
    status=("delivered", "dead"),
)
ATTEMPT_DURATION: Final = _histogram(
    "delivery.attempt.duration", DURATION_BUCKETS, "How long attempts took.", outcome=OUTCOMES
)
PHASE_DURATION: Final = _histogram(
    "delivery.phase.duration",
    DURATION_BUCKETS,
    "How long the phases of attempts took. An attempt over an open connection has neither `resolve` nor `connect` nor"
    " `tls`; one over a transport of the host's has none.",
    phase=PHASES,
)
LATENCY: Final = _histogram(
    "delivery.latency", LATENCY_BUCKETS, "From enqueue to the end of the attempt that delivered."
)
RECLAIMS: Final = _counter(
    "delivery.reclaims",
    "{reclaim}",
    "Leases that expired, because a worker ended or stood still. Counted when the delivery's next attempt has ended.",
)
REFUSALS: Final = _counter(
    "egress.refusals",
    "{refusal}",
    "Requests that the egress guard refused, when they were to be enqueued or at an attempt.",
    at=("enqueue", "attempt"),
)
DUE: Final = _gauge(
    "outbox.due",
    "{delivery}",
    "Deliveries that are due now and may be claimed; those of paused destinations apart. Counted up to 10,000.",
)
OLDEST_DUE: Final = _gauge("outbox.oldest_due_age", "s", "For how long the oldest of them has been due.")
BLOCKED: Final = _gauge(
    "outbox.blocked_age",
    "s",
    "For how long a delivery has waited without an attempt because something fails here: a method of the host, or the egress"
    " proxy. 0: none waits so. Among the 10,000 that are due first.",
)
IN_FLIGHT: Final = _gauge(
    "worker.in_flight",
    "{delivery}",
    "Deliveries for which this process is making an attempt. What it has only claimed is not counted.",
)
SLOW: Final = _gauge(
    "worker.slow",
    "{delivery}",
    "Deliveries in flight to slow receivers. These have at most three quarters of the slots of this process together.",
)
LIMITED: Final = _gauge(
    "worker.limited",
    "",
    "Destinations that get one delivery at a time from this process, because attempts timed out, so that receivers that hang do"
    " not hold all of its slots.",
)
VERDICT: Final = _gauge(
    "delivery.verdict",
    "",
    "1 for the present verdict on delivery, 0 for the others. `unwritable`: the database takes no writes; `stalled`:"
    " deliveries are due, and nothing is claimed; `no_worker`: no worker has been alive for a minute.",
    verdict=VERDICTS,
)
CLOCK: Final = _gauge(
    "worker.clock_offset",
    "s",
    "By how much the clock of a live worker differs from the database's, ahead or behind. Of several workers, it is the"
    " largest difference. 0 on SQLite, which has no clock of its own.",
)
CHAT_SENDS: Final = _counter(
    "chat.sends",
    "{message}",
    "Messages of chat-message nodes: sent, or the reason why not.",
    target=("channel", "member"),
    result=("sent", "not_connected", "missing_target", "empty_message", "send_failed"),
)
INBOUND: Final = _counter(
    "inbound.requests",
    "{request}",
    "Requests of the auth provider and the chat provider. `refused`: not signed as it must be, too large, or no secret;"
    " `invalid`: signed, but no event; `failed`: the host could not handle it, or the database was away.",
    source=("auth", "chat"),
    result=("processed", "duplicate", "acknowledged", "refused", "invalid", "failed"),
)

METRICS: Final = tuple(each for each in list(globals().values()) if isinstance(each, Metric))
"""All of them, in the order of the reference page: that of this module."""
