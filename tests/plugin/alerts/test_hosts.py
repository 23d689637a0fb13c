"""Alerts of hosts: signed and sent, seen by operators only, and refused at the start where they cannot be sent."""

from __future__ import annotations

import hmac
import json
from functools import partial
from pathlib import Path

import httpx
import pytest
from standardwebhooks import Webhook

from flowactions_hookspecs import FlowActions, Node, SettingsInvalid
from flowactions_plugin.alerts import watch
from flowactions_plugin.alerts.watch import AlertWatch
from flowactions_plugin.clock import new_id
from flowactions_plugin.operators.scope import Scope
from flowactions_plugin.services import Services
from flowactions_plugin.settings.model import read_settings
from flowactions_plugin.storage.database import REFUSED_SECONDS, Database
from flowactions_plugin.storage.schema import EVERY_ORGANIZATION
from flowactions_plugin.watch.statistics import Counts
from flowactions_plugin.watch.statistics_store import add_counts
from tests.alerting import SECRET, SETTINGS, URL, alerts_in, an_alert, queued
from tests.commanding import command
from tests.outages import Outage, refuse, write
from tests.plugin.pages.conftest import a_site
from tests.queueing import Queue
from tests.support import AlertedHost, SmallHost, a_walk, development, hurry, services_of
from tests.waiting import until

A_TEST = an_alert()
NODE = Node(id="n", type="webhook", config={"webhookUrl": "http://127.0.0.1:9/down", "webhookBody": "{}"})


class Receiver:
    """Answers deliveries with 503, and alerts as a test says."""

    def __init__(self, answers: int = 200) -> None:
        self.answers = answers
        self.alerts: list[httpx.Request] = []
        self.transport = httpx.MockTransport(self._answer)

    def _answer(self, request: httpx.Request) -> httpx.Response:
        if request.url.path != "/alerts":
            return httpx.Response(503)
        self.alerts.append(request)
        return httpx.Response(self.answers)


async def test_a_failing_destination_is_a_signed_alert(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Verified by the library of Standard Webhooks and by our own rule. The host learns of the destination as before, and of no alert."""
    hurry(monkeypatch, "statistics")
    receiver = Receiver()
    settings = development(database_url, FLOWACTIONS_STANDARD_WEBHOOKS="on", **SETTINGS)
    host = AlertedHost(settings, transport=receiver.transport)
    actions = FlowActions.load(host)
    async with actions.lifespan():
        for _ in range(20):
            assert (await actions.reach(a_walk(), NODE)).status == "queued"
        (request,) = await until(lambda: receiver.alerts)
        (row,) = await until(lambda: queued(services_of(host)._database))
        await until(lambda: _is_delivered(services_of(host)._database))
    assert str(request.url) == URL
    headers = dict(request.headers)
    Webhook(SECRET).verify(request.content, headers)
    assert json.loads(request.content)["data"]["failures"] == 20
    signed = f"{headers['x-service-webhook-timestamp']}.".encode() + request.content
    assert (
        headers["x-service-webhook-signature"] == f"v1,{hmac.digest(SECRET.encode(), signed, 'sha256').hex()}"
    )
    assert headers["x-service-webhook-id"] == row.event_id
    assert [each.kind for each in host.alerts] == ["failing"]
    assert {each.organization_id for each in host.finished} == {"acme"}
    assert len(host.finished) == 20


async def _is_delivered(database: Database) -> bool:
    return [row.status for row in await queued(database)] == ["delivered"]


async def test_alerts_that_do_not_arrive_are_said_and_make_no_alerts(
    database_url: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The log and the overview say it; the host's hook is not called for it, and a tenant is not shown it."""
    hurry(monkeypatch, "statistics", "alerts")
    receiver = Receiver(answers=500)
    host = AlertedHost(
        development(database_url, FLOWACTIONS_DELIVERY="continuous", **SETTINGS), transport=receiver.transport
    )
    actions = FlowActions.load(host)
    async with actions.lifespan():
        services = services_of(host)
        alerts = services._alerts
        assert alerts is not None
        for _ in range(20):
            delivery = await alerts.delivery(A_TEST, new_id(0))
            async with services._database.write() as connection:
                await services._outbox.write(delivery, connection)
        await until(lambda: len(receiver.alerts) >= 20)
        await until(lambda: "alerts.destination" in {getattr(each, "event", "") for each in caplog.records})
        overview = await services._insights.overview(Scope())
        (said,) = [each.words for each in overview.findings if each.about == "alerts"]
        assert said.startswith("alerts do not arrive at http://127.0.0.1:9: ")
        assert "it answered 500" in said
        theirs = (await services._insights.overview(Scope("acme"))).findings
        assert [each for each in theirs if each.about == "alerts"] == []
        assert len(await queued(services._database)) == 20
    assert host.alerts == []


async def test_people_of_an_organization_see_no_alerts(database_url: str) -> None:
    """Neither in a list nor by its id, and they can change none; what they change in bulk leaves alerts alone."""
    async with a_site(development(database_url, FLOWACTIONS_HOST_WORKER="off", **SETTINGS)) as site:
        database = site.queue.database
        row_id = await alerts_in(database).add(A_TEST)
        listed = await site.browser.get("/v1/webhooks/outbox")
        assert (listed.status_code, listed.json()["data"]) == (200, [])
        for path in ("", "/cancel", "/retry"):
            method = site.browser.post if path else site.browser.get
            assert (await method(f"/v1/webhooks/outbox/{row_id}{path}")).status_code == 404
        for page in ("/", "/deliveries", "/destinations", f"/deliveries/{row_id}"):
            text = (await site.get(page)).text
            assert "flowactions.destination.recovered" not in text
            assert "127.0.0.1:9" not in text
        assert [row.status for row in await queued(database)] == ["pending"]


async def test_operators_see_alerts_as_such(database_url: str) -> None:
    """On all pages that list them, and by a finding; not as those of all organizations. No button pauses them for all by mistake."""
    async with a_site(development(database_url, FLOWACTIONS_HOST_WORKER="off", **SETTINGS)) as site:
        site.sign_in("operator")
        database = site.queue.database
        row_id = await alerts_in(database).add(A_TEST)
        counts = Counts()
        counts.failed = counts.failures_in_row = 2
        counts.last_error = "network"
        await add_counts(database, {(EVERY_ORGANIZATION, "http://127.0.0.1:9"): counts}, 0.0)
        for page in ("/", "/deliveries", "/destinations", f"/deliveries/{row_id}"):
            answer = await site.get(page)
            assert (answer.status_code, "<em>alerts</em>" in answer.text) == (200, page != "/"), page
            assert "<em>all organizations</em>" not in answer.text
            assert "t0ken" not in answer.text
            assert ("alerts do not arrive at http://127.0.0.1:9: 2 failures" in answer.text) == (page == "/")
            assert 'name="destination" value="http://127.0.0.1:9"' not in answer.text


async def test_an_alert_is_never_sent_unsigned(database_url: str) -> None:
    """A process without the secret leaves it to wait; one that has it sends it."""
    receiver = Receiver()
    for with_secret in (False, True):
        host = SmallHost(
            development(database_url, **(SETTINGS if with_secret else {})), transport=receiver.transport
        )
        actions = FlowActions.load(host)
        async with actions.lifespan():
            database = services_of(host)._database
            if not with_secret:
                await alerts_in(database).add(A_TEST)
                await until(partial(_waits, database))
                assert receiver.alerts == []
                await Queue(database).run("UPDATE flowactions_outbox SET next_attempt_at = 0")
            else:
                (request,) = await until(lambda: receiver.alerts)
    assert "x-service-webhook-signature" in request.headers


async def _waits(database: Database) -> bool:
    return [row.waiting_since is not None for row in await queued(database)] == [True]


@pytest.mark.parametrize(
    "outage", ["disk full", pytest.param("read-only server", marks=pytest.mark.ci)], indirect=True
)
async def test_a_database_that_takes_no_writes_is_said_at_once(
    outage: Outage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sent without the outbox until it arrives, once; queued when it is over, with the same start."""
    now = [100.0]
    for module in ("database", "outages"):
        monkeypatch.setattr(f"flowactions_plugin.storage.{module}.timer", lambda: now[0])
    receiver = Receiver(answers=500)
    engine = outage.engine()
    settings = development(outage.url, FLOWACTIONS_HOST_WORKER="off", **SETTINGS)
    host = SmallHost(settings, database=engine, transport=receiver.transport)
    actions = FlowActions.load(host)
    async with actions.lifespan():
        services = services_of(host)
        assert services._alerts is not None
        looking = AlertWatch(services._alerts, services._database, services._delivery.send_now)

        async def look() -> None:
            await write(services._database)
            looking._try_at = 0
            await looking.look()

        async with outage.lasting():
            await look()
            receiver.answers = 200
            await look()
            await look()
        assert len(receiver.alerts) == 2

        async def is_over() -> bool:
            now[0] += REFUSED_SECONDS
            await look()
            return bool(await queued(services._database))

        await until(is_over)
        (row,) = await queued(services._database)
    first, second = (json.loads(each.content) for each in receiver.alerts)
    ended = json.loads(row.body)
    assert {each["version"] for each in (first, second, ended)} == {1}
    assert first["data"]["since"] == second["data"]["since"] == ended["data"]["since"]
    assert ended["data"]["reason"] == first["data"]["reason"]
    assert len({each.headers["x-service-webhook-id"] for each in receiver.alerts}) == 1
    if engine is not None:
        await engine.dispose()


@pytest.mark.ci
async def test_an_alert_that_does_not_arrive_is_sent_again_a_minute_later(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And not at each look."""
    monkeypatch.setattr(watch, "AGAIN_MS", 1 << 50)
    receiver = Receiver(answers=500)
    host = SmallHost(
        development(database_url, FLOWACTIONS_HOST_WORKER="off", **SETTINGS), transport=receiver.transport
    )
    async with FlowActions.load(host).lifespan():
        services = services_of(host)
        assert services._alerts is not None
        refuse(services._database, "it is read-only")
        looking = AlertWatch(services._alerts, services._database, services._delivery.send_now)
        await looking.look()
        await looking.look()
        assert len(receiver.alerts) == 1


WRONG = {
    "no secret": (
        {"FLOWACTIONS_ALERTS_SECRET": ""},
        "FLOWACTIONS_ALERTS_URL must have a FLOWACTIONS_ALERTS_SECRET",
    ),
    "no whsec_": (
        {"FLOWACTIONS_ALERTS_SECRET": "MDEyMzQ1Njc4OWFiY2RlZg=="},
        "FLOWACTIONS_ALERTS_SECRET must be one",
    ),
    "short": ({"FLOWACTIONS_ALERTS_SECRET": "whsec_aHVudGVyMg=="}, "FLOWACTIONS_ALERTS_SECRET must be one"),
    "no URL": ({"FLOWACTIONS_ALERTS_URL": "hunter2"}, "FLOWACTIONS_ALERTS_URL must be a URL"),
    "credentials": (
        {"FLOWACTIONS_ALERTS_URL": "https://a:hunter2@h.example/"},
        "without a user name or password",
    ),
    "fragment": ({"FLOWACTIONS_ALERTS_URL": "https://h.example/?hunter2#x"}, "FLOWACTIONS_ALERTS_URL must be"),
    "host": ({"FLOWACTIONS_ALERTS_URL": "https://-hunter2-/"}, "FLOWACTIONS_ALERTS_URL: The URL's host"),
    "private": ({"FLOWACTIONS_ALERTS_URL": "https://10.0.0.1/?hunter2"}, "10.0.0.1 are not allowed (private)"),
    "metadata": (
        {"FLOWACTIONS_ALERTS_URL": "http://169.254.169.254/hunter2", "FLOWACTIONS_ENVIRONMENT": "development"},
        "not allowed (link-local and metadata)",
    ),
}


@pytest.mark.parametrize("kind", WRONG)
def test_settings_that_cannot_send_alerts_are_refused_at_the_start(kind: str) -> None:
    """The error names the setting and what to do, and holds no secret."""
    changes, words = WRONG[kind]
    settings = {**SETTINGS, "FLOWACTIONS_ALERTS_URL": "https://h.example/", **changes}
    with pytest.raises(SettingsInvalid) as found:
        Services(SmallHost(settings), FlowActions.load(SmallHost({})))
    assert words in str(found.value)
    assert "hunter2" not in str(found.value)
    assert "hunter2" not in repr(found.value.__cause__)


@pytest.mark.ci
async def test_commands_say_how_alerts_stand(tmp_path: Path, database_url: str) -> None:
    """The row is shown as an alert, the destination without its path and query; without a URL, doctor says so."""
    settings = {
        "FLOWACTIONS_DATABASE_URL": database_url,
        "FLOWACTIONS_ENVIRONMENT": "development",
        **SETTINGS,
    }
    await command("migrate", cwd=tmp_path, **settings)
    async with Database(read_settings(settings).database_url) as database:
        row_id = await alerts_in(database).add(A_TEST)
    shown = await command("outbox", "show", str(row_id), cwd=tmp_path, **settings)
    assert "flowactions.destination.recovered" in shown.out
    assert "t0ken" not in shown.out
    listed = await command("outbox", "list", cwd=tmp_path, **settings)
    assert "(alerts)" in listed.out
    checks = (await command("doctor", "--json", cwd=tmp_path, **settings)).document["checks"]
    (check,) = [each for each in checks if each["name"] == "alerts"]
    assert (check["result"], "would be sent directly; port 9" in check["message"]) == ("ok", True)
    assert "t0ken" not in str(checks)
    without = {**settings, "FLOWACTIONS_ALERTS_URL": ""}
    checks = (await command("doctor", "--json", cwd=tmp_path, **without)).document["checks"]
    assert [each["result"] for each in checks if each["name"] == "alerts"] == ["skipped"]
