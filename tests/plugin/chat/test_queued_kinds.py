"""What people read of queued chat messages: every place that would take a destination for one of HTTP asks for its kind."""

from __future__ import annotations

from typing import Any, cast

import pytest

from flowactions_hookspecs import ChatNodeOrigin, Node
from flowactions_plugin.chat.failures import ChatRefused
from flowactions_plugin.chat.queued import QueuedSender, Waiting
from flowactions_plugin.egress.attempt import CHAT_LIMITED, Aborted
from flowactions_plugin.egress.destination import destination_of
from flowactions_plugin.errors import EgressRefused, NotConfigured
from flowactions_plugin.http.masking import masked_url
from flowactions_plugin.insights.curl import commands
from flowactions_plugin.insights.filters import BY_NAME, parse, value_of
from flowactions_plugin.insights.views import certainty
from flowactions_plugin.operators.scope import Scope
from flowactions_plugin.origins import kind_of
from tests.chatting import refusing
from tests.plugin.chat.test_queued import Queued, queued_host
from tests.support import a_walk
from tests.telemetry import Recorded
from tests.waiting import until

WORKSPACE = "chat://T0000ACME"
URL = f"{WORKSPACE}/C00ORDERS"


@pytest.fixture
async def queued(sqlite_url: str) -> Any:
    async with queued_host(sqlite_url) as running:
        yield running


@pytest.mark.parametrize(
    ("asked", "delay"), [(None, 1.0), (0.2, 1.0), (30.0, 30.0), (86_400.0, 86_400.0), (1e9, 86_400.0)]
)
def test_a_limited_channel_waits_as_long_as_the_provider_asks(asked: float | None, delay: float) -> None:
    """At least a second, and at most a day. The refusal counts as no attempt."""
    sender = QueuedSender(NotConfigured("x"), lambda: 0.0)
    found = sender._refused(cast("Waiting", None), ChatRefused("ratelimited", asked), 0, 1.0)
    assert isinstance(found, Aborted)
    assert (found.delay, found.failure) == (delay, CHAT_LIMITED)


def test_a_destination_has_a_kind() -> None:
    """By its scheme alone."""
    assert [kind_of(each) for each in (URL, WORKSPACE, "https://chat:443", "http://a:80", "t", "")] == [
        *["chat"] * 2,
        *["http"] * 4,
    ]


def test_a_person_names_a_workspace_by_its_destination_or_a_url() -> None:
    """In pauses, filters, *Find* and commands; everything else is parsed as ever."""
    assert destination_of(WORKSPACE) == destination_of(URL) == destination_of(f"{URL}/x") == WORKSPACE
    assert destination_of("https://A.example/x") == "https://a.example:443"
    assert value_of(BY_NAME["destination"], URL) == WORKSPACE
    for wrong in ("chat://", "chat:///C1", "chat://a b/c", "chat:T1", "chat://é", f"chat://{'x' * 766}"):
        with pytest.raises(EgressRefused):
            destination_of(wrong)


def test_ids_of_chat_are_not_masked() -> None:
    """No part of such a URL is a credential, however random an id looks."""
    strange = "chat://T0A1B2C3D4E5F6G7H8/C0a1B2c3D4e5F6g7H8"
    assert masked_url(strange) == strange
    assert masked_url(strange.replace("chat:", "https:")) != strange.replace("chat:", "https:")


def test_curl_posts_to_no_workspace() -> None:
    """The provider's API is not told by the row, and its token is no one's to paste."""
    assert commands("POST", URL, [], "{}") is None


def test_whether_a_message_can_have_arrived() -> None:
    """No status code says so: a message that was refused was answered."""
    assert certainty(None, None, None, "chat") == "answered"
    assert certainty(None, "not_in_channel: Invite the app.", None, "chat") == "answered"
    for code in ("unreachable", "maybe_posted"):
        assert certainty(None, f"{code}: …", None, "chat") == "sent, no answer"


async def test_the_pages_show_a_message_and_no_request(queued: Queued) -> None:
    """Neither curl nor signature nor *Send again*; an attempt was posted, or not."""
    posted = await queued.message(chatMessageText="Tea is ready")
    refused = await queued.message(chatChannelId="C00RANDOM")
    await queued.ended(posted)
    await queued.ended(refused)
    pages = {}
    for row_id in (posted, refused):
        answer = await queued.run.browser.get(f"/integrations/webhooks/deliveries/{row_id}")
        assert answer.status_code == 200
        pages[row_id] = answer.text
        for absent in ("curl", "x-service-webhook", "no answer", "signed", "Send again", "POST"):
            assert absent not in answer.text
        assert "Message</h2>" in answer.text
    assert ">posted</span>" in pages[posted]
    assert "Tea is ready" in pages[posted]
    assert ">not posted</span>" in pages[refused]
    assert "Invite the app to the channel first." in pages[refused]
    assert "Retry" in pages[refused]
    shown = (await queued.run.browser.get(f"/v1/webhooks/outbox/{posted}")).json()["data"]
    assert (shown["url"], shown["origin"]["kind"]) == (URL, "chat_node")


async def test_find_and_filters_lead_to_messages(queued: Queued) -> None:
    """By workspace, by type, and by kind of failure."""
    refused = await queued.message(chatChannelId="C00RANDOM")
    await queued.ended(refused)
    for text in (WORKSPACE, f"{WORKSPACE}/C00RANDOM"):
        found = await queued.run.browser.get("/integrations/webhooks/find", params={"q": text})
        assert found.status_code == 303
        assert "destination" in found.headers["location"]
    for words in (f"destination:{WORKSPACE}", "type:experience.flow_node.chat_message", "error:chat_refused"):
        (row,) = (await queued.services._insights.deliveries(Scope("acme"), parse(words), None, 10)).rows
        assert row.id == refused


async def test_it_says_why_a_message_waits(queued: Queued) -> None:
    """In words about the message, not about a host or a backoff."""
    queued.fault(refusing("ratelimited", 429))
    row_id = await queued.message()
    await queued.waits(row_id, "chat_limited")
    await queued.execute("UPDATE flowactions_outbox SET next_attempt_at = next_attempt_at + 60000")
    found = await queued.services._insights.delivery(Scope("acme"), row_id)
    assert found is not None
    assert "It waits, without using up an attempt, and it is tried again in " in found.why
    assert "throttling" in found.why
    await queued.execute(
        "UPDATE flowactions_outbox SET waiting_since = created_at, last_error = 'chat is not set up in this process'"
    )
    found = await queued.services._insights.delivery(Scope("acme"), row_id)
    assert found is not None
    assert found.why.startswith("It waits for the chat settings of a worker since ")


async def test_the_host_learns_where_a_message_came_from(queued: Queued) -> None:
    """By an origin of its own, when it has ended."""
    row_id = await queued.message(chatChannelId="C00RANDOM")
    await until(lambda: queued.run.host.finished)
    (told,) = queued.run.host.finished
    assert (told.id, told.status, told.status_code) == (row_id, "dead", None)
    assert told.origin == ChatNodeOrigin(
        organization_id="acme", agent_id="agent-1", flow_id="flow-1", node_id="n"
    )
    assert told.error == "not_in_channel: Invite the app to the channel first."


async def test_an_attempt_is_a_span_without_attributes_of_http(sqlite_url: str) -> None:
    """It continues the trace of its node, and sends none."""
    recorded = Recorded()
    async with queued_host(sqlite_url, recorded=recorded) as queued:
        result = await queued.run.actions.reach(
            a_walk(),
            Node(id="n", type="chat_message", config={"chatChannelId": "C00ORDERS", "chatMessageText": "hi"}),
        )
        await queued.ended(str(result.delivery_id))
        await until(lambda: recorded.spans("chat"))
    (span,), (enqueued,) = recorded.spans("chat"), recorded.spans("enqueue outbox")
    assert span.parent is not None
    assert span.parent.span_id == enqueued.context.span_id
    attributes = dict(span.attributes or {})
    assert not [name for name in attributes if name.startswith(("http.", "url.", "server."))]
    assert attributes["flowactions.outcome"] == "delivered"
