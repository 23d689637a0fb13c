"""Metrics of a host, as its exporter gets them."""

from __future__ import annotations

import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from sqlalchemy import update

from flowactions_hookspecs import FlowActions, Header, HostOrigin, Node, OutboundWebhook
from flowactions_plugin.egress.attempt import Progress
from flowactions_plugin.storage.schema import outbox
from flowactions_plugin.telemetry import names
from flowactions_plugin.telemetry.meters import Meters, Reading
from tests.recorder import recorder, status
from tests.support import SmallHost, a_walk, development, services_of
from tests.telemetry import Recorded
from tests.waiting import SAFETY_SECONDS, until


def webhook(url: str, retries: bool = False) -> Node:
    return Node(
        id="n",
        type="webhook",
        config={"webhookUrl": url, "webhookBody": "{}", "webhookRetryOnFailure": retries},
    )


@pytest.mark.parametrize("mode", ["scheduled", "continuous"])
async def test_what_becomes_of_deliveries_is_counted(database_url: str, mode: str) -> None:
    """What is enqueued, by origin; each attempt and each end, by outcome; phases and durations of each attempt."""
    recorded = Recorded()
    host = SmallHost(development(database_url, FLOWACTIONS_DELIVERY=mode))
    recorded.listen_to(host)
    actions = FlowActions.load(host)
    async with recorder() as receiver, actions.lifespan():
        receiver.answer = lambda number: status(200 if number == 1 else 503)
        await actions.reach(a_walk(), webhook(receiver.url))
        await until(lambda: len(host.finished) == 1)
        await actions.reach(a_walk(), webhook(receiver.url))
        await actions.reach(a_walk(), webhook("http://127.0.0.1:1/"))
        await actions.reach(a_walk(), webhook("http://169.254.169.254/"))
        own = OutboundWebhook(
            organization_id="acme",
            origin=HostOrigin(organization_id="acme", name="x", id="1"),
            event_type="order.placed",
            entity="1",
            url=receiver.url,
            headers=(Header(key="a", value="b"),),
            max_attempts=2,
        )
        await actions.enqueue(own)
        await until(lambda: len(host.finished) == 3)
        await until(lambda: recorded.value("flowactions.delivery.attempts", outcome="http_5xx") == 2)
    value = recorded.value
    assert value("flowactions.outbox.enqueued", origin="flow_node") == 3
    assert value("flowactions.outbox.enqueued", origin="host") == 1
    assert value("flowactions.delivery.attempts", outcome="delivered") == 1
    assert value("flowactions.delivery.attempts", outcome="network") == 1
    assert value("flowactions.delivery.ended", status="delivered") == 1
    assert value("flowactions.delivery.ended", status="dead") == 2
    assert value("flowactions.egress.refusals", at="enqueue") == 1
    assert value("flowactions.delivery.attempt.duration", outcome="delivered") == 1
    assert value("flowactions.delivery.latency") == 1
    assert value("flowactions.delivery.phase.duration", phase="connect") >= 2
    assert value("flowactions.delivery.phase.duration", phase="wait") == 3
    bounded(recorded)


def bounded(recorded: Recorded) -> None:
    """Every name and every value of every label is one of the registry."""
    known = {metric.name: metric for metric in names.METRICS}
    for point in recorded.points():
        metric = known[point.name]
        assert set(point.labels) == set(metric.labels)
        assert all(value in metric.labels[label] for label, value in point.labels.items())


async def test_a_webhook_that_may_not_be_queued_is_counted_by_its_reason(database_url: str) -> None:
    """A forbidden address, and a body above the limit; neither counts as enqueued."""
    recorded = Recorded()
    host = SmallHost(
        development(database_url, FLOWACTIONS_HOST_WORKER="off", FLOWACTIONS_MAX_BODY_BYTES="1024")
    )
    recorded.listen_to(host)
    large = Node(
        id="n", type="webhook", config={"webhookUrl": "http://127.0.0.1:9/", "webhookBody": f'"{"x" * 1024}"'}
    )
    async with (actions := FlowActions.load(host)).lifespan():
        await actions.reach(a_walk(), webhook("http://169.254.169.254/"))
        await actions.reach(a_walk(), large)
        await actions.reach(a_walk(), large)
        assert recorded.value("flowactions.outbox.refused", reason="blocked_url") == 1
        assert recorded.value("flowactions.outbox.refused", reason="too_large") == 2
        assert recorded.value("flowactions.outbox.enqueued", origin="flow_node") == 0


async def test_a_refusal_at_an_attempt_is_counted(database_url: str) -> None:
    """An address that was allowed when the webhook was enqueued, and is not any more."""
    recorded = Recorded()
    host = SmallHost(development(database_url, FLOWACTIONS_HOST_WORKER="off"))
    async with (actions := FlowActions.load(host)).lifespan():
        await actions.reach(a_walk(), webhook("http://127.0.0.1:9/"))
    settings = development(database_url) | {"FLOWACTIONS_ENVIRONMENT": "production"}
    later = SmallHost(settings)
    recorded.listen_to(later)
    async with FlowActions.load(later).lifespan():
        await until(lambda: later.finished)
        await until(lambda: recorded.value("flowactions.egress.refusals", at="attempt"))
    assert recorded.value("flowactions.delivery.attempts", outcome="refused") == 1


async def test_expired_leases_are_counted(database_url: str) -> None:
    """Those of a delivery, when its next attempt has ended."""
    recorded = Recorded()
    host = SmallHost(development(database_url, FLOWACTIONS_HOST_WORKER="off"))
    async with recorder() as receiver:
        async with (actions := FlowActions.load(host)).lifespan():
            await actions.reach(a_walk(), webhook(receiver.url))
            async with services_of(host)._database.write() as connection:
                await connection.execute(
                    update(outbox).values(claimed_by="x" * 32, claimed_until=1, takeovers=1)
                )
        later = SmallHost(development(database_url))
        recorded.listen_to(later)
        async with FlowActions.load(later).lifespan():
            await until(lambda: recorded.value("flowactions.delivery.reclaims"))
    assert recorded.value("flowactions.delivery.reclaims") == 2


async def test_a_rolled_back_enqueue_is_not_counted(sqlite_url: str, tmp_path: Path) -> None:
    """What the database did not take is in no metric."""
    recorded = Recorded()
    host = SmallHost(development(sqlite_url, FLOWACTIONS_HOST_WORKER="off"))
    recorded.listen_to(host)
    async with (actions := FlowActions.load(host)).lifespan():
        async with services_of(host)._database.write() as connection:
            await connection.exec_driver_sql("DROP TABLE flowactions_outbox")
        assert (await actions.reach(a_walk(), webhook("http://127.0.0.1:9/"))).status == "failed"
        assert recorded.value("flowactions.outbox.enqueued", origin="flow_node") == 0


async def test_nothing_is_measured_while_nobody_listens(sqlite_url: str) -> None:
    """Without a configured SDK the instruments are never made, attempts are not timed, and rows have no trace."""
    host = SmallHost(development(sqlite_url))
    actions = FlowActions.load(host)
    async with recorder() as receiver, actions.lifespan():
        services = services_of(host)
        assert not services._telemetry.is_open
        await actions.reach(a_walk(), webhook(receiver.url))
        await until(lambda: host.finished)
        async with services._database.read() as connection:
            assert (await connection.execute(outbox.select())).one().trace is None


def test_hosts_of_one_process_share_a_provider() -> None:
    """Each host's gauges are read, also those of one that was closed and opened again; a closed one's are not."""
    reader = InMemoryMetricReader()
    provider = MeterProvider([reader], shutdown_on_exit=False)
    first, second = Meters(), Meters()
    for number, meters in enumerate((first, second, first)):
        meters.open(provider)
        reading = Reading(names.VERDICT, number, {"verdict": names.VERDICTS[number]})
        meters.read_gauges(lambda reading=reading: [reading])  # type: ignore[misc]
    assert sorted(point[0] for point in gauges(reader)) == ["idle", "stalled"]
    second.close()
    assert [point[0] for point in gauges(reader)] == ["stalled"]


@pytest.mark.ci
def test_hosts_join_while_an_exporter_reads(caplog: pytest.LogCaptureFixture) -> None:
    """An exporter's thread gets what is known of the gauges, however many hosts of other threads join meanwhile."""
    reader = InMemoryMetricReader()
    provider = MeterProvider([reader], shutdown_on_exit=False)
    joined = [Meters() for _ in range(3_000)]

    def join() -> None:
        for each in joined:
            each.open(provider)

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        joining = threading.Thread(target=join)
        joining.start()
        while joining.is_alive():
            reader.get_metrics_data()
        joining.join()
    finally:
        sys.setswitchinterval(interval)
    assert "Callback failed" not in caplog.text


def test_an_exporter_reads_while_a_host_makes_the_instruments(monkeypatch: pytest.MonkeyPatch) -> None:
    """It holds the SDK's lock and waits for none of ours, under which a host waits for the SDK's."""
    reader = InMemoryMetricReader()
    provider = MeterProvider([reader], shutdown_on_exit=False)
    meter = provider.get_meter("it")
    make = meter.create_observable_gauge
    read = 0

    def made(*args: Any, **told: Any) -> None:
        nonlocal read
        make(*args, **told)
        reading = threading.Thread(target=reader.get_metrics_data)
        reading.start()
        reading.join(SAFETY_SECONDS)
        assert not reading.is_alive()
        read += 1

    monkeypatch.setattr(provider, "get_meter", lambda _: meter)
    monkeypatch.setattr(meter, "create_observable_gauge", made)
    Meters().open(provider)
    assert read == sum(each.kind == "gauge" for each in names.METRICS)


def gauges(reader: InMemoryMetricReader) -> list[tuple[str, float]]:
    data = reader.get_metrics_data()
    assert data is not None
    return [
        (str(point.attributes["verdict"]), point.value)  # type: ignore[index, union-attr]
        for resource in data.resource_metrics
        for scope in resource.scope_metrics
        for metric in scope.metrics
        if metric.name == names.VERDICT.name
        for point in metric.data.data_points
    ]


def test_phases_add_up_to_the_attempt() -> None:
    """Each phase lasts until the next is reported, and those that come again are added."""
    now = [0.0]
    progress = Progress(lambda: now[0])

    def after(seconds: float) -> None:
        now[0] += seconds

    after(1)  # before the first report: part of no phase
    for phase, seconds in (("connecting", 1), ("resolving the name", 2), ("connecting", 4)):
        progress.enter(phase)
        after(seconds)
    progress.enter("making the TLS handshake")
    after(8)
    progress.enter("sending the request")
    after(16)
    progress.enter("waiting for the answer")
    after(32)
    assert progress.phases() == {"connect": 5, "resolve": 2, "tls": 8, "send": 16, "wait": 32}
