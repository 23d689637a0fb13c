"""Spans: node, enqueue, attempt, and the queue between them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from opentelemetry.trace import SpanKind, StatusCode
from sqlalchemy import update

from flowactions_hookspecs import FlowActions, Node
from flowactions_plugin.storage.schema import outbox
from flowactions_plugin.telemetry.telemetry import Telemetry
from tests.recorder import Recorder, recorder, status
from tests.support import SmallHost, a_walk, development, services_of
from tests.telemetry import Recorded
from tests.waiting import until


@asynccontextmanager
async def running(
    database_url: str, recorded: Recorded, **settings: str
) -> AsyncIterator[tuple[FlowActions, SmallHost, Recorder]]:
    """Run a host that delivers to a receiver."""
    host = SmallHost(development(database_url, **settings))
    recorded.listen_to(host)
    actions = FlowActions.load(host)
    async with recorder() as receiver, actions.lifespan():
        yield actions, host, receiver


def node(url: str, **config: Any) -> Node:
    return Node(id="n1", type="webhook", config={"webhookUrl": url, "webhookBody": "{}", **config})


@pytest.mark.parametrize("mode", ["scheduled", "continuous"])
async def test_an_attempt_is_in_the_trace_of_its_node(database_url: str, mode: str) -> None:
    """Node, enqueue and attempt are one trace, and the attempt is linked to the enqueue across the queue."""
    recorded = Recorded()
    async with running(database_url, recorded, FLOWACTIONS_DELIVERY=mode) as (actions, _, receiver):
        walk = a_walk()
        result = await actions.reach(walk, node(receiver.url))
        await until(lambda: recorded.spans("POST"))
    (reached,), (enqueued,), (attempt,) = (
        recorded.spans(name) for name in ("node webhook", "enqueue outbox", "POST")
    )
    assert enqueued.parent is not None
    assert enqueued.parent.span_id == reached.context.span_id
    assert attempt.parent is not None
    assert attempt.parent.span_id == enqueued.context.span_id
    assert attempt.parent.is_remote
    assert [link.context.span_id for link in attempt.links] == [enqueued.context.span_id]
    assert {span.context.trace_id for span in (reached, enqueued, attempt)} == {reached.context.trace_id}
    assert (reached.kind, enqueued.kind, attempt.kind) == (
        SpanKind.INTERNAL,
        SpanKind.PRODUCER,
        SpanKind.CLIENT,
    )
    assert dict(reached.attributes or {}) == {
        "flowactions.node.type": "webhook",
        "flowactions.node.id": "n1",
        "flowactions.flow.id": "flow-1",
        "flowactions.run.id": walk.run_id,
        "flowactions.organization.id": "acme",
        "flowactions.node.status": "queued",
    }
    told = dict(attempt.attributes or {})
    assert told["http.request.method"] == "POST"
    assert told["http.response.status_code"] == 200
    assert told["server.address"] == "127.0.0.1"
    assert told["url.scheme"] == "http"
    assert told["flowactions.delivery.id"] == result.delivery_id
    assert told["messaging.message.id"] == (enqueued.attributes or {})["messaging.message.id"]
    assert {"flowactions.phase.connect", "flowactions.phase.wait"} <= set(told)


async def test_each_attempt_has_a_span_that_says_how_it_ended(database_url: str) -> None:
    """An answer by its status, a connection that is refused by its kind; the attempts are numbered."""
    recorded = Recorded()
    async with running(database_url, recorded) as (actions, _, receiver):
        receiver.answer = lambda number: status(500 if number == 1 else 204)
        await actions.reach(a_walk(), node(receiver.url, webhookRetryOnFailure=True))
        await actions.reach(a_walk(), node("http://127.0.0.1:1/"))
        await until(lambda: len(recorded.spans("POST")) >= 2)
    by_type = {(span.attributes or {}).get("error.type"): span for span in recorded.spans("POST")}
    assert set(by_type) == {"500", "network"}
    assert all(span.status.status_code is StatusCode.ERROR for span in by_type.values())
    assert {(span.attributes or {})["http.request.resend_count"] for span in by_type.values()} == {0}


@pytest.mark.parametrize("setting", ["on", "off"])
async def test_the_trace_is_sent_on_by_setting(database_url: str, setting: str) -> None:
    """The receiver gets the `traceparent` of the enqueue, or none; an author's own header stays."""
    recorded = Recorded()
    own = "00-11111111111111111111111111111111-2222222222222222-01"
    async with running(database_url, recorded, FLOWACTIONS_SEND_TRACEPARENT=setting) as (actions, _, receiver):
        await actions.reach(a_walk(), node(receiver.url))
        await until(lambda: receiver.requests)
        headers = [{"key": "Traceparent", "value": own}]
        await actions.reach(a_walk(), node(receiver.url, webhookHeaders=headers))
        await until(lambda: len(receiver.requests) == 2)
    context = recorded.spans("enqueue outbox")[0].context
    sent = [value.decode() for name, value in receiver.requests[0].headers if name == "traceparent"]
    assert sent == (
        [f"00-{context.trace_id:032x}-{context.span_id:016x}-{context.trace_flags:02x}"]
        if setting == "on"
        else []
    )
    assert [value.decode() for name, value in receiver.requests[1].headers if name == "traceparent"] == [own]


async def test_a_refused_webhook_is_an_enqueue_that_failed(database_url: str) -> None:
    """The span names the kind of error, and nothing of its message."""
    recorded = Recorded()
    async with running(database_url, recorded) as (actions, _, __):
        result = await actions.reach(a_walk(), node("http://169.254.169.254/latest?token=secret"))
        assert result.reason == "blocked_url"
    (enqueued,) = recorded.spans("enqueue outbox")
    assert (enqueued.attributes or {})["error.type"] == "EgressRefused"
    assert recorded.value("flowactions.egress.refusals", at="enqueue") == 1
    assert "169.254" not in recorded.text()


async def test_a_trace_that_cannot_be_read_stops_nothing(database_url: str) -> None:
    """Whatever stands in the column, the row is delivered, and the header is sent only when it is a `traceparent`."""
    recorded = Recorded()
    settings = {"FLOWACTIONS_SEND_TRACEPARENT": "on", "FLOWACTIONS_HOST_WORKER": "off"}
    async with running(database_url, recorded, **settings) as (actions, host, receiver):
        await actions.reach(a_walk(), node(receiver.url))
        database = services_of(host)._database
        async with database.write() as connection:
            await connection.execute(update(outbox).values(trace="00-x\r\nx-forged: 1"))
        delivering = services_of(host)._delivery
        task = asyncio.create_task(delivering.deliver())
        await until(lambda: recorded.spans("POST"))
        task.cancel()
        await asyncio.wait({task})
    assert not {"traceparent", "x-forged"} & {name for name, _ in receiver.requests[0].headers}
    (attempt,) = recorded.spans("POST")
    assert attempt.parent is None
    assert attempt.links == ()


@pytest.mark.parametrize("records", [{"meters"}, {"tracers"}, {"meters", "tracers"}, set()])
def test_telemetry_is_open_while_anything_is_recorded(records: set[str]) -> None:
    """By metrics or spans. A span has its attempt's times, in nanoseconds; after the lifespan none is made."""
    recorded = Recorded()
    providers = (getattr(recorded, name) if name in records else None for name in ("meters", "tracers"))
    telemetry = Telemetry(*providers)
    with telemetry:
        assert telemetry.is_open == bool(records)
        telemetry.spans.attempt("POST", None, {}, 1_000, 2_500)
    assert not telemetry.is_open
    telemetry.spans.attempt("POST", None, {}, 1_000, 2_500)
    times = [(span.start_time, span.end_time) for span in recorded.spans()]
    assert times == [(1_000_000_000, 2_500_000_000)] * ("tracers" in records)
