"""Every list that operators and tenants are shown has a bound, however many rows there are."""

from __future__ import annotations

import re
import time
from html import unescape
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import insert

from flowactions_plugin.egress.attempt import Outcome
from flowactions_plugin.insights.port import MOST_ATTEMPTS, Insights
from flowactions_plugin.insights.standing import COUNT_LIMIT
from flowactions_plugin.operations.port import Operations
from flowactions_plugin.operators.scope import Scope
from flowactions_plugin.pages.context import ROWS
from flowactions_plugin.pages.routes import PAGES
from flowactions_plugin.queue.claimed import Completion
from flowactions_plugin.queue.rules import Transition
from flowactions_plugin.settings.model import Settings
from flowactions_plugin.storage.schema import (
    attempts,
    chat_connections,
    inbound_events,
    outbox,
    statistics,
    workers,
)
from flowactions_plugin.watch.fleet import Fleet
from flowactions_plugin.watch.monitor import Monitor
from tests.bulk import copy
from tests.commanding import command
from tests.costs import Watched
from tests.pausing import ACME, MAYA
from tests.plugin.bulk.test_purge import fill
from tests.plugin.pages.conftest import Site
from tests.queueing import Queue, claimed

MANY = MOST_ATTEMPTS + 60

PAGED = {
    "": ROWS + 20,  # workers, twice five destinations, five flows and five nodes
    "/deliveries": ROWS,
    "/actions": ROWS,
    "/destinations": 2 * ROWS,  # with those that are paused
    "/connections": ROWS,
    "/inbound": ROWS,
    "/audit": ROWS,
}
"""Page \u2192 how many rows its tables have at the most."""

OF_ONE = {"/find", "/deliveries/{delivery_id:str}", "/actions/{action_id:str}", "/actions/new"}
"""Pages without a list of rows: they lead on, or show one thing."""


LIVE = re.compile(r'<tr data-live="([^"]*)"')


async def crowd(site: Site) -> str:
    """Write more rows than any list holds into every table, and give the id of a delivery with as many attempts."""
    await fill(site.queue, "acme", MANY)
    shown = await site.put("dead")
    now, each = int(time.time() * 1000), range(MANY)
    text: dict[str, Any] = dict.fromkeys(
        ("team_id", "team_name", "bot_user_id", "app_id", "scopes", "installed_by_id"), "x"
    )
    text |= {"installed_by_name": "x", "install_id": "i", "status": "active", "sealed_token": b"x"}
    connections = [{**text, "organization_id": f"o{number:03}", "installed_at": now} for number in each]
    shape = {
        "name": "w",
        "version": "1",
        "host_name": "h",
        "pid": 1,
        "mode": "continuous",
        "slots": 1,
        "in_flight": 0,
    }
    fleet = [{**shape, "id": f"{number:036}", "started_at": now, "last_seen_at": now} for number in each]
    counts = {"organization_id": "acme", "delivered": 1, "failed": 1, "dead": 0, "duration_ms": 5}
    async with site.queue.database.write() as connection:
        made = [
            {"delivery_id": shown, "number": number, "started_at": now, "duration_ms": 1} for number in each
        ]
        await connection.execute(insert(attempts), made)
        await connection.execute(insert(chat_connections), connections)
        await connection.execute(insert(workers), fleet)
        events = [{"provider": "chat", "event_id": f"e{number}", "received_at": now} for number in each]
        await connection.execute(insert(inbound_events), events)
        recent = [{**counts, "bucket": now - now % 300_000, "destination": f"d{number}"} for number in each]
        await connection.execute(insert(statistics), recent)
        failed = {"flow_id": outbox.c.id, "node_id": outbox.c.id, "finished_at": now}
        await connection.execute(outbox.update().values(failed))
    return shown


async def test_every_list_has_a_bound(site: Site, tmp_path: Path) -> None:
    """Of pages, of the JSON routes and of commands; a page that is added has to say its own."""
    paths = {path for handler in PAGES if "GET" in handler.http_methods for path in handler.paths}
    assert {path if path != "/" else "" for path in paths} == PAGED.keys() | OF_ONE
    delivery = await crowd(site)
    for role in ("operator", "changer"):
        site.sign_in(role)
        for path, most in PAGED.items():
            page = await site.get(path)
            assert page.status_code == 200, path
            rows = page.text.count("<tr data-live=")
            assert rows <= most, path
            if role == "operator":
                assert rows == most, path
            if path in {"/connections", "/destinations"}:  # ids of the others' rows are none here
                for link in re.findall(r'rel="next" href="([^"]*)"', page.text):
                    following = await site.browser.get(page.url.join(unescape(link)))
                    assert set(LIVE.findall(following.text)) - set(LIVE.findall(page.text)), link
        shown = (await site.get(f"/deliveries/{delivery}")).text
        assert shown.count('<strong class="certainty">') == MOST_ATTEMPTS
        preview = (await site.get("/actions/new", params={"kind": "retry", "organization": "acme"})).text
        assert preview.count("<tr") <= 25
    answer = (await site.browser.get(f"/v1/webhooks/outbox/{delivery}")).json()
    assert [each["number"] for each in answer["data"]["attemptLog"]] == list(range(60, MANY))
    answer = (await site.browser.get("/v1/webhooks/outbox", params={"limit": "100"})).json()
    assert len(answer["data"]) == 100
    documents = {
        ("outbox", "list"): (("rows", 50),),
        ("destinations", "list"): (("data", 50), ("pauses", 50)),
    }
    for words, lists in documents.items():
        ended = await command(*words, "--json", cwd=tmp_path, **site.host.settings)
        for name, most in lists:
            assert len(ended.document[name]) == most, (words, ended.err)


@pytest.mark.parametrize(
    ("organization", "status"), [("acme", "pending"), ("globex", "pending"), ("acme", "delivered")]
)
async def test_an_overview_costs_no_more_with_more_rows(queue: Queue, organization: str, status: str) -> None:
    """Four times the rows are the same work for the database: due rows beyond a limit, another's, and those that have arrived."""
    queries, scope, work = Insights(queue.database), Scope(organization), []
    row = await queue.put()
    await queue.run(f"UPDATE flowactions_outbox SET status = '{status}'")  # noqa: S608
    for already, more in ((0, 12_000), (12_000, 36_000)):
        await copy(queue.database, row, more, already=already)
        overview = await queries.overview(scope)
        number = f"{COUNT_LIMIT:,}+" if (organization, status) == ("acme", "pending") else "0"
        assert [str(overview.due), str(overview.waiting)] == [number] * 2
        seen = Watched(queue.database)
        work.append(sorted([await seen.work(lambda _: queries.overview(scope)) for _ in range(3)])[1])
    assert work[0] > 5
    assert work[1] <= 1.5 * work[0], work


@pytest.mark.parametrize("scope", [Scope(None), Scope("acme")])
async def test_an_overview_takes_ten_statements_at_the_most(queue: Queue, scope: Scope) -> None:
    """Also when everything is wrong: attempts fail, destinations are limited and paused, and alerts do not arrive."""
    database, place = queue.database, "https://example.com:443"
    row_id = await queue.put(destination=place)
    await Operations(database).pause(ACME, place, MAYA)
    monitor = Monitor(database, "continuous", 10, None)
    failed = Transition("retrying")
    for organization in ("acme", ""):
        row = claimed(organization_id=organization, destination=place)
        monitor.record([Completion(row, Outcome(0, 1, status_code=500), failed) for _ in range(20)])
    await monitor.write()
    await Fleet(database, "continuous", 10).beat(0, 0, {"acme": {place: 1}})
    await queue.run("UPDATE flowactions_outbox SET takeovers = 3, waiting_since = 1, last_error = 'x'")
    insights = Insights(database, Settings(alerts_url=place))
    about = {each.about for each in (await insights.overview(scope)).findings}
    assert {"waiting", "quarantine", "destination", "limited", "paused"} <= about, row_id
    assert ("alerts" in about) == (scope.organization_id is None)
    seen = Watched(database)
    await insights.overview(scope)
    assert len(seen.statements) <= 10, seen.statements
