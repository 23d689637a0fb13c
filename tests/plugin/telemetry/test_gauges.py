"""Gauges: how deliveries stand in the database, and how busy this process is."""

from __future__ import annotations

from sqlalchemy import insert, update

from flowactions_hookspecs import FlowActions, Node
from flowactions_plugin.insights.gauges import STALE_SECONDS, Gauges
from flowactions_plugin.insights.port import Insights
from flowactions_plugin.queue.delivery_telemetry import Load
from flowactions_plugin.queue.standing import Standing
from flowactions_plugin.queue.turns import Tally
from flowactions_plugin.storage.schema import outbox, pauses, workers
from flowactions_plugin.telemetry import names
from flowactions_plugin.telemetry.meters import _PROVIDERS, Meters, Reading
from tests.plugin.stored import a_worker
from tests.recorder import recorder
from tests.support import SmallHost, a_walk, development, services_of
from tests.telemetry import Recorded
from tests.waiting import until

URL = "http://127.0.0.1:9/"


def test_a_host_that_starts_again_is_read_once() -> None:
    """With the same provider, which keeps its first callback for ever: one value of each gauge, and no sum of two."""
    recorded, meters = Recorded(), Meters()
    for _ in range(2):
        meters.open(recorded.meters)
        meters.read_gauges(lambda: [Reading(names.DUE, 3)])
        assert len(meters._instruments or ()) > 0
    read = _PROVIDERS._recorded[recorded.meters].hosts
    assert [host() for host in read] == [meters]
    assert [each.value for each in recorded.points() if each.name == names.DUE.name] == [3]


async def test_gauges_show_what_is_due_and_for_how_long(database_url: str) -> None:
    """Rows of paused destinations apart; the verdict is one of its values, and an old reading is not reported."""
    host = SmallHost(development(database_url, FLOWACTIONS_HOST_WORKER="off"))
    actions = FlowActions.load(host)
    clock = [1000.0]
    async with actions.lifespan():
        services = services_of(host)
        database = services._database
        gauges = Gauges(
            Meters(),
            Insights(database, services._settings, uptime_ms=lambda: 0),
            lambda: Load(in_flight=3),
            lambda: clock[0],
        )

        async def shown() -> dict[str, float]:
            await gauges.read()
            return {
                reading.labels.get("verdict", reading.metric.name.rpartition(".")[2]): reading.value
                for reading in gauges.readings()
            }

        nothing = ("due", "oldest_due_age", "limited", "slow", "clock_offset", "blocked_age", *names.VERDICTS)
        assert await shown() == {**dict.fromkeys(nothing, 0), "in_flight": 3, "idle": 1}

        for url in (URL, URL, "http://127.0.0.1:10/"):
            await actions.reach(a_walk(), Node(id="n", type="webhook", config={"webhookUrl": url}))
        async with database.write() as connection:
            await connection.execute(update(outbox).values(next_attempt_at=outbox.c.next_attempt_at - 600_000))
        seen = await shown()
        assert seen["due"] == 3
        assert 600 <= seen["oldest_due_age"] < 660
        assert (seen["stalled"], seen["idle"]) == (1, 0)

        async with database.write() as connection:
            paused = {"paused_at": 1, "paused_by": "ada", "reason": ""}
            values = {"organization_id": "acme", "destination": "http://127.0.0.1:9", **paused}
            await connection.execute(insert(pauses).values(values))
        assert (await shown())["due"] == 1

        assert (await shown())["clock_offset"] == 0
        seen_at = int(await database.time() * 1000)
        async with database.write() as connection:
            for ahead in (10_000, -70_500, None):
                await connection.execute(insert(workers).values(a_worker(seen_at, clock_ahead_ms=ahead)))
            await connection.execute(update(outbox).values(waiting_since=seen_at - 400_000, last_error="why"))
        seen = await shown()
        assert seen["clock_offset"] == 70.5
        assert 400 <= seen["blocked_age"] < 460

        clock[0] += STALE_SECONDS + 1
        assert [(reading.metric.name, reading.value) for reading in gauges.readings()] == [
            ("flowactions.worker.in_flight", 3),
            ("flowactions.worker.slow", 0),
            ("flowactions.worker.limited", 0),
        ]


async def test_gauges_count_what_this_process_limits(database_url: str) -> None:
    """Destinations, and slots of slow receivers; also while the database is away."""
    status = Insights(services_of(SmallHost(development(database_url)))._database)

    class Limits(Standing):
        def limited(self) -> dict[str, dict[str, int]]:
            return {"acme": {"http://a:80": 1, "http://b:80": 1}}

    slow = Tally()
    slow.in_flight = 75
    readings = Gauges(Meters(), status, lambda: Load(limits=Limits(), slow=slow)).readings()
    values = {each.metric.name: each.value for each in readings}
    assert (values[names.LIMITED.name], values[names.SLOW.name]) == (2, 75)


async def test_every_open_process_reports_them(database_url: str) -> None:
    """Also one that delivers nothing: otherwise nobody says that no worker is alive."""
    recorded = Recorded()
    host = SmallHost(development(database_url, FLOWACTIONS_HOST_WORKER="off"))
    recorded.listen_to(host)
    async with FlowActions.load(host).lifespan():
        await until(lambda: recorded.value("flowactions.delivery.verdict", verdict="idle") == 1)
        assert recorded.value("flowactions.worker.in_flight") == 0
    assert recorded.value("flowactions.delivery.verdict", verdict="idle") == 0


async def test_a_worker_reports_what_it_has_in_flight(sqlite_url: str) -> None:
    """While a receiver has not answered yet."""
    recorded = Recorded()
    host = SmallHost(development(sqlite_url))
    recorded.listen_to(host)
    actions = FlowActions.load(host)
    seen: list[float] = []

    async with recorder() as receiver, actions.lifespan():

        def answer(number: int) -> bytes:
            seen.append(recorded.value("flowactions.worker.in_flight"))
            return b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n"

        receiver.answer = answer
        await until(recorded.points)
        await actions.reach(a_walk(), Node(id="n", type="webhook", config={"webhookUrl": receiver.url}))
        await until(lambda: host.finished)
        await until(lambda: recorded.value("flowactions.worker.in_flight") == 0)
    assert seen == [1]
