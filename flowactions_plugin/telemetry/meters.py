"""Records the metrics of `names` with OpenTelemetry's instruments; does nothing while nobody has configured its SDK."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from threading import Lock
from typing import Any, Final, NamedTuple, TypeAlias
from weakref import WeakKeyDictionary, ref

from opentelemetry import metrics
from opentelemetry.metrics import CallbackOptions, MeterProvider, Observation

from flowactions_plugin.telemetry.names import METRICS, SCOPE, Metric

Instruments: TypeAlias = Mapping[str, Any]


class Reading(NamedTuple):
    """A value of a gauge."""

    metric: Metric
    value: float
    labels: Mapping[str, str] = {}


def is_configured(provider: object) -> bool:
    """Return whether a provider is one that somebody has configured, and not OpenTelemetry's own that drops all."""
    return not type(provider).__module__.startswith(("opentelemetry.metrics", "opentelemetry.trace"))


class Meters:
    """The instruments of one host."""

    def __init__(self) -> None:
        self._instruments: Instruments | None = None
        self._read: Callable[[], Sequence[Reading]] | None = None

    @property
    def is_open(self) -> bool:
        """Whether anything is recorded."""
        return self._instruments is not None

    def open(self, provider: MeterProvider) -> None:
        """Record with a provider from now on, if somebody has configured it."""
        if is_configured(provider):
            self._instruments = _PROVIDERS.join(provider, self)

    def close(self) -> None:
        """Record nothing more."""
        self._instruments = self._read = None

    def count(self, metric: Metric, number: int = 1, **labels: str) -> None:
        """Add to a counter."""
        if self._instruments is not None:
            self._instruments[metric.name].add(number, labels)

    def observe(self, metric: Metric, value: float, **labels: str) -> None:
        """Add a value to a histogram."""
        if self._instruments is not None:
            self._instruments[metric.name].record(value, labels)

    def read_gauges(self, read: Callable[[], Sequence[Reading]]) -> None:
        """Set the function that reads the gauges; an exporter's thread calls it, so it must not block."""
        self._read = read

    def readings(self) -> Sequence[Reading]:
        """Return the present values of the gauges; none when they are not known."""
        read = self._read
        return () if read is None else read()


class _Recorded:
    """What belongs to a provider: its instruments by their names, and the hosts that record with it.

    A provider makes an instrument of a name once, and keeps the first callback of a gauge for ever. So the gauges of all hosts
    are read by one callback. An exporter's thread calls it, under a lock of the SDK's that is also taken to make a gauge: it
    reads the hosts without the lock of `_Providers`, or a host that joins and an exporter would wait for each other for ever.
    """

    def __init__(self, provider: MeterProvider) -> None:
        self.hosts: tuple[ref[Meters], ...] = ()  # replaced as a whole
        self.instruments = _made(provider.get_meter(SCOPE), self)


class _Providers:
    """What belongs to each provider, under a lock."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._recorded: WeakKeyDictionary[MeterProvider, _Recorded] = WeakKeyDictionary()

    def join(self, provider: MeterProvider, host: Meters) -> Instruments:
        """Return a provider's instruments, made at the first call; read the gauges of a host from now on."""
        with self._lock:
            recorded = self._recorded.get(provider)
            if recorded is None:
                recorded = self._recorded[provider] = _Recorded(provider)
            recorded.hosts = (*(each for each in recorded.hosts if each() not in {None, host}), ref(host))
            return recorded.instruments


_PROVIDERS: Final = _Providers()


def _made(meter: metrics.Meter, recorded: _Recorded) -> Instruments:
    instruments: dict[str, Any] = {}
    for metric in METRICS:
        options = {"unit": metric.unit, "description": metric.meaning}
        if metric.kind == "counter":
            instruments[metric.name] = meter.create_counter(metric.name, **options)
        elif metric.kind == "histogram":
            instruments[metric.name] = meter.create_histogram(
                metric.name, **options, explicit_bucket_boundaries_advisory=metric.buckets
            )
        else:
            callback = partial(_observations, recorded, metric)
            instruments[metric.name] = meter.create_observable_gauge(metric.name, [callback], **options)
    return instruments


def _observations(recorded: _Recorded, metric: Metric, _: CallbackOptions) -> Iterable[Observation]:
    for each in recorded.hosts:
        host = each()
        for reading in () if host is None else host.readings():
            if reading.metric is metric:
                yield Observation(reading.value, dict(reading.labels))
