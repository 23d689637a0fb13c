"""The examples of the page for authors of flows: each node is run as the page stores it, and what arrives is what the page shows."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from flowactions_hookspecs import FlowActions, Node
from flowactions_plugin.egress.signature import sign
from tests.chatting import adopted
from tests.docs.fences import ROOT, blocks_of
from tests.recorder import recorder
from tests.support import SmallHost, a_walk, development
from tests.waiting import until

PAGE = ROOT / "docs" / "how-to" / "flow-authors.md"
WRITTEN = 'Is "M" in stock?'
SHOP, SHOP_GETS, CONTACT, CONTACT_GETS, TEAM, TEAM_GETS = (json.loads(block.text) for block in blocks_of(PAGE))


@pytest.mark.parametrize(("config", "body"), [(SHOP, SHOP_GETS), (CONTACT, CONTACT_GETS)])
async def test_a_webhook_arrives_as_the_page_shows(config: dict, body: dict, sqlite_url: str) -> None:  # type: ignore[type-arg]
    """With its method, headers and body; signed if it has a secret."""
    host = SmallHost(development(sqlite_url, FLOWACTIONS_DELIVERY="continuous"))
    host.secret = config.get("webhookSecret")
    actions = FlowActions.load(host)
    async with recorder() as receiver, actions.lifespan():
        node = Node(id="n", type="webhook", config={**config, "webhookUrl": receiver.url})
        result = await actions.reach(a_walk(user_id="grace", content=WRITTEN), node)
        assert (result.status, result.halt) == ("queued", False)
        await until(lambda: receiver.requests)
    (request,) = receiver.requests
    assert request.line.startswith(f"{config.get('webhookMethod', 'POST')} ")
    assert json.loads(request.body) == body
    for header in config.get("webhookHeaders", []):
        assert request.header(header["key"].lower()) == header["value"].replace("{{userId}}", "grace")
    if host.secret:
        made = sign(host.secret, int(request.header("x-service-webhook-timestamp")), request.body)
        assert request.header("x-service-webhook-signature") == made


async def test_a_message_arrives_as_the_page_shows(
    sqlite_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the channel, with the user's text as text."""
    monkeypatch.chdir(tmp_path)  # the development key file
    async with adopted(sqlite_url) as run:
        assert (await run.reach(TEAM, user_id="grace", content=WRITTEN)).status == "sent"
        assert run.texts == [("#orders", TEAM_GETS)]


async def test_a_node_with_a_mistake_stops_the_flow_only_when_it_says_so(sqlite_url: str) -> None:
    """What *continue* means: the second example halts without a URL, the first does not."""
    actions = FlowActions.load(SmallHost(development(sqlite_url)))
    async with actions.lifespan(tasks=False):
        results = [
            await actions.reach(a_walk(), Node(id="n", type="webhook", config={**config, "webhookUrl": ""}))
            for config in (SHOP, CONTACT)
        ]
    assert [(each.status, each.reason, each.halt) for each in results] == [
        ("skipped", "missing_url", False),
        ("skipped", "missing_url", True),
    ]
