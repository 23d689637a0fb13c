"""*Find* leads to what a text names, as far as one may see it, and says what it looked for."""

from __future__ import annotations

import time
from urllib.parse import urlencode

import pytest
from sqlalchemy import insert

from flowactions_plugin.storage.schema import inbound_events
from tests.plugin.pages.conftest import Site

HOSTS = {
    "acme": ("https://hooks.acme.example:443", "https://api.acme.example:443", "http://api.acme.example:80"),
    "globex": ("https://hooks.globex.example:443", "http://[::1]:9000"),
}


@pytest.fixture
async def known(site: Site) -> Site:
    """A site with deliveries to destinations of two organizations, and an inbound event."""
    for organization, keys in HOSTS.items():
        for key in keys:
            await site.put(organization_id=organization, destination=key)
    event = {"provider": "auth", "event_id": "msg_1", "received_at": int(time.time() * 1000)}
    async with site.queue.database.write() as connection:
        await connection.execute(insert(inbound_events), [event])
    return site


def to(key: str) -> str:
    return f"/deliveries?{urlencode({'q': f'destination:{key}'})}"


async def test_one_thing_is_led_to(known: Site) -> None:
    """By its id in any case, an event id, a key, a URL with a path, a host with a port or without."""
    row_id = await known.put(idempotency_key="order 7", event_id="evt_1", organization_id="acme")
    known.sign_in("operator")
    for text, there in (
        (row_id, f"/deliveries/{row_id}"),
        (f" {row_id.upper()} ", f"/deliveries/{row_id}"),
        ("evt_1", "/deliveries?q=event%3Aevt_1"),
        ("order 7", "/deliveries?q=key%3A%22order+7%22"),
        ("https://Hooks.acme.example/x?y=1", to("https://hooks.acme.example:443")),
        ("hooks.ACME.example", to("https://hooks.acme.example:443")),
        ("hooks.acme.example/path", to("https://hooks.acme.example:443")),
        ("[::1]:9000", to("http://[::1]:9000")),
        ("acme", "/deliveries?q=organization%3Aacme"),
        ("msg_1", "/inbound?id=msg_1"),
        ("", "/deliveries"),
    ):
        answer = await known.get("/find", params={"q": text})
        assert answer.headers["location"] == f"../webhooks{there}", text
        assert (await known.get(there)).status_code == 200


async def test_several_things_are_listed(known: Site) -> None:
    """A host that is reached by both schemes."""
    known.sign_in("operator")
    page = (await known.get("/find", params={"q": "api.acme.example"})).text
    assert "2 results" in page
    assert to("https://api.acme.example:443") in page
    assert to("http://api.acme.example:80") in page
    assert "hooks.acme" not in page


async def test_what_was_looked_for_is_said(known: Site) -> None:
    """When nothing is found, with what the text cannot be, and with a search that goes on."""
    known.sign_in("operator")
    page = (await known.get("/find", params={"q": "no such thing"})).text
    for said in (
        "Nothing found",
        "a delivery or a bulk action with this id",
        "an event id begins with evt_",
        "deliveries with this idempotency key",
        "deliveries to this destination that failed or are among the newest",
        "it is neither a host nor a URL",
        "the organization with this id",
        "an inbound event with this id",
    ):
        assert said in page, said
    page = (await known.get("/find", params={"q": "new.example"})).text
    assert to("https://new.example:443") in page


async def test_a_member_finds_only_what_is_their_organizations(known: Site) -> None:
    """Neither others' deliveries, destinations and organizations, nor inbound events."""
    other = await known.put(organization_id="globex", event_id="evt_2", idempotency_key="theirs")
    known.sign_in("changer")
    for text in (other, "evt_2", "theirs", "hooks.globex.example", "globex", "msg_1"):
        answer = await known.get("/find", params={"q": text})
        assert (answer.status_code, "Nothing found" in answer.text) == (200, True), text
        assert "the organization with this id" not in answer.text
        assert "inbound event" not in answer.text.partition("<main")[2]
    answer = await known.get("/find", params={"q": "hooks.acme.example"})
    assert answer.headers["location"].endswith(to("https://hooks.acme.example:443"))


async def test_any_text_is_looked_for(known: Site) -> None:
    """And none of it is a pattern, or ends the search."""
    known.sign_in("operator")
    for text in ("%", "_", "\\", "'", "a%b", "x" * 2048, "é", "\U0001f600", "https://", ":", "[", "<b>"):
        answer = await known.get("/find", params={"q": text})
        assert answer.status_code in {200, 400}, answer.text
        assert "hooks.acme.example" not in answer.text, text
