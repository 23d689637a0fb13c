"""The telemetry of one host: its metrics and spans, open while its lifespan is."""

from __future__ import annotations

from typing import Self

from opentelemetry import metrics, trace
from opentelemetry.metrics import MeterProvider
from opentelemetry.trace import TracerProvider

from flowactions_plugin.telemetry.meters import Meters
from flowactions_plugin.telemetry.spans import Spans


class Telemetry:
    """Metrics and spans of one host; a context manager that can be entered again.

    Configure OpenTelemetry's SDK before it is entered: it checks only then whether anybody reads its data.

    Args:
        meter_provider: where metrics go; ``None``: OpenTelemetry's global one.
        tracer_provider: where spans go; ``None``: OpenTelemetry's global one.

    Attributes:
        meters: the metrics.
        spans: the spans.
    """

    def __init__(
        self, meter_provider: MeterProvider | None = None, tracer_provider: TracerProvider | None = None
    ) -> None:
        self.meters, self.spans = Meters(), Spans()
        self._providers = meter_provider, tracer_provider

    @property
    def is_open(self) -> bool:
        """Whether anything is recorded."""
        return self.meters.is_open or self.spans.is_open

    def __enter__(self) -> Self:
        meters, tracers = self._providers
        self.meters.open(meters or metrics.get_meter_provider())
        self.spans.open(tracers or trace.get_tracer_provider())
        return self

    def __exit__(self, *_exc: object) -> None:
        self.meters.close()
        self.spans.close()
