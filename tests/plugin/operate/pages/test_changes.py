"""What people do on the pages: bulk actions with preview, undo and stop; pauses."""

from __future__ import annotations

import re

import httpx
import pytest

from tests.plugin.operate.pages.conftest import ROOT, Site


def hidden(page: httpx.Response) -> dict[str, str]:
    """Give the hidden fields of a page's form."""
    return dict(re.findall(r'<input type="hidden" name="([^"]+)" value="([^"]*)">', page.text))


async def preview(site: Site, kind: str, **query: str) -> httpx.Response:
    page = await site.get("/actions/new", params={"kind": kind, **query})
    assert page.status_code == 200, page.text
    return page


async def test_a_replay_is_done_to_the_whole_filter_and_can_be_undone(site: Site) -> None:
    """Shown with its number, confirmed, and taken back before anything has left."""
    ids = [await site.put("dead", event_type="wanted") for _ in range(3)]
    other = await site.put("dead", event_type="other")
    page = await preview(site, "replay", type="wanted")
    assert "Replay 3 deliveries?" in page.text
    begun = await site.post("/actions", {**hidden(page), "reason": "it is up again", "rate": "5"})
    assert begun.status_code == 303
    where = httpx.URL(f"http://host{ROOT}/actions").join(begun.headers["location"]).path
    shown = (await site.browser.get(where)).text
    assert "Nothing leaves before" in shown
    assert "it is up again" in shown
    assert "Undo" in shown
    assert set((await site.statuses()).values()) == {"dead"}
    undone = await site.post(where.removeprefix(ROOT) + "/undo")
    assert undone.status_code == 303
    assert "undone" in (await site.browser.get(where)).text
    assert await site.statuses() == dict.fromkeys([*ids, other], "dead")
    assert "it is up again" in (await site.get("/audit")).text
    assert "it is up again" in (await site.get("/actions")).text


async def test_when_the_set_has_changed_it_is_shown_and_asked_again(site: Site) -> None:
    """409 with the new number and what was typed; nothing is begun. Rows that are dead later are not in it."""
    ids = [await site.put("dead") for _ in range(3)]
    page = await preview(site, "replay")
    await site.execute("DELETE FROM flowactions_outbox WHERE id = :id", id=ids[0])
    refused = await site.post("/actions", {**hidden(page), "reason": "typed before"})
    assert refused.status_code == 409
    assert "Replay 2 deliveries?" in refused.text
    assert 'value="typed before"' in refused.text
    assert await site.execute("SELECT 1 FROM flowactions_actions") == []
    begun = await site.post("/actions", {**hidden(refused), "reason": "typed before"})
    assert begun.status_code == 303


async def test_the_rows_of_a_page_are_selected_by_id(site: Site) -> None:
    """As a browser sends checked boxes, and as one delivery's page links."""
    ids = [await site.put("dead") for _ in range(4)]
    page = await site.get(f"/actions/new?kind=delete&id={ids[0]}&id={ids[2]}")
    assert "Delete 2 deliveries?" in page.text
    page = await site.get(f"/actions/new?kind=retry&id={ids[1]}")
    assert "Retry 1 delivery?" in page.text


@pytest.mark.parametrize(
    ("form", "status"),
    [
        ({"kind": "explode", "token": "x"}, 400),
        ({"token": "x"}, 400),
        ({"kind": "replay", "token": "nonsense"}, 400),
        ({"kind": "replay"}, 400),
        ({"kind": "replay", "token": "x", "canary": "many"}, 400),
        ({"kind": "replay", "token": "x", "rate": "nan"}, 400),
        ({"kind": "replay", "token": "x", "rate": "-1"}, 400),
        ({"kind": "replay", "token": "x", "canary": "9" * 5000}, 400),
    ],
)
async def test_what_cannot_be_done_says_why(site: Site, form: dict[str, str], status: int) -> None:
    """And begins nothing."""
    await site.put("dead")
    answer = await site.post("/actions", form)
    assert answer.status_code == status
    assert await site.execute("SELECT 1 FROM flowactions_actions") == []


async def test_a_token_of_one_organization_does_nothing_in_another(site: Site) -> None:
    """The set of an operator's preview neither."""
    await site.put("dead")
    site.sign_in("operator")
    form = hidden(await preview(site, "delete"))
    site.sign_in("other")
    assert (await site.post("/actions", form)).status_code in {400, 409}
    assert await site.execute("SELECT 1 FROM flowactions_actions") == []


async def test_a_destination_is_paused_and_resumed(site: Site) -> None:
    """For the organization; an operator's pause is of one or of all, and the organization cannot end it."""
    form = {"destination": "https://hooks.example.com/path", "reason": "their certificate"}
    assert (await site.post("/destinations/pause", form)).status_code == 303
    shown = (await site.get("/destinations")).text
    assert "their certificate" in shown
    assert "https://hooks.example.com:443" in shown
    site.sign_in("other")
    assert "hooks.example.com:443" not in (await site.get("/destinations")).text
    site.sign_in("changer")
    assert (await site.post("/destinations/resume", {"destination": form["destination"]})).status_code == 303
    assert await site.execute("SELECT 1 FROM flowactions_pauses") == []
    site.sign_in("operator")
    await site.post("/destinations/pause", {**form, "organization": "acme"})
    await site.post("/destinations/pause", form)
    rows = await site.execute("SELECT organization_id FROM flowactions_pauses ORDER BY organization_id")
    assert [row.organization_id for row in rows] == ["", "acme"]
    site.sign_in("changer")
    await site.post("/destinations/resume", form)
    rows = await site.execute("SELECT organization_id FROM flowactions_pauses")
    assert [row.organization_id for row in rows] == [""]
    assert "by the operator" in (await site.get("/destinations")).text
    assert (await site.post("/destinations/pause", {"destination": "nonsense"})).status_code == 400


async def test_find_leads_to_what_a_text_names(site: Site) -> None:
    """A delivery by its id, the others by a search."""
    row_id = await site.put()
    for text, there in (
        (row_id, f"/deliveries/{row_id}"),
        (row_id.upper(), f"/deliveries/{row_id}"),
        ("evt_1", "/deliveries?event-id=evt_1"),
        ("https://a.example/x?y=1", "/deliveries?destination=https%3A%2F%2Fa.example%2Fx%3Fy%3D1"),
        ("order 7", "/deliveries?key=order+7"),
        ("", "/deliveries"),
    ):
        answer = await site.get("/find", params={"q": text})
        assert answer.headers["location"] == f"../webhooks{there}"
        assert (await site.get(there)).status_code == 200
