"""What people do on the pages: bulk actions with preview and stop; pauses."""

from __future__ import annotations

import html
import re

import httpx
import pytest
from sqlalchemy import insert

from flowactions_plugin.insights.filters import Filter
from flowactions_plugin.insights.results import Kind
from flowactions_plugin.operations import port as pauses
from flowactions_plugin.operations.port import Operations
from flowactions_plugin.operators.scope import AUTOMATIC, Actor, Scope
from flowactions_plugin.storage.schema import pauses as table
from tests.plugin.pages.conftest import ROOT, Site
from tests.plugin.stored import a_row


def hidden(page: httpx.Response) -> dict[str, str]:
    """Give the hidden fields of a page's form."""
    return dict(re.findall(r'<input type="hidden" name="([^"]+)" value="([^"]*)">', page.text))


async def preview(site: Site, kind: str, **query: str) -> httpx.Response:
    page = await site.get("/actions/new", params={"kind": kind, **query})
    assert page.status_code == 200, page.text
    return page


async def test_a_retry_is_done_to_the_whole_filter_and_can_be_stopped(site: Site) -> None:
    """Shown with its number, confirmed, and stopped before anything has left."""
    ids = [await site.put("dead", event_type="wanted") for _ in range(3)]
    other = await site.put("dead", event_type="other")
    page = await preview(site, "retry", type="wanted")
    assert "Retry 3 deliveries?" in page.text
    begun = await site.post("/actions", {**hidden(page), "reason": "it is up again", "rate": "5"})
    assert begun.status_code == 303
    where = httpx.URL(f"http://host{ROOT}/actions").join(begun.headers["location"]).path
    shown = (await site.browser.get(where)).text
    assert "it changes nothing" in shown
    assert "it is up again" in shown
    assert ">Stop</button>" in shown
    assert set((await site.statuses()).values()) == {"dead"}
    stopped = await site.post(where.removeprefix(ROOT) + "/stop")
    assert stopped.status_code == 303
    assert "Nothing was changed." in (await site.browser.get(where)).text
    assert await site.statuses() == dict.fromkeys([*ids, other], "dead")
    assert "it is up again" in (await site.get("/audit")).text
    assert "it is up again" in (await site.get("/actions")).text


async def test_when_nothing_is_left_of_the_set_that_is_said(site: Site) -> None:
    """409; nothing is begun. Rows that are dead later are not in it."""
    (row_id,) = [await site.put("dead")]
    page = await preview(site, "retry")
    await site.execute("DELETE FROM flowactions_outbox WHERE id = :id", id=row_id)
    later = await site.put("dead")
    await site.execute("UPDATE flowactions_outbox SET finished_at = finished_at + 60000")
    refused = await site.post("/actions", {**hidden(page), "reason": "typed before"})
    assert refused.status_code == 409
    assert "It has changed since it was shown." in refused.text
    assert await site.execute("SELECT 1 FROM flowactions_actions") == []
    assert await site.statuses() == {later: "dead"}


@pytest.mark.parametrize(
    ("kind", "before", "after"),
    [("retry", "dead", "pending"), ("cancel", "pending", "dead"), ("delete", "dead", None)],
)
async def test_one_delivery_is_changed_at_once(site: Site, kind: str, before: str, after: str | None) -> None:
    """Confirmed with a reason, without a bulk action; a form that is sent twice says that it has changed."""
    row_id = await site.put(before)
    page = await preview(site, kind, id=row_id)
    assert "later" not in page.text.partition("<form")[2].partition("</form>")[0]
    done = await site.post("/actions", {**hidden(page), "reason": "the why"})
    assert done.status_code == 303
    assert done.headers["location"].endswith("/deliveries" if kind == "delete" else f"/deliveries/{row_id}")
    assert await site.statuses() == ({} if after is None else {row_id: after})
    (line,) = await site.execute("SELECT action, delivery_id, reason, actor_name FROM flowactions_audit")
    assert (line.action, line.delivery_id, line.reason) == (kind, row_id, "the why")
    assert (await site.post("/actions", hidden(page))).status_code == 409
    assert await site.execute("SELECT 1 FROM flowactions_actions") == []


async def test_the_rows_of_a_page_are_selected_by_id(site: Site) -> None:
    """As a browser sends checked boxes, and as one delivery's page links."""
    ids = [await site.put("dead") for _ in range(4)]
    page = await site.get(f"/actions/new?kind=delete&id={ids[0]}&id={ids[2]}")
    assert "Delete 2 deliveries?" in page.text
    page = await site.get(f"/actions/new?kind=retry&id={ids[1]}")
    assert "Retry 1 delivery?" in page.text


async def test_what_cannot_be_done_says_why(site: Site) -> None:
    """And begins nothing."""
    await site.put("dead")
    known = {"kind": "retry", "as-of": "1"}
    for form, status in (
        ({"kind": "explode"}, 400),
        ({"as-of": "1"}, 400),
        *(({**known, "as-of": each}, 400) for each in ("x", "9" * 15, "9" * 5000)),
        *(({**known, "q": each}, 400) for each in ("since:never", "status:due")),
        *(({**known, "rate": each}, 400) for each in ("nan", "-1")),
        ({"kind": "retry"}, 409),
        (known, 409),
    ):
        answer = await site.post("/actions", form)
        assert answer.status_code == status, form
    assert await site.execute("SELECT 1 FROM flowactions_actions") == []


async def test_a_destination_is_paused_and_resumed(site: Site) -> None:
    """For the organization; an operator's pause is of one or of all, and the organization cannot end it."""
    form = {"destination": "https://hooks.example.com/path", "reason": "their certificate"}
    assert (await site.post("/destinations/pause", form)).status_code == 303
    shown = (await site.get("/destinations")).text
    assert "their certificate" in shown
    assert "https://hooks.example.com:443" in shown
    assert (await site.post("/destinations/resume", {"destination": form["destination"]})).status_code == 303
    assert await site.execute("SELECT 1 FROM flowactions_pauses") == []
    site.sign_in("operator")
    await site.post("/destinations/pause", {**form, "organization": "acme"})
    await site.post("/destinations/pause", form)
    rows = await site.execute("SELECT organization_id FROM flowactions_pauses ORDER BY organization_id")
    assert [row.organization_id for row in rows] == ["", "acme"]
    await site.queue.put(destination="https://hooks.example.com:443")
    site.sign_in("changer")
    page = (await site.get("/destinations")).text
    assert page.count("by the operator") == 2
    assert "/destinations/resume" not in page
    for path in ("/destinations/pause", "/destinations/resume"):
        answer = await site.post(path, form)
        assert (answer.status_code, "only operators can resume it" in answer.text) == (403, True)
    assert (await site.post("/destinations/pause", {"destination": "nonsense"})).status_code == 400


async def test_an_automatic_pause_is_shown_and_can_be_ended(site: Site) -> None:
    """With the next probe, also by those of the organization who may change, and not by others."""
    destination = "https://down.example:443"
    await Operations(site.queue.database).pause(Scope("acme"), destination, AUTOMATIC, "20 failures in a row")
    for who in ("operator", "changer"):
        site.sign_in(who)
        page = (await site.get("/destinations")).text
        assert "flowactions" in page
        assert "20 failures in a row" in page
        assert "0 probes, the next one" in page
        assert "/destinations/resume" in page
    site.sign_in("reader")
    assert "/destinations/resume" not in (await site.get("/destinations")).text
    site.sign_in("changer")
    assert (await site.post("/destinations/resume", {"destination": destination})).status_code == 303
    assert await site.execute("SELECT 1 FROM flowactions_pauses") == []


async def test_a_member_cannot_end_what_a_command_has_begun(site: Site) -> None:
    """Nor is there a button for it."""
    await site.put("dead")
    made = Operations(site.queue.database)
    preview = await made.preview(Scope("acme"), "delete", Filter())
    begun = await made.change(Scope("acme"), preview.chosen, Actor("root", "root@box", "command"), "")
    assert begun is not None
    page = (await site.get(f"/actions/{begun.id}")).text
    assert f"{begun.id}/stop" not in page
    assert (await site.post(f"/actions/{begun.id}/stop")).status_code == 403


async def test_pauses_have_pages_and_a_limit(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fifty a page; one more than may be is a conflict, and is not there."""
    monkeypatch.setattr(pauses, "MOST_PAUSES", 52)
    places = [f"https://h{number:02}.example:443" for number in range(52)]
    rows = [a_row(table, "Ada", {"organization_id": "acme", "destination": each}) for each in places]
    await site.queue.run(insert(table).values(rows))
    first = (await site.get("/destinations")).text
    assert (first.count('badge paused">'), "h49.example" in first, "h50.example" in first) == (50, True, False)
    more = re.search(r'href="[^"]*(/destinations\?paused-after=[^"]*)"', first)
    assert more is not None
    second = (await site.get(html.unescape(more[1]))).text
    assert re.findall(r">(h\d+)\.<wbr>example <", second) == ["h50", "h51"]
    answer = await site.post("/destinations/pause", {"destination": "https://new.example"})
    assert (answer.status_code, "Too many destinations are paused" in answer.text) == (409, True)
    assert await site.execute("SELECT 1 FROM flowactions_pauses WHERE destination LIKE '%new%'") == []


@pytest.mark.parametrize(
    "site", [{}, {"FLOWACTIONS_SHOW_OPERATORS": "on"}], indirect=True, ids=["hidden", "shown"]
)
async def test_tenants_do_not_read_the_names_of_operators(site: Site) -> None:
    """Wherever somebody is named who did something, unless the setting says so; their reasons are as they typed them."""
    waiting, dead = await site.put(), await site.put("dead")
    target = "http://127.0.0.1:9"
    await site.execute("UPDATE flowactions_outbox SET destination = :target", target=target)
    site.sign_in("operator")
    await site.post("/destinations/pause", {"destination": target, "organization": "acme", "reason": "the why"})
    queue, olive = site.queue, Actor("olive", "Olive", "operator")
    made = Operations(queue.database)
    done: list[tuple[Kind, str]] = [("cancel", waiting), ("delete", dead)]
    for kind, row_id in done:
        preview = await made.preview(Scope("acme"), kind, Filter.of(id=(row_id,)))
        begun = await made.change(Scope("acme"), preview.chosen, olive, "")
    assert begun is not None
    assert "Olive" in (await site.get(f"/deliveries/{waiting}")).text
    site.sign_in("changer")
    shown = "FLOWACTIONS_SHOW_OPERATORS" in site.host.settings
    pages = {
        path: (await site.get(path)).text
        for path in ("/destinations", "/audit", "/actions", f"/actions/{begun.id}", f"/deliveries/{waiting}")
    }
    name = "Olive" if shown else "operator"
    for path, page in pages.items():
        assert name in page, path
        assert shown or "olive" not in page.lower(), path
    assert "the why" in pages["/destinations"]
    # What is stored with a row names no operator.
    (row,) = await site.execute("SELECT last_error FROM flowactions_outbox WHERE id = :id", id=waiting)
    assert row.last_error == "cancelled by an operator"
