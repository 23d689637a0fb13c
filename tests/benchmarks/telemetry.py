"""What metrics and traces cost a delivery, in processor time of this process.

    python -m tests.benchmarks.telemetry [--deliveries 20000] [--json]

The outcomes of deliveries are recorded as the completer has them recorded, fifty at a time, with three phases each:

- ``none``: nobody has configured OpenTelemetry's SDK;
- ``metrics``, ``traces``, ``both``: it is, with exporters that drop everything.

``…_us`` is the processor time of one delivery, and ``progress_us`` what it takes to time an attempt's phases.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Sequence

from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult

from flowactions_hookspecs import FlowNodeOrigin
from flowactions_plugin.clock import new_id
from flowactions_plugin.egress.attempt import Outcome, Progress
from flowactions_plugin.queue.claimed import ClaimedDelivery, Completion
from flowactions_plugin.queue.delivery_telemetry import DeliveryTelemetry
from flowactions_plugin.queue.rules import Transition
from flowactions_plugin.telemetry.telemetry import Telemetry

BATCH = 50
ORIGIN = FlowNodeOrigin(organization_id="acme", agent_id="a", flow_id="f", node_id="n")


class Dropping(SpanExporter):
    """Exports to nowhere."""

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        """Drop spans."""
        return SpanExportResult.SUCCESS


def outcomes() -> list[Completion]:
    """Make a batch of deliveries that have arrived."""
    now = time.time()
    return [
        Completion(
            ClaimedDelivery(
                id=new_id(now),
                token="t",
                organization_id="acme",
                agent_id="a",
                event_id=f"evt_{number}",
                event_type="experience.flow_node.webhook",
                origin=ORIGIN,
                url="https://example.com/hook",
                destination="https://example.com:443",
                method="POST",
                headers=[],
                body=b"{}",
                attempts=0,
                earlier_attempts=0,
                max_attempts=4,
                reclaims=0,
                trace="00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
            ),
            Outcome(int(now * 1000), 12, 200, phases={"connect": 0.001, "send": 0.0001, "wait": 0.01}),
            Transition("delivered"),
        )
        for number in range(BATCH)
    ]


def per_call(work: Callable[[], object], calls: int) -> float:
    """Return microseconds of processor time of one call."""
    started = time.process_time()
    for _ in range(calls):
        work()
    return (time.process_time() - started) / calls * 1e6


def recording(deliveries: int, *, metrics: bool, traces: bool) -> float:
    """Return microseconds of processor time for the outcome of one delivery."""
    meters = MeterProvider([InMemoryMetricReader()], shutdown_on_exit=False) if metrics else None
    tracers = TracerProvider(shutdown_on_exit=False) if traces else None
    if tracers is not None:
        tracers.add_span_processor(BatchSpanProcessor(Dropping(), max_queue_size=1 << 16))
    batch = outcomes()
    with Telemetry(meters, tracers) as telemetry:
        recorded = DeliveryTelemetry(telemetry)
        cost = per_call(lambda: recorded(batch), max(1, deliveries // BATCH)) / BATCH
    if tracers is not None:
        tracers.shutdown()
    return cost


def progress() -> None:
    """Report the phases of an attempt over a new connection, as the transport does, and take their times."""
    each = Progress()
    for phase in ("connecting", "resolving the name", "connecting", "making the TLS handshake"):
        each.enter(phase)
    each.sending(str)
    each.sent()
    each.phases()


def measure(deliveries: int) -> dict[str, float]:
    """Measure all of it."""
    found = {
        "none_us": recording(deliveries, metrics=False, traces=False),
        "metrics_us": recording(deliveries, metrics=True, traces=False),
        "traces_us": recording(deliveries, metrics=False, traces=True),
        "both_us": recording(deliveries, metrics=True, traces=True),
        "progress_us": per_call(progress, deliveries),
    }
    return {name: round(value, 3) for name, value in found.items()}


def main() -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--deliveries", type=int, default=20_000)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    found = measure(options.deliveries)
    if options.json:
        print(json.dumps(found))
        return
    for name, value in found.items():
        print(f"{name:12} {value:8.2f}")


if __name__ == "__main__":
    main()
