from __future__ import annotations

import time

import httpx
import pytest
from sqlalchemy import update

from flowactions_hookspecs import FlowActions, FlowNodeOrigin, Node
from flowactions_plugin.insights.filters import parse
from flowactions_plugin.insights.port import Insights
from flowactions_plugin.operators.scope import Scope
from flowactions_plugin.settings.model import read_settings
from flowactions_plugin.storage.database import Database
from flowactions_plugin.storage.schema import workers
from flowactions_plugin.watch.fleet import Fleet
from tests.queueing import Queue
from tests.rings import sampled
from tests.support import AlertedHost, a_walk, development
from tests.waiting import until


@pytest.mark.parametrize("delivery", ["continuous", "scheduled"])
async def test_a_host_that_delivers_is_in_the_fleet_and_learns_what_fails(
    database_url: str, delivery: str
) -> None:
    """Statistics and alerts are of what its worker really sent, in both modes, with their node; what is left is written at the end."""
    settings = development(database_url, FLOWACTIONS_DELIVERY=delivery, FLOWACTIONS_CONCURRENCY="7")
    host = AlertedHost(settings, transport=httpx.MockTransport(lambda request: httpx.Response(503)))
    actions = FlowActions.load(host)
    node = Node(id="n", type="webhook", config={"webhookUrl": "http://127.0.0.1:9/", "webhookBody": "{}"})
    database = Database(read_settings(settings).database_url)
    async with database:
        queries = Insights(database)
        async with actions.lifespan():
            for _ in range(20):
                assert (await actions.reach(a_walk(), node)).status == "queued"
            await until(lambda: len(host.finished) == 20)
            (worker,) = await until(queries.workers)
            assert (worker.mode, worker.state) == (delivery, "alive")
            assert worker.slots == (7 if delivery == "continuous" else 50)
        (alert,) = host.alerts
        assert (alert.kind, alert.failures, alert.last_error) == ("failing", 20, "http_5xx")
        assert alert.destination == "http://127.0.0.1:9"
        assert alert.origin == FlowNodeOrigin(
            organization_id="acme", agent_id="agent-1", flow_id="flow-1", node_id="n"
        )
        overview = await queries.overview(Scope("acme"))
        assert sum(each.failed for each in overview.hour) == sum(each.dead for each in overview.hour) == 20
        assert overview.dead.number == 20
        assert overview.verdict.state == "failing"
        assert [each.state for each in overview.workers] == ["stopped"]
        wanted = parse("status:dead error:http_5xx since:5m destination:http://127.0.0.1:9/x")
        assert len((await queries.deliveries(Scope("acme"), wanted, None, 50)).rows) == 20


@sampled("ahead", [-600, 600, 0], 1)
async def test_a_worker_writes_by_how_much_its_clock_is_ahead(database_url: str, ahead: int) -> None:
    """At its start and each time that it is seen; on SQLite there is no other clock to compare with."""
    settings = read_settings({"FLOWACTIONS_DATABASE_URL": database_url})
    async with Database(settings.database_url, clock=lambda: time.time() + ahead) as database:
        fleet = Fleet(database, "continuous", 1)
        fleet.begin()
        for _ in range(2):
            await fleet.beat(0, 0)
            (worker,) = await Insights(database).workers()
            if database.sql.is_server:
                assert worker.clock_ahead_ms is not None
                assert abs(worker.clock_ahead_ms - ahead * 1000) < 60_000
            else:
                assert worker.clock_ahead_ms is None
            await Queue(database).run(update(workers).values(clock_ahead_ms=7))
