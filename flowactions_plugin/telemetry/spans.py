"""The spans of a delivery's way: node, enqueue, attempt; none while nobody has configured OpenTelemetry's SDK.

An attempt belongs to the trace of what enqueued it, and is linked to it, too: between the two lies the queue.
No span holds a URL's path or query, a header, a body, or the message of an error: these may hold secrets.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Final, TypeAlias

from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.trace import Link, Span, SpanContext, SpanKind, StatusCode, Tracer, TracerProvider
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from flowactions_hookspecs import Node, NodeResult, Walk
from flowactions_plugin.telemetry.meters import is_configured
from flowactions_plugin.telemetry.names import SCOPE

AttributeValue: TypeAlias = str | int | float

TRACEPARENT: Final = "traceparent"
"""The header of W3C Trace Context."""

_PROPAGATOR: Final = TraceContextTextMapPropagator()

_NOTHING: Final = nullcontext(trace.INVALID_SPAN)


def note_result(span: Span, result: NodeResult) -> None:
    """Note in a node's span what the node came to."""
    span.set_attribute("flowactions.node.status", result.status)
    if result.reason is not None:
        span.set_attribute("flowactions.node.reason", result.reason)


def note_delivery(span: Span, delivery_id: str, event_id: str, destination: str) -> None:
    """Note in the span of an enqueue which delivery was made."""
    span.set_attribute("messaging.message.id", event_id)
    span.set_attribute("flowactions.delivery.id", delivery_id)
    span.set_attribute("flowactions.destination", destination)


def traceparent_of(span: Span) -> str | None:
    """Return what a row keeps of a span; ``None``: nothing is traced."""
    if span is trace.INVALID_SPAN:  # the usual case, once for each delivery
        return None
    carrier: dict[str, str] = {}
    _PROPAGATOR.inject(carrier, trace.set_span_in_context(span, Context()))
    return carrier.get(TRACEPARENT)


class Spans:
    """The tracer of one host."""

    def __init__(self) -> None:
        self._tracer: Tracer | None = None

    @property
    def is_open(self) -> bool:
        """Whether spans are made."""
        return self._tracer is not None

    def open(self, provider: TracerProvider) -> None:
        """Make spans with a provider from now on, if somebody has configured it."""
        self._tracer = provider.get_tracer(SCOPE) if is_configured(provider) else None

    def close(self) -> None:
        """Make no more spans."""
        self._tracer = None

    def node(self, walk: Walk, node: Node) -> AbstractContextManager[Span]:
        """Make the block the span of a node that runs."""
        if self._tracer is None:
            return _NOTHING
        attributes = {
            "flowactions.node.type": node.type,
            "flowactions.node.id": node.id,
            "flowactions.flow.id": walk.flow_id,
            "flowactions.run.id": walk.run_id,
            "flowactions.organization.id": walk.organization_id,
        }
        return _current(self._tracer, f"node {node.type}", SpanKind.INTERNAL, attributes)

    def enqueue(self, organization_id: str, event_type: str) -> AbstractContextManager[Span]:
        """Make the block the span of a delivery that is made."""
        if self._tracer is None:
            return _NOTHING
        attributes = {
            "messaging.system": SCOPE,
            "messaging.operation.type": "create",
            "messaging.operation.name": "enqueue",
            "messaging.destination.name": "outbox",
            "flowactions.event.type": event_type,
            "flowactions.organization.id": organization_id,
        }
        return _current(self._tracer, "enqueue outbox", SpanKind.PRODUCER, attributes)

    def attempt(
        self, name: str, traceparent: str | None, attributes: Mapping[str, AttributeValue], start: int, end: int
    ) -> None:
        """Make the span of an attempt that has ended; one with an ``error.type`` has failed.

        Args:
            name: of the span.
            traceparent: of what enqueued it, as its row keeps it.
            attributes: those of the span.
            start: when the attempt began, Unix milliseconds.
            end: when it ended.
        """
        if self._tracer is None:
            return
        context, parent = _read(traceparent), Context()
        if context is not None:
            parent = trace.set_span_in_context(trace.NonRecordingSpan(context), parent)
        span = self._tracer.start_span(
            name,
            context=parent,
            kind=SpanKind.CLIENT,
            attributes=attributes,
            links=() if context is None else (Link(context),),
            start_time=start * 1_000_000,
        )
        if "error.type" in attributes:
            span.set_status(StatusCode.ERROR)
        span.end(end * 1_000_000)


@contextmanager
def _current(tracer: Tracer, name: str, kind: SpanKind, attributes: Mapping[str, str]) -> Iterator[Span]:
    """Make the block a span, with the kind of an error alone: its message may hold what was at work."""
    with tracer.start_as_current_span(
        name, kind=kind, attributes=attributes, record_exception=False, set_status_on_exception=False
    ) as span:
        try:
            yield span
        except BaseException as exc:
            span.set_attribute("error.type", type(exc).__qualname__)
            span.set_status(StatusCode.ERROR)
            raise


def _read(traceparent: str | None) -> SpanContext | None:
    """Return the context of a stored ``traceparent``; ``None`` where there is none, or one that cannot be read."""
    if traceparent is None:
        return None
    found = trace.get_current_span(_PROPAGATOR.extract({TRACEPARENT: traceparent}, Context()))
    context = found.get_span_context()
    return context if context.is_valid else None
