"""What workers limit, on pages and in commands: to those whom it concerns, since when, and nothing of others."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from sqlalchemy import insert

from flowactions_plugin.clock import new_id
from flowactions_plugin.insights.port import Insights
from flowactions_plugin.operators.scope import Scope
from flowactions_plugin.storage.schema import destinations, pauses
from flowactions_plugin.watch.fleet import Fleet
from tests.commanding import command
from tests.plugin.pages.conftest import Site
from tests.queueing import Queue

HUNG = "http://127.0.0.1:9"
SINCE, EARLIER = 1_700_000_000_000, 1_600_000_000_000


async def limit(queue: Queue, since: int, organization_id: str = "acme") -> Fleet:
    fleet = Fleet(queue.database, "continuous", 10)
    fleet.begin()
    await fleet.beat(0, 0, {organization_id: {HUNG: since}})
    return fleet


async def fail(queue: Queue, organization_id: str) -> None:
    """Have a delivery of an organization fail at the destination, so that it is listed."""
    values = {"organization_id": organization_id, "destination": HUNG, "failures_in_row": 1}
    await queue.run(insert(destinations).values(**values, updated_at=int(time.time() * 1000)))


async def test_pages_name_what_is_limited(site: Site) -> None:
    """The destination, with the time, on both pages and at its delivery, to the organization whose attempts time out."""
    await limit(site.queue, SINCE)
    await fail(site.queue, "acme")
    await fail(site.queue, "globex")
    row_id = await site.put(organization_id="acme", destination=HUNG)
    others = await site.put(organization_id="globex", destination=HUNG)
    for role in ("reader", "operator reader"):
        site.sign_in(role)
        overview = (await site.get()).text
        assert "1 destination is limited to one delivery at a time since" in overview
        for page in ("/destinations", ""):
            assert '<time datetime="2023-11-14T22:13:20' in (await site.get(page)).text
        assert "one at a time" in (await site.get("/destinations")).text
        said = (await site.get(f"/deliveries/{row_id}")).text
        assert "its destination is limited to one delivery at a time since" in said
        assert '<time datetime="2023-11-14T22:13:20' in said
    site.sign_in("other")
    for page in ("", "/destinations", f"/deliveries/{others}"):
        shown = (await site.get(page)).text
        assert not page or HUNG in shown
        assert "at a time" not in shown
        assert "2023-11-14" not in shown
        assert "acme" not in shown


async def test_only_workers_that_are_alive_limit(queue: Queue) -> None:
    """The first of several says since when; one that was killed or has stopped counts no more, and nonsense is nothing."""
    first, second = await limit(queue, SINCE), await limit(queue, EARLIER)
    status = Insights(queue.database)

    async def now() -> list[str]:
        return [each.words for each in (await status.overview(Scope(None))).findings if each.about == "limited"]

    words = "1 destination is limited to one delivery at a time since {}: attempts time out"
    assert await now() == [words.format("2020-09-13T12:26:40Z")]
    await second.stop()
    assert await now() == [words.format("2023-11-14T22:13:20Z")]
    await first.beat(0, 0, {})
    assert await now() == []
    await first.beat(0, 0, {"acme": {HUNG: SINCE}})
    await queue.run("UPDATE flowactions_workers SET last_seen_at = last_seen_at - 46000")
    assert await now() == []
    await queue.run("UPDATE flowactions_workers SET last_seen_at = last_seen_at + 46000, limited = '[1'")
    assert await now() == []


@pytest.mark.ci
async def test_commands_name_what_is_limited(queue: Queue, database_url: str, tmp_path: Path) -> None:
    """`destinations list`, `status` and `outbox show`."""
    await limit(queue, SINCE)
    await fail(queue, "acme")
    row_id = await queue.put(organization_id="acme", destination=HUNG)
    settings = {"FLOWACTIONS_DATABASE_URL": database_url, "FLOWACTIONS_DELIVERY": "continuous"}
    listed = await command("destinations", "list", cwd=tmp_path, **settings)
    assert "2023-11-14T22:13:20Z" in listed.out
    stats = await command("status", cwd=tmp_path, **settings)
    assert (
        "limited      1 destination is limited to one delivery at a time since 2023-11-14T22:13:20Z"
        in stats.out
    )
    shown = await command("outbox", "show", row_id, cwd=tmp_path, **settings)
    assert "limited to one delivery at a time since 2023-11-14T22:13:20Z" in shown.out


async def test_what_waits_for_something_here_is_named(site: Site) -> None:
    """On the overview, although nothing is due; an organization reads its own, without settings."""
    said = "Host.signing_secret of Shop raised KeyError"
    waits = {"error_class": "waits", "waiting_since": EARLIER, "last_error": said}
    for organization, state in (*((each, waits) for each in ("acme", "acme", "globex")), ("acme", {})):
        await site.queue.put(id=new_id(time.time()), organization_id=organization, state=state)
    site.sign_in("operator")
    overview = (await site.get()).text
    assert "3 deliveries wait, without an attempt, since" in overview
    assert said in overview
    assert "1 delivery waits" not in overview
    assert '/deliveries?q=error%3Awaits">' in overview
    site.sign_in("other")
    overview = (await site.get()).text
    assert "1 delivery waits, without an attempt, since" in overview
    assert "Host.signing_secret of Shop failed" in overview


async def test_pauses_are_named(site: Site) -> None:
    """On the overview, with how many are automatic: an organization's own, and those for all of what it uses."""
    for organization, destination, role, at in (
        ("acme", "http://a:1", "automatic", SINCE),
        ("", "http://b:1", "operator", EARLIER),
        ("globex", "http://c:1", None, 1),
    ):
        place = {"organization_id": organization, "destination": destination}
        by = {"paused_by": "x", "paused_role": role, "paused_at": at, "reason": ""}
        await site.queue.run(insert(pauses).values(**place, **by))
    await site.queue.put(destination="http://b:1")
    site.sign_in("operator")
    assert "3 destinations are paused (1 of them automatically), the first since" in (await site.get()).text
    site.sign_in("reader")
    overview = (await site.get()).text
    assert "2 destinations are paused (1 of them automatically), the first since" in overview
    assert '<time datetime="2020-09-13T12:26:40Z"' in overview
    site.sign_in("other")
    assert "1 destination is paused since" in (await site.get()).text
