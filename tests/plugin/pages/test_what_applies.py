"""The audit and the pages of bulk actions say what applies to an action, and nothing else."""

from __future__ import annotations

import json
import re
import time
from itertools import count
from typing import Any

import pytest
from sqlalchemy import insert

from flowactions_plugin.clock import new_id
from flowactions_plugin.operators.scope import Scope
from flowactions_plugin.storage import schema
from flowactions_plugin.storage.schema import BEHIND_MS
from tests.plugin.pages.conftest import Site
from tests.plugin.stored import a_row
from tests.support import services_of

NOW = int(time.time() * 1000)
SECONDS = count()
WAITING: dict[str, Any] = {"state": "waiting", "finished_at": None, "done": 0}


BY_ADA = {"actor_id": "ada", "actor_name": "Ada", "actor_role": "dashboard"}


async def begin(site: Site, **changes: Any) -> str:
    """Write a bulk action that is done, or another; give its id."""
    row_id = new_id(time.time())
    known: dict[str, Any] = {"organization_id": "acme", "kind": "retry", "filter": "", "reason": "", **BY_ADA}
    known |= {"reset_attempts": 0, "sent": 0, "paced_done": 0, "created_at": NOW}
    known |= {"as_of": NOW, "counted": 3, "state": "done", "finished_at": NOW, "done": 3, **changes}
    await site.queue.run(insert(schema.actions).values(a_row(schema.actions, "", {"id": row_id, **known})))
    return row_id


async def note(site: Site, action: str, **changes: Any) -> None:
    """Write an entry of the audit; the ids of two are never of the same millisecond, whose order is by chance."""
    row_id = new_id(NOW / 1000 + next(SECONDS))
    known: dict[str, Any] = {
        "organization_id": "acme",
        "at": NOW,
        "action": action,
        "reason": "",
        **BY_ADA,
        **changes,
    }
    await site.queue.run(insert(schema.audit).values(a_row(schema.audit, "", {"id": row_id, **known})))


def words(page: str) -> str:
    """Give the text of a page's main part."""
    main = page[page.index("<main") : page.index("</main>")]
    return " ".join(re.sub(r"<[^>]+>", " ", main).split())


LATER = "Stopped before, "
OF_AN_ACTION: dict[str, tuple[dict[str, Any], list[str], list[str]]] = {
    "a retry": ({}, ["3 of 3 done", "Attempts one more", "Filter none: everything", "Ended"], []),
    "paced": (
        {"rate": 5.0, "reset_attempts": 1, "reason": "the why"},
        ["Rate 5.0 per second", "Attempts all again", "Reason the why"],
        [],
    ),
    "waiting": (WAITING, ["Workers take it up next.", LATER, "Stop"], ["of 3 done", "Ended", "Reason"]),
    "a delete": ({**WAITING, "kind": "delete"}, [LATER], ["sent", "Attempts"]),
    "deleted": ({"kind": "delete"}, ["3 of 3 done"], ["Attempts", "match the filter"]),
    "a resend": ({**WAITING, "kind": "resend"}, [LATER], ["Attempts"]),
    "running": (
        {"state": "running", "finished_at": None, "done": 1, "filter": "flow:f"},
        ["1 of 3 done", "Stop", "flow f"],
        ["Ended", "What was done", "Filter none"],
    ),
    "stopped before": ({"state": "stopped", "done": 0}, ["Nothing was changed", "Ended"], ["What was done"]),
    "stopped": (
        {"state": "stopped", "done": 1, "state_reason": "stopped by Ada"},
        ["1 of 3 done", "What was done stays", "stopped by Ada"],
        ["Stop "],
    ),
    "stopped early": ({"state": "stopped", "done": 0}, ["0 of 3 done"], ["What was done stays"]),
    "sent": (
        {"kind": "cancel", "done": 1, "sent": 2},
        ["1 of 3 done", "2 were being sent: delivered if the receiver says so"],
        ["had changed before"],
    ),
    "fewer": ({"done": 2}, ["2 of 3 done", "1 delivery had changed before it was reached"], ["What was done"]),
}
NOT_PACED = ["Rate"]


async def test_a_bulk_action_says_what_applies(site: Site) -> None:
    """No pace that it does not have, no reason that nobody gave, no end before it."""
    site.sign_in("changer")
    for name, (values, said, unsaid) in OF_AN_ACTION.items():
        shown = words((await site.get(f"/actions/{await begin(site, **values)}")).text)
        absent = [
            *unsaid,
            *([] if "rate" in values else NOT_PACED),
            *([] if "reason" in values else ["Reason"]),
        ]
        assert [each for each in said if each not in shown] == [], (name, shown)
        assert [each for each in absent if each in shown] == [], (name, shown)
    assert "stopped by Ada" in words((await site.get("/actions")).text)


def cells(page: str, kind: str) -> list[str]:
    """Give the texts of the cells of a column, by its class."""
    found = re.findall(rf'<td class="(?:num )?{kind}"[^>]*>(.*?)</td>', page)
    return [re.sub(r"<[^>]+>", "", each) for each in found]


async def test_the_audit_says_what_applies(site: Site) -> None:
    """What is not known or does not apply is an empty cell, and the style hides a column of them."""
    site.sign_in("changer")
    delivery, action = new_id(time.time()), new_id(time.time())
    await note(site, "purge")
    await note(site, "pause", destination="https://h.example:443", reason="their certificate")
    await note(site, "retry", delivery_id=delivery, number=1)
    await note(site, "retry", action_id=action, filter="", number=3)
    who = {"actor_id": "", "actor_name": "flowactions", "actor_role": "command"}
    await note(site, "stop", action_id=action, number=2, reason="its filter cannot be read", **who)
    page = (await site.get("/audit")).text
    assert cells(page, "rows") == ["2", "3", "1", "", ""]
    assert cells(page, "reason") == ["its filter cannot be read", "", "", "their certificate", ""]
    assert "–" not in words(page)
    assert "command" not in words(page)
    what = [
        f"stop bulk action {action[-12:]}",
        "retry everything",
        "purge everything",
    ]
    assert [each for each in what if each not in words(page)] == []


@pytest.mark.parametrize(
    ("role", "query", "said", "unsaid"),
    [
        ("operator", {"kind": "retry"}, ["shown to the organization", "match later are not touched"], [LATER]),
        ("changer", {"kind": "cancel"}, ["ends dead without one"], ["organizations see", "All attempts", LATER]),
        ("changer", {"kind": "delete"}, ["removed with its attempts"], ["How", "sent", LATER]),
        ("changer", {"kind": "retry", "destination": "https://none.example"}, [], ["Stopped", "later", "Reason"]),
    ],
    ids=["retry", "cancel", "delete", "none"],
)  # fmt: skip
async def test_a_preview_says_what_applies(
    site: Site, role: str, query: dict[str, str], said: list[str], unsaid: list[str]
) -> None:
    """Nothing of organizations to one of them, of pace where nothing is sent, of later rows where rows are named."""
    site.sign_in(role)
    row_id = await site.put("dead")
    await site.put()
    shown = words((await site.get("/actions/new", params=query)).text)
    assert [each for each in said if each not in shown] == [], shown
    assert [each for each in unsaid if each in shown] == [], shown
    named = words((await site.get("/actions/new", params={"kind": "retry", "id": row_id})).text)
    assert "match later" not in named


async def test_a_delivery_is_named_after_its_flow_and_node_and_says_that_it_waits_for_another(
    site: Site,
) -> None:
    """In the list, its title and its heading; without a flow, after its event type."""
    behind = await site.put(event_type="placed", sequence=7)
    other = await site.put(event_type="user.created")
    await site.execute(
        "UPDATE flowactions_outbox SET next_attempt_at = :ms, flow_id = 'orders', node_id = '<tell>' WHERE id = :id",
        ms=BEHIND_MS,
        id=behind,
    )
    await site.execute("UPDATE flowactions_outbox SET flow_id = NULL, node_id = NULL WHERE id = :id", id=other)
    page = (await site.get(f"/deliveries/{behind}")).text
    named = r"orders · (<span class=\"node\">)?&lt;tell&gt;"
    assert re.search(rf"<h1>\s*{named}", page)
    assert re.search(rf"<title>\s*{named} {behind[-12:]}", page)
    assert re.search(r"<h1>\s*user.created", (await site.get(f"/deliveries/{other}")).text)
    listed = (await site.get("/deliveries?q=status:behind")).text
    assert re.search(named, listed)
    assert (listed.count("<tr data-live"), listed.count("waits for the one before it")) == (1, 1)


@pytest.mark.parametrize(
    ("body", "shown"), [(b'{"text":"one\\n<b> \\u20ac"}', "one\n&lt;b&gt; €"), (b"{}", "{}"), (b"[1", "[1")]
)
async def test_a_chat_message_is_shown_as_its_text(site: Site, body: bytes, shown: str) -> None:
    """And what is stored as none, as it is stored."""
    row = await site.put(body=body)
    await site.execute(
        "UPDATE flowactions_outbox SET destination = 'chat://T1', url = 'chat://T1/C1' WHERE id = :id", id=row
    )
    page = (await site.get(f"/deliveries/{row}")).text
    assert f'<pre tabindex="0">{shown}</pre>' in page
    assert "As curl" not in page
    for titled in (page.partition("<h1>")[2], (await site.get("/deliveries")).text.partition("<tbody")[2]):
        assert f'C1 · <span class="text">{shown}</span>' in titled
    assert "C1" in page.partition("</title>")[0]


async def test_the_title_of_a_chat_message_has_its_first_words(site: Site) -> None:
    """The channel as the provider names it; lists read no body of a webhook, and none of another organization."""
    words = "word " * 40
    row, other = await site.put(body=json.dumps({"text": words}).encode()), await site.put(body=b"webhook body")
    await site.execute(
        "UPDATE flowactions_outbox SET destination = 'chat://T1', url = 'chat://T1/a%2Fb' WHERE id = :id",
        id=row,
    )
    listed = (await site.get("/deliveries")).text
    assert f'a/b · <span class="text">{words[:54]}...</span>' in listed
    assert "webhook body" not in listed
    insights = services_of(site.host)._insights
    assert set(await insights.bodies(Scope(), [row, other])) == {row, other}
    assert await insights.bodies(Scope("nobody"), [row, other]) == {}
