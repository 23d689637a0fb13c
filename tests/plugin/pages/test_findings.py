"""What the overview says somebody should look at: in words, with what shows it, and one action for those who may change something."""

from __future__ import annotations

import re
import time
from html import unescape

import pytest
from sqlalchemy import insert

from flowactions_plugin.storage.schema import destinations
from tests.bulk import failing
from tests.plugin.pages.conftest import Site

OUTAGE = (
    "UPDATE flowactions_outbox SET status = 'dead', error_class = 'not_sent', last_error = 'unknown node', attempts = 0,\
 node_id = id, flow_id = 'f', finished_at = :at"
)


def verdict(page: str) -> str:
    """Give the class of the first line: ``ok``, ``warning`` or ``failed``."""
    (found,) = re.findall(r'<div class="verdict (\w+)"', page)
    return str(found)


async def unsent(site: Site, number: int) -> list[str]:
    """Write deliveries of as many nodes that ended without an attempt."""
    ids = [await site.put() for _ in range(number)]
    await site.execute(OUTAGE, at=int(time.time() * 1000))
    return ids


@pytest.mark.parametrize("role", ["changer", "operator"])
async def test_deliveries_that_ended_without_an_attempt_are_retried_from_the_overview(
    site: Site, role: str
) -> None:
    """By two clicks: the first shows how many they are. The card of dead deliveries has the colour of the finding."""
    site.sign_in(role)
    ids = await unsent(site, 6)
    failed = await site.put("dead")
    page = (await site.get()).text
    assert verdict(page) == "failed"
    assert re.search(r'<div class="bad"><dt><a [^>]*>Dead', page)
    assert "6 deliveries of 6 nodes" in page
    (link,) = re.findall(r'href="[^"]*(/actions/new[^"]*)">Retry these…', page)
    preview = await site.get(unescape(link))
    assert preview.status_code == 200
    form = dict(re.findall(r'<input type="hidden" name="([^"]+)" value="([^"]*)"', preview.text))
    started = await site.post("/actions", {name: unescape(value) for name, value in form.items()})
    assert started.status_code == 303, started.text
    assert await site.execute("SELECT counted FROM flowactions_actions") == [(6,)]
    (shows,) = set(re.findall(r'href="[^"]*(/deliveries\?q=[^"]*not_sent[^"]*)"', page))
    listed = (await site.get(unescape(shows))).text
    assert all(row_id in listed for row_id in ids)
    assert failed not in listed


@pytest.mark.parametrize("role", ["reader", "operator reader", "changer", "operator", "other"])
async def test_a_finding_has_a_button_for_who_may_change(site: Site, role: str) -> None:
    """A destination that fails may be paused; who only reads has no button, and another organization no finding."""
    now = int(time.time() * 1000)
    place = {**failing(1, now), "organization_id": "acme"}
    await site.queue.run(insert(destinations).values(place))
    await unsent(site, 1)
    site.sign_in(role)
    page = (await site.get()).text
    told = "https://d1.example:443" in page
    assert told == (role != "other")
    assert ("organization acme" in page) == role.startswith("operator")
    may = role in {"changer", "operator"}
    assert ("/destinations/pause" in page) == may
    assert ("Retry these…" in page) == may
    assert not re.search(r'<div class="bad"><dt><a [^>]*>Dead', page)
    if may:
        given = {"destination": place["destination"], "reason": "it is down"}
        given |= {"organization": "acme"} if role == "operator" else {}
        answer = await site.post("/destinations/pause", given)
        assert answer.status_code == 303
        page = (await site.get()).text
        assert "/destinations/pause" not in page
        assert "it is paused" in page
