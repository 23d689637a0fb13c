"""OpenTelemetry's SDK in memory: what a host's exporters would get."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import HistogramDataPoint, InMemoryMetricReader
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from flowactions_hookspecs import FlowActions, Host
from flowactions_plugin.services import Services
from flowactions_plugin.telemetry.telemetry import Telemetry

_RECORDED: WeakKeyDictionary[Host, Telemetry] = WeakKeyDictionary()
_build = Services.__init__


def _build_recorded(self: Services, host: Host, actions: FlowActions, **options: Any) -> None:
    """Build the services of a host that is recorded: the global providers of OpenTelemetry are set once in a process."""
    _build(self, host, actions, **{"telemetry": _RECORDED.get(host), **options})


Services.__init__ = _build_recorded  # type: ignore[method-assign]


class Point(NamedTuple):
    """A value that was recorded: of a histogram, how many values."""

    name: str
    labels: dict[str, str]
    value: float


class Recorded:
    """A host's SDK, and what reached it."""

    def __init__(self) -> None:
        self._reader = InMemoryMetricReader()
        self._exporter = InMemorySpanExporter()
        self.meters = MeterProvider([self._reader], shutdown_on_exit=False)
        self.tracers = TracerProvider(shutdown_on_exit=False)
        self.tracers.add_span_processor(SimpleSpanProcessor(self._exporter))

    def listen_to(self, host: Host) -> None:
        """Have a host's metrics and spans recorded, before it is loaded."""
        _RECORDED[host] = Telemetry(self.meters, self.tracers)

    def points(self) -> list[Point]:
        """Collect the metrics."""
        data = self._reader.get_metrics_data()
        return [
            Point(metric.name, _labels(point), _value(point))
            for resource in (() if data is None else data.resource_metrics)
            for scope in resource.scope_metrics
            for metric in scope.metrics
            for point in metric.data.data_points
        ]

    def value(self, name: str, **labels: str) -> float:
        """Give the value of one series; 0 where nothing was recorded."""
        return sum(each.value for each in self.points() if each.name == name and each.labels == labels)

    def spans(self, name: str | None = None) -> Sequence[ReadableSpan]:
        """Give the spans that have ended, of one name or all."""
        ended = self._exporter.get_finished_spans()
        return [span for span in ended if name is None or span.name == name]

    def text(self) -> str:
        """Give everything that was recorded, as text."""
        data = self._reader.get_metrics_data()
        metrics = "" if data is None else data.to_json()
        return metrics + "".join(span.to_json() for span in self.spans())


def _value(point: Any) -> float:
    return float(point.count if isinstance(point, HistogramDataPoint) else point.value)


def _labels(point: Any) -> dict[str, str]:
    return {str(name): str(value) for name, value in (point.attributes or {}).items()}
