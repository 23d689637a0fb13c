"""Every list that operators and tenants are shown has a bound, however many rows there are."""

from __future__ import annotations

import re
import time
from html import unescape
from pathlib import Path

from sqlalchemy import insert

from flowactions_plugin.insights.port import MOST_ATTEMPTS
from flowactions_plugin.pages.context import ROWS
from flowactions_plugin.pages.routes import PAGES
from flowactions_plugin.storage.schema import (
    attempts,
    chat_connections,
    destinations,
    inbound_events,
    outbox,
    statistics,
    workers,
)
from tests.bulk import failing
from tests.commanding import command
from tests.plugin.bulk.test_purge import fill
from tests.plugin.pages.conftest import Site
from tests.plugin.stored import a_connection, a_worker

MANY = MOST_ATTEMPTS + 60

PAGED = {
    "": ROWS + 20,  # workers, ten destinations that fail, ten nodes
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
    connections = [a_connection(f"o{number:03}", installed_at=now) for number in each]
    fleet = [a_worker(now, id=f"{number:036}") for number in each]
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
        await connection.execute(insert(destinations), [failing(number, now) for number in each])
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
        ("destinations", "list"): (("data", 100), ("pauses", 200)),
    }
    for words, lists in documents.items():
        ended = await command(*words, "--json", cwd=tmp_path, **site.host.settings)
        for name, most in lists:
            assert len(ended.document[name]) == most, (words, ended.err)
