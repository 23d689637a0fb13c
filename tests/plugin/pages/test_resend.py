"""The pages on which delivered webhooks are sent again."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from flowactions_plugin.operations.engine import Engine
from flowactions_plugin.operations.resend import send_one_again
from flowactions_plugin.operators.scope import Actor, Scope
from tests.commanding import command
from tests.plugin.pages.conftest import Site
from tests.plugin.pages.test_changes import hidden, preview

OPERATOR = Actor("olive", "Olive", "operator")


async def test_a_delivered_webhook_is_sent_again_from_its_page(site: Site) -> None:
    """The button says that receivers dedupe; both deliveries then show each other, and a reader has no button."""
    row_id = await site.put("delivered")
    shown = (await site.get(f"/deliveries/{row_id}")).text
    assert "Send again…" in shown
    assert "Safe: receivers that deduplicate ignore it." in shown
    page = await preview(site, "resend", id=row_id)
    assert "Send 1 delivery again?" in page.text
    assert "same event id" in page.text
    begun = await site.post("/actions", {**hidden(page), "reason": "they lost it"})
    assert begun.status_code == 303
    (action,) = await site.execute("SELECT id FROM flowactions_actions")
    assert "Send 1 delivery again" in (await site.get(f"/actions/{action.id}")).text
    await Engine(site.queue.database, "me").run_step(action.id)
    (new_id,) = set(await site.statuses()) - {row_id}
    assert await site.statuses() == {row_id: "delivered", new_id: "pending"}
    first, second = [(await site.get(f"/deliveries/{each}")).text for each in (row_id, new_id)]
    assert re.search(rf"Resent as</dt><dd><a href=\"[^\"]*/deliveries/{new_id}\"", first)
    assert re.search(rf"Resent from</dt><dd><a href=\"[^\"]*/deliveries/{row_id}\"", second)
    assert ("Resent from" in first, "Resent as" in second) == (False, False)
    assert "they lost it" in second
    site.sign_in("reader")
    assert "Send again…" not in (await site.get(f"/deliveries/{row_id}")).text
    assert (await site.get("/actions/new", params={"kind": "resend", "id": row_id})).status_code == 403
    site.sign_in("other")
    assert new_id not in (await site.get("/actions/new", params={"kind": "resend", "id": row_id})).text


async def test_a_retry_says_what_it_leaves_out_and_leads_to_sending_it_again(site: Site) -> None:
    """Where nothing bounds what would be sent again, the page says what to filter by."""
    ids = [await site.put("dead"), await site.put("delivered"), await site.put("delivered")]
    page = await site.get(f"/actions/new?kind=retry&id={ids[0]}&id={ids[1]}")
    assert "Retry 1 delivery?" in page.text
    assert "1 of those that match is delivered, and left out." in page.text
    assert "Send it again…" in page.text
    page = await preview(site, "retry")
    assert "2 of those that match are delivered, and left out." in page.text
    assert "again…" not in page.text
    assert "left out" not in (await preview(site, "retry", status="dead")).text
    refused = await site.get("/actions/new", params={"kind": "resend"})
    assert refused.status_code == 400
    assert "the time from which they were enqueued" in refused.text
    assert (
        "Enqueued from"
        in (await site.get("/deliveries", params={"status": "delivered"})).text.split("data-bulk")[1]
    )
    lately = await site.get("/deliveries", params={"status": "delivered", "since": "1d"})
    assert "Send again all…" in lately.text
    assert "Send 2 deliveries again?" in (await preview(site, "resend", since="1d")).text


@pytest.mark.ci
async def test_what_is_not_kept_any_more_cannot_be_sent_again(site: Site) -> None:
    """The page says why, and begins nothing; a form that was opened before is refused."""
    row_id = await site.put("delivered")
    form = hidden(await preview(site, "resend", id=row_id))
    await site.execute("DELETE FROM flowactions_outbox")
    gone = await preview(site, "resend", id=row_id)
    assert "retention or a purge has removed them" in gone.text
    refused = await site.post("/actions", form)
    assert refused.status_code == 409
    assert await site.execute("SELECT 1 FROM flowactions_actions") == []


@pytest.mark.ci
async def test_the_last_of_many_that_were_sent_again_are_shown(site: Site) -> None:
    """Ten, and how many came before them."""
    row_id = await site.put("delivered")
    for _ in range(12):
        assert await send_one_again(site.queue.database, row_id, Scope("acme"), OPERATOR) is not None
    shown = (await site.get(f"/deliveries/{row_id}")).text
    assert shown.split("Resent as")[1].split("</dd>")[0].count("<code>") == 10
    assert "and 2 before" in shown


async def test_lists_mark_what_was_sent_again(site: Site, database_url: str, tmp_path: Path) -> None:
    """On the page and by the command; the delivered one is not marked."""
    row_id = await site.put("delivered")
    copy = await send_one_again(site.queue.database, row_id, Scope("acme"), OPERATOR)
    assert copy is not None
    page = (await site.get("/deliveries")).text
    rows = {each[: len(row_id)]: each for each in page.split('data-live="row ')[1:]}
    assert ("resent" in rows[copy], "resent" in rows[row_id]) == (True, False)
    listed = await command("outbox", "list", cwd=tmp_path, FLOWACTIONS_DATABASE_URL=database_url)
    states = {line.split("  ")[0]: line for line in listed.out.splitlines()}
    assert ("pending, resent" in states[copy], "resent" in states[row_id]) == (True, False)
