"""A database that takes no writes is said by all that tell how things stand, though nothing is due."""

from __future__ import annotations

import httpx
import pytest

from flowactions_hookspecs import FlowActions, LogicAction, NotQueued
from flowactions_plugin.errors import StorageUnavailable
from flowactions_plugin.insights.gauges import Gauges
from flowactions_plugin.queue.delivery_telemetry import Load
from flowactions_plugin.settings.model import read_settings
from flowactions_plugin.storage.database import REFUSED_SECONDS, Database
from flowactions_plugin.storage.outages import reason_of
from flowactions_plugin.telemetry import names
from flowactions_plugin.telemetry.meters import Meters
from tests.host_transactions import REF, before, dispatch_in, enqueuer_of, webhook
from tests.outages import Outage, write
from tests.owning import own_webhook
from tests.support import SmallHost, a_walk, development, services_of, transport_of
from tests.telemetry import Recorded
from tests.waiting import until

READY = "/integrations/health/ready"
WORDS = {
    "disk full": "its disk is full",
    "read-only file": "it is read-only",
    "read-only server": "it is read-only",
}


@pytest.mark.parametrize("outage", WORDS, indirect=True)
@pytest.mark.parametrize("needs_writes", ["off", "on"])
async def test_page_readiness_and_metric_say_it(
    outage: Outage, needs_writes: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a write that was refused, with nothing due; readiness fails only where a setting says so; and then it is over."""
    now = [100.0]
    for module in ("database", "outages"):
        monkeypatch.setattr(f"flowactions_plugin.storage.{module}.timer", lambda: now[0])
    engine = outage.engine()
    host = SmallHost(
        development(outage.url, FLOWACTIONS_HOST_WORKER="off", FLOWACTIONS_READY_NEEDS_WRITES=needs_writes),
        database=engine,
    )
    host.action = LogicAction(url="http://127.0.0.1:9/")
    recorded = Recorded()
    recorded.listen_to(host)
    actions = FlowActions.load(host)
    client = httpx.AsyncClient(transport=transport_of(actions), base_url="http://host")
    async with actions.lifespan(), client:
        services = services_of(host)
        gauges = Gauges(Meters(), services._insights, Load)

        async def said() -> tuple[str, str, set[str | None]]:
            await write(services._database)
            services._health._until = 0.0  # as if time had passed
            ready = await client.get(READY)
            works = {"ready"} if needs_writes == "on" else {"ready", "unwritable"}
            assert ready.status_code == (200 if ready.text in works else 503)
            await gauges.read()
            states = {each.labels.get("verdict") for each in gauges.readings() if each.value == 1}
            pages = [(await client.get(f"/integrations/webhooks{path}")).text for path in ("/", "/deliveries")]
            assert len({"takes no writes: " in page for page in pages}) == 1
            return ready.text, (services._insights.refusal or ""), states

        async def is_over() -> bool:
            now[0] += REFUSED_SECONDS
            return await said() == ("ready", "", {"idle"})

        is_full = outage.kind == "disk full"  # each try leaves free pages, which the next one would use
        assert is_full or await said() == ("ready", "", {"idle"})
        async with outage.lasting():
            assert await said() == ("unwritable", WORDS[outage.kind], {"unwritable"})
            if not is_full:
                await refused(actions)
        # The server has ended the pool's sessions, which it finds out by using them.
        await until(is_over)
        assert recorded.value("flowactions.outbox.refused", reason="read_only") == (0 if is_full else 5)
    if engine is not None:
        await engine.dispose()


async def refused(actions: FlowActions) -> None:
    """Have each call of the contract that queues or records something refused."""
    reached = await actions.reach(a_walk(), webhook())
    recorded_node = await actions.reach(before(a_walk(), "s"), webhook())
    assert {reached.reason, recorded_node.reason} == {"storage_unavailable"}
    with pytest.raises(NotQueued):
        await actions.enqueue(own_webhook())
    assert (await dispatch_in(actions, None)).reason == "storage_unavailable"
    with pytest.raises(StorageUnavailable):
        await enqueuer_of(actions).call(REF, "k")


@pytest.mark.parametrize("outage", ["read-only file"], indirect=True)
async def test_a_refusal_is_known_for_a_while(outage: Outage, monkeypatch: pytest.MonkeyPatch) -> None:
    """Until half a minute after the last write that was refused: others may still be taken."""
    engine = outage.engine()
    now = 100.0
    for module in ("database", "outages"):
        monkeypatch.setattr(f"flowactions_plugin.storage.{module}.timer", lambda: now)
    url = read_settings({"FLOWACTIONS_DATABASE_URL": outage.url}).database_url
    async with Database(url, engine) as database:
        assert database.refused is None
        async with outage.lasting():
            await write(database)
            assert database.refused == (WORDS[outage.kind], 100.0)
        now += REFUSED_SECONDS - 0.1
        assert database.refused is not None
        now += 0.2
        await until(lambda: written(database))
        assert database.refused is None
    assert engine is not None
    await engine.dispose()


async def written(database: Database) -> bool:
    """Write something; give whether the database took it."""
    await write(database)
    return database.refused is None


@pytest.mark.parametrize("outage", ["locked"], indirect=True)
async def test_a_lock_is_no_refusal(outage: Outage, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who waits for another writer says nothing about the database."""
    monkeypatch.setattr("flowactions_plugin.storage.sqlite.WAIT_SECONDS", 0.1)
    url = read_settings({"FLOWACTIONS_DATABASE_URL": outage.url}).database_url
    async with Database(url) as database, outage.lasting():
        await write(database)
        assert database.refused is None


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        ("25006", "read_only"),
        ("SQLITE_READONLY_DIRECTORY", "read_only"),
        ("53100", "full"),
        ("SQLITE_FULL", "full"),
        ("40001", "conflict"),
        ("40P01", "conflict"),
        ("08006", "unavailable"),
        (None, "unavailable"),
    ],
)
def test_a_refusal_has_one_of_few_reasons(code: str | None, reason: str) -> None:
    """Each is a value of the metric's label."""
    assert reason_of(StorageUnavailable("it", code)) == reason
    assert reason in names.REFUSED.labels["reason"]
