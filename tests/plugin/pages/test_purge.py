"""The page that purges an organization."""

from __future__ import annotations

import re

import pytest

from flowactions_plugin.bulk import purge as purging
from tests.plugin.bulk.test_purge import fill, kept
from tests.plugin.pages.conftest import Site
from tests.plugin.pages.test_changes import hidden

SHOWN = re.compile(r"<button class=\"danger\">Remove ([\d,]+) rows?</button>")


async def test_what_was_counted_is_removed_when_its_id_is_typed(site: Site) -> None:
    """All of it, and nothing of another organization; what came after the count stays, and is told."""
    await fill(site.queue, "globex", 2)
    others = await kept(site.queue)
    await fill(site.queue, "acme", 3)
    site.sign_in("operator")
    assert "/purge" in (await site.get()).text
    counted = await site.get("/purge", params={"organization": "acme"})
    number = SHOWN.search(counted.text)
    assert number is not None
    form = {**hidden(counted), "reason": "they left"}
    late = await site.put()
    await site.execute("UPDATE flowactions_outbox SET created_at = created_at + 60000 WHERE id = :id", id=late)
    wrong = await site.post("/purge", {**form, "typed": "acmé"})
    assert wrong.status_code == 400
    assert "This is not the id" in wrong.text
    done = await site.post("/purge", {**form, "typed": "acme"})
    assert done.status_code == 200
    assert f"Removed {number[1]} rows of acme" in done.text
    assert "1 row came after the count" in done.text
    left = await kept(site.queue)
    (line,) = [row for row in left["flowactions_audit"] if row.organization_id == "acme"]
    assert (line.action, line.actor_id, line.reason, line.number) == (
        "purge",
        "olive",
        "they left",
        int(number[1]),
    )
    left["flowactions_audit"].remove(line)
    left["flowactions_outbox"] = [row for row in left["flowactions_outbox"] if row.id != late]
    assert left == others


async def test_only_operators_who_may_change_reach_it(site: Site) -> None:
    """Members and readers neither see it, nor count, nor remove; nor do pages of other sites."""
    await fill(site.queue, "acme", 1)
    site.sign_in("operator")
    form = {**hidden(await site.get("/purge", params={"organization": "acme"})), "typed": "acme"}
    for role, status in (("changer", 403), ("operator reader", 403), ("reader", 403), ("nobody", 401)):
        site.sign_in(role)
        assert "/purge" not in (await site.get()).text
        for page in ("/purge", "/purge?organization=acme"):
            assert (await site.get(page)).status_code == status
        assert (await site.post("/purge", form)).status_code == status
    site.sign_in("operator")
    assert (await site.post("/purge", form, **{"sec-fetch-site": "cross-site"})).status_code == 403
    assert len((await kept(site.queue))["flowactions_outbox"]) == 1


async def test_a_form_that_is_not_the_one_that_was_shown_removes_nothing(site: Site) -> None:
    """Another organization's token, no token, another id: each is told, and nothing changes."""
    await fill(site.queue, "acme", 1)
    site.sign_in("operator")
    form = {**hidden(await site.get("/purge", params={"organization": "acme"})), "typed": "acme"}
    before = await kept(site.queue)
    changes: list[dict[str, str]] = [
        {"token": "nonsense"},
        {"token": ""},
        {"organization": "globex", "typed": "globex"},
        {"organization": ""},
        {"typed": ""},
        {"typed": "ACME"},
        {"more": "1"},
    ]
    for change in changes:
        assert (await site.post("/purge", {**form, **change})).status_code == 400, change
    assert await kept(site.queue) == before


async def test_more_than_was_shown_is_shown_again(site: Site) -> None:
    """409 with the new numbers and what was typed as a reason; nothing is removed."""
    await fill(site.queue, "acme", 2)
    site.sign_in("operator")
    form = {**hidden(await site.get("/purge", params={"organization": "acme"})), "typed": "acme"}
    await site.execute("UPDATE flowactions_outbox SET id = 'other' WHERE id = 'acme-1'")
    late = await site.put()
    await site.execute("UPDATE flowactions_outbox SET created_at = 1 WHERE id = :id", id=late)
    refused = await site.post("/purge", {**form, "reason": "they left"})
    assert refused.status_code == 409
    assert "More is kept of this organization than was shown" in refused.text
    assert 'value="they left"' in refused.text
    assert len(await site.statuses()) == 3
    done = await site.post("/purge", {**hidden(refused), "typed": "acme"})
    assert done.status_code == 200
    assert await site.statuses() == {}


@pytest.mark.ci
async def test_a_purge_that_takes_long_is_gone_on_with(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each request removes a part and says what is left; the same form removes the rest, and then nothing."""
    monkeypatch.setattr(purging, "BATCH", 2)
    monkeypatch.setattr(purging, "PART_SECONDS", 0.0)
    monkeypatch.setattr(purging.Purges.carry_out, "__kwdefaults__", {"seconds": 0.0})
    await fill(site.queue, "acme", 5)
    site.sign_in("operator")
    page = await site.get("/purge", params={"organization": "acme"})
    form, removed = {**hidden(page), "typed": "acme"}, []
    for _ in range(3):
        page = await site.post("/purge", form)
        assert page.status_code == 200
        found = re.search(r"Removed ([\d,]+) rows?", page.text)
        assert found is not None
        removed.append(int(found[1]))
        if "Remove the rest" not in page.text:
            break
        form = hidden(page)
    assert len(removed) == 3
    assert sum(removed) == 61
    assert "All that you were shown is removed" in page.text
    again = await site.post("/purge", form)
    assert "Removed 0 rows" in again.text


@pytest.mark.ci
async def test_an_organization_of_which_nothing_is_kept_is_told(site: Site) -> None:
    """With the likely reason; hostile text is shown as text."""
    site.sign_in("operator")
    page = await site.get("/purge", params={"organization": "<b>acme"})
    assert "Nothing is kept of this organization" in page.text
    assert "<b>acme" not in page.text
    assert "Remove" not in page.text
