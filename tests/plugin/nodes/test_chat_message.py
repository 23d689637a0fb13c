from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import AsyncIterator
from typing import Any

import pytest

from flowactions_conformance.chat_provider import Fault, Gate
from flowactions_hookspecs import Advanced, Deferred, FlowActions, Node, NodeDraft
from flowactions_plugin.chat.failures import (
    ADVICE,
    FOR_OPERATORS,
    PERMANENT,
    TRANSIENT,
    advice,
    advice_for_operators,
)
from flowactions_plugin.nodes.chat_message import QUEUED
from flowactions_plugin.settings.model import READERS
from tests.chatting import Adopted, adopted, adopting_settings
from tests.rings import sampled
from tests.support import SmallHost, a_walk, development


@pytest.fixture
async def run(database_url: str, tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Adopted]:
    monkeypatch.chdir(tmp_path)  # the development key file
    async with adopted(database_url) as running:
        yield running


class TestSending:
    async def test_a_message_is_posted_to_its_channel(
        self, run: Adopted, caplog: pytest.LogCaptureFixture
    ) -> None:
        """The message arrives, and the log says so in the exact words of §6.3."""
        caplog.set_level(logging.INFO)
        result = await run.to_channel(chatMessageText=" *{{userId}}*: {{content}} ", chatActionType="channel")
        assert (result.status, result.reason, result.halt) == ("sent", None, False)
        assert run.texts == [("#orders", "*user-1*: hello")]
        assert "chat_message node n1 sent" in [record.getMessage() for record in caplog.records]

    async def test_a_direct_message_opens_the_channel_first(self, run: Adopted) -> None:
        """With dm, the member gets the message (§2.1)."""
        result = await run.reach({"chatActionType": "dm", "chatUserId": "U000GRACE", "chatMessageText": "psst"})
        assert result.status == "sent"
        assert run.texts == [("@grace", "psst")]

    @sampled("kind", ["Channel", "DM", "", None, 7, ["dm"]], size=3)
    async def test_any_other_action_type_is_channel(self, run: Adopted, kind: Any) -> None:
        """Any value other than "dm" is treated as "channel" (§2.1)."""
        assert (await run.to_channel(chatActionType=kind, chatUserId="U000GRACE")).status == "sent"
        assert run.texts == [("#orders", "hi")]

    async def test_a_long_message_is_cut(self, run: Adopted) -> None:
        """4000 characters stay (§2.1), and the author is told: by the preview with these values, and by the result."""
        for number, said in ((4000, None), (4001, "The message is cut at 4000 characters.")):
            walk = a_walk(content="c" * number)
            node = Node(
                id="n1",
                type="chat_message",
                config={"chatChannelId": "C00ORDERS", "chatMessageText": "{{content}}"},
            )
            draft = NodeDraft(organization_id="acme", agent_id="agent-1", node=node)
            preview = await run.actions.preview(draft, walk)
            assert [each.message for each in preview.problems] == ([said] if said else [])
            result = await run.actions.reach(walk, node)
            assert (result.status, result.message) == ("sent", said)
            assert len(run.texts[-1][1]) == 4000


class TestFailing:
    @pytest.mark.parametrize(
        ("config", "reason"),
        [
            ({"chatMessageText": "hi"}, "missing_target"),
            ({"chatMessageText": "hi", "chatChannelId": "  "}, "missing_target"),
            ({"chatMessageText": "hi", "chatChannelId": None}, "missing_target"),
            ({"chatMessageText": "hi", "chatUserId": "U000GRACE"}, "missing_target"),
            (
                {"chatMessageText": "hi", "chatActionType": "dm", "chatChannelId": "C00ORDERS"},
                "missing_target",
            ),
            ({"chatChannelId": "C00ORDERS"}, "empty_message"),
            ({"chatChannelId": "C00ORDERS", "chatMessageText": " \n "}, "empty_message"),
            ({"chatChannelId": "C00ORDERS", "chatMessageText": "{{content}}"}, "empty_message"),
            ({"chatChannelId": "C00RANDOM", "chatMessageText": "hi"}, "send_failed"),
            ({"chatActionType": "dm", "chatUserId": "U000ROBOT", "chatMessageText": "hi"}, "send_failed"),
        ],
    )
    async def test_it_fails_open_and_says_why_in_the_log(
        self, run: Adopted, config: dict[str, Any], reason: str, caplog: pytest.LogCaptureFixture
    ) -> None:
        """A failure is logged in the exact words of §6.3 and halts only on an explicit false (§7.1)."""
        for proceed in ({}, *({"chatContinueOnFailure": value} for value in (True, False, None, "false", 0))):
            caplog.clear()
            result = await run.reach({**config, **proceed}, content=" ")
            assert (result.status, result.reason) == ("failed", reason)
            assert result.halt is (proceed.get("chatContinueOnFailure") is False)
            assert f"chat_message node n1 not sent: {reason}" in caplog.messages

    async def test_without_a_connection_nothing_is_tried(
        self,
        database_url: str,
        tmp_path: Any,
        monkeypatch: pytest.MonkeyPatch,
        caplog: pytest.LogCaptureFixture,
    ) -> None:
        """An organization without a connection fails with not_connected, configured or not."""
        monkeypatch.chdir(tmp_path)
        configured = adopting_settings(database_url, "http://127.0.0.1:1", "xoxb-1")
        for settings in (configured, development(database_url)):
            actions = FlowActions.load(SmallHost(settings))
            async with actions.lifespan():
                node = Node(id="n1", type="chat_message", config={"chatMessageText": "hi"})
                result = await actions.reach(a_walk(), node)
            assert (result.status, result.reason, result.halt) == ("failed", "not_connected", False)


class TestDeferred:
    """A chat message in a client-paced flow."""

    async def record(self, run: Adopted) -> Any:
        walk = a_walk(pacing=Deferred("s"))
        config = {"chatChannelId": "C00ORDERS", "chatMessageText": "hi"}
        assert (
            await run.actions.reach(walk, Node(id="n1", type="chat_message", config=config))
        ).status == "recorded"
        return walk

    async def test_a_message_that_was_interrupted_is_not_lost(self, run: Adopted, database_url: str) -> None:
        """A call that ends in the middle leaves the record, and no lease: the next one sends the message again (§3.2)."""
        walk = await self.record(run)
        held = Gate()
        run.provider.faults["chat.postMessage"].append(Fault(200, b"{}", gate=held))
        interrupted = asyncio.create_task(run.actions.advance(walk, "s"))
        await held.reached.wait()
        interrupted.cancel()
        await asyncio.wait({interrupted})
        held.opened.set()
        (result,) = (await run.actions.advance(walk, "s")).results
        assert result.status == "sent"
        assert run.texts == [("#orders", "hi")]
        assert await run.actions.advance(walk, "s") == Advanced(state="done")


def test_every_code_is_either_passing_or_lasting_and_has_advice() -> None:
    """The two sets do not overlap, and a lasting refusal always says what to do."""
    assert not TRANSIENT & PERMANENT
    assert all(ADVICE[code].endswith(".") for code in PERMANENT | TRANSIENT)


def test_no_advice_for_authors_names_a_setting() -> None:
    """Who operates the service finds it in the log and in `doctor`, in words of their own."""
    named = re.compile("|".join(READERS))
    assert [said for said in ADVICE.values() if named.search(said)] == []
    for code, said in FOR_OPERATORS.items():
        assert named.search(said)
        assert advice(code) == ADVICE[code] != advice_for_operators(code) == said


@pytest.mark.parametrize("delivery", ["direct", "queued"])
def test_the_form_says_what_its_delivery_does(delivery: str) -> None:
    """Whether a message is posted at once or queued."""
    host = SmallHost({"FLOWACTIONS_CHAT_DELIVERY": delivery})
    fields = FlowActions.load(host).node_types["chat_message"].describe()["configSchema"]["properties"]
    for name, said in QUEUED.items():
        assert (fields[name]["description"] == said) == (delivery == "queued")
