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
    """The instruments of one host.

    Args:
        provider: OpenTelemetry's; ``None``: the global one, as it is when the host's lifespan opens.
    """

    def __init__(self, provider: MeterProvider | None = None) -> None:
        self._given = provider
        self._instruments: Instruments | None = None
        self._read: Callable[[], Sequence[Reading]] | None = None

    @property
    def is_open(self) -> bool:
        """Whether anything is recorded."""
        return self._instruments is not None

    def open(self) -> None:
        """Record from now on, if somebody has configured where to."""
        provider = metrics.get_meter_provider() if self._given is None else self._given
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


class _Sources:
    """The hosts that record with one provider, for an exporter's thread, which reads them without a lock.

    The SDK holds a lock of its own while it reads gauges, and takes it to make one. If reading waited for the lock under which
    instruments are made, a host that joins and an exporter would wait for each other for ever.
    """

    def __init__(self) -> None:
        self._refs: tuple[ref[Meters], ...] = ()  # replaced as a whole

    def add(self, source: Meters) -> None:
        """Add a host, once, and drop hosts that were deleted; one call at a time."""
        self._refs = (*(each for each in self._refs if each() not in {None, source}), ref(source))

    def __call__(self) -> Sequence[Meters]:
        """Return those that are there."""
        return [source for each in self._refs if (source := each()) is not None]


class _Providers:
    """The instruments of each provider.

    A provider makes an instrument of a name once, and keeps the first callback of a gauge for ever. So what belongs to it
    is kept beside it, and the gauges of all hosts that record there are read by one callback.
    """

    def __init__(self) -> None:
        self._lock = Lock()
        self._instruments: WeakKeyDictionary[MeterProvider, Instruments] = WeakKeyDictionary()
        self._sources: WeakKeyDictionary[MeterProvider, _Sources] = WeakKeyDictionary()

    def join(self, provider: MeterProvider, source: Meters) -> Instruments:
        """Return the instruments by their names, made at the first call; read the gauges of ``source`` from now on."""
        with self._lock:
            sources = self._sources.setdefault(provider, _Sources())
            sources.add(source)
            if provider not in self._instruments:
                self._instruments[provider] = _made(provider.get_meter(SCOPE), sources)
            return self._instruments[provider]


_PROVIDERS: Final = _Providers()


def _made(meter: metrics.Meter, sources: Callable[[], Sequence[Meters]]) -> Instruments:
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
            callback = partial(_observations, sources, metric)
            instruments[metric.name] = meter.create_observable_gauge(metric.name, [callback], **options)
    return instruments


def _observations(
    sources: Callable[[], Sequence[Meters]], metric: Metric, _: CallbackOptions
) -> Iterable[Observation]:
    for source in sources():
        for reading in source.readings():
            if reading.metric is metric:
                yield Observation(reading.value, dict(reading.labels))
