from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
from sqlalchemy import text

from flowactions_conformance.chat_provider import FakeChatProvider, Fault
from flowactions_conformance.chat_provider.faults import RATE_LIMITED
from flowactions_conformance.serving import serve
from flowactions_hookspecs import FlowActions, Node, NodeResult
from flowactions_plugin.chat.failures import ADVICE, PERMANENT, TRANSIENT
from flowactions_plugin.settings import read_settings
from flowactions_plugin.storage.database import Database
from tests.support import SmallHost, a_walk, development, until

DOWN = Fault(503, b"<html>down</html>")


class Running:
    """A host that is connected to a fake workspace."""

    def __init__(self, actions: FlowActions, provider: FakeChatProvider) -> None:
        self.actions = actions
        self.provider = provider

    async def reach(self, config: dict[str, Any], **walk: Any) -> NodeResult:
        return await self.actions.reach(a_walk(**walk), Node(id="n1", type="chat_message", config=config))

    async def to_channel(self, **more: Any) -> NodeResult:
        return await self.reach({"chatChannelId": "C0ORDERS", "chatMessageText": "hi", **more})

    @property
    def texts(self) -> list[tuple[str, str]]:
        return [(message.channel, message.text) for message in self.provider.messages]

    @property
    def posts(self) -> int:
        return self.provider.calls.count("chat.postMessage")


async def adopt(actions: FlowActions) -> str:
    """Connect with the static token; give where the browser ends up."""
    transport = httpx.ASGITransport(app=actions.asgi_app())  # type: ignore[arg-type]
    async with httpx.AsyncClient(transport=transport, base_url="http://host") as client:
        started = await client.get("/integrations/chat/install")
        assert started.status_code == 302
        ended = await client.get(started.headers["location"])
        assert ended.status_code == 303
        return ended.headers["location"]


def chat_settings(database_url: str, provider_url: str, token: str) -> dict[str, str]:
    return development(
        database_url,
        CHAT_BOT_TOKEN=token,
        CHAT_API_URL=f"{provider_url}/api/",
        BACKEND_PUBLIC_URL="http://host",
    )


@pytest.fixture
async def run(database_url: str, tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Running]:
    monkeypatch.chdir(tmp_path)  # the development key file
    provider = FakeChatProvider()
    token = provider.state.add_token(provider.state.workspaces[0])
    async with serve(provider.app) as url:
        actions = FlowActions.load(SmallHost(chat_settings(database_url, url, token.value)))
        async with actions.lifespan():
            assert await adopt(actions) == "http://host/connections?chat=connected"
            provider.calls.clear()
            yield Running(actions, provider)


class TestSending:
    async def test_a_message_is_posted_to_its_channel(
        self, run: Running, caplog: pytest.LogCaptureFixture
    ) -> None:
        """The message arrives, and the log says so in the exact words of §6.3."""
        caplog.set_level(logging.INFO)
        result = await run.to_channel(chatMessageText=" *{{userId}}*: {{content}} ", chatActionType="channel")
        assert (result.status, result.reason, result.halt) == ("sent", None, False)
        assert run.texts == [("#orders", "*user-1*: hello")]
        assert "chat_message node n1 sent" in [record.getMessage() for record in caplog.records]

    async def test_a_direct_message_opens_the_channel_first(self, run: Running) -> None:
        """With dm, the member gets the message (§2.1)."""
        result = await run.reach({"chatActionType": "dm", "chatUserId": "U0GRACE", "chatMessageText": "psst"})
        assert result.status == "sent"
        assert run.texts == [("@grace", "psst")]

    @pytest.mark.parametrize("kind", ["Channel", "DM", "", None, 7, ["dm"]])
    async def test_any_other_action_type_is_channel(self, run: Running, kind: Any) -> None:
        """Any value other than "dm" is treated as "channel" (§2.1)."""
        assert (await run.to_channel(chatActionType=kind, chatUserId="U0GRACE")).status == "sent"
        assert run.texts == [("#orders", "hi")]

    async def test_what_an_end_user_writes_arrives_as_text(self, run: Running) -> None:
        """An end user can neither ping people nor fake links."""
        await run.reach(
            {"chatChannelId": "C0ORDERS", "chatMessageText": "{{content}}"},
            content="<!channel> <@U1> <https://x|y> & *b*",
        )
        assert run.texts[0][1] == "&lt;!channel&gt; &lt;@U1&gt; &lt;https://x|y&gt; &amp; *b*"

    async def test_a_long_message_is_cut(self, run: Running) -> None:
        """4000 characters stay."""
        await run.to_channel(chatMessageText="a" * 4001)
        assert len(run.texts[0][1]) == 4000


class TestFailing:
    @pytest.mark.parametrize(
        ("config", "reason"),
        [
            ({"chatMessageText": "hi"}, "missing_target"),
            ({"chatMessageText": "hi", "chatChannelId": "  "}, "missing_target"),
            ({"chatMessageText": "hi", "chatChannelId": None}, "missing_target"),
            ({"chatMessageText": "hi", "chatUserId": "U0GRACE"}, "missing_target"),
            (
                {"chatMessageText": "hi", "chatActionType": "dm", "chatChannelId": "C0ORDERS"},
                "missing_target",
            ),
            ({"chatChannelId": "C0ORDERS"}, "empty_message"),
            ({"chatChannelId": "C0ORDERS", "chatMessageText": " \n "}, "empty_message"),
            ({"chatChannelId": "C0ORDERS", "chatMessageText": "{{content}}"}, "empty_message"),
            ({"chatChannelId": "C0RANDOM", "chatMessageText": "hi"}, "send_failed"),
            ({"chatActionType": "dm", "chatUserId": "U0ROBOT", "chatMessageText": "hi"}, "send_failed"),
        ],
    )
    @pytest.mark.parametrize("proceed", [None, True, False, "false", 0])
    async def test_it_fails_open_and_says_why_in_the_log(
        self,
        run: Running,
        config: dict[str, Any],
        reason: str,
        proceed: Any,
        caplog: pytest.LogCaptureFixture,
    ) -> None:
        """A failure is logged in the exact words of §6.3 and halts only on an explicit false (§7.1)."""
        if proceed is not None:
            config = {**config, "chatContinueOnFailure": proceed}
        result = await run.reach(config, content=" ")
        assert (result.status, result.reason) == ("failed", reason)
        assert result.halt is (proceed is False)
        assert f"chat_message node n1 not sent: {reason}" in [r.getMessage() for r in caplog.records]

    @pytest.mark.parametrize(
        ("config", "advice"),
        [
            ({"chatChannelId": "C0RANDOM"}, "Invite the app to the channel first."),
            ({"chatActionType": "dm", "chatUserId": "U0ROBOT"}, "Direct messages to bots are not possible"),
        ],
    )
    async def test_the_result_says_what_a_person_should_do(
        self, run: Running, config: dict[str, Any], advice: str
    ) -> None:
        """The message of a refused send is advice, not a code (§7.1)."""
        result = await run.reach({"chatMessageText": "hi", **config})
        assert advice in (result.message or "")

    async def test_a_missing_scope_tells_to_reconnect(self, run: Running) -> None:
        """A permission that the token predates needs a new install (§7.1)."""
        run.provider.state.tokens_of(run.provider.state.workspaces[0])[0].scopes = ("users:read",)
        assert "Reconnect" in ((await run.to_channel()).message or "")

    async def test_without_a_connection_nothing_is_tried(
        self,
        database_url: str,
        tmp_path: Any,
        monkeypatch: pytest.MonkeyPatch,
        caplog: pytest.LogCaptureFixture,
    ) -> None:
        """An organization without a connection fails with not_connected, configured or not."""
        monkeypatch.chdir(tmp_path)
        configured = chat_settings(database_url, "http://127.0.0.1:1", "xoxb-1")
        for settings in (configured, development(database_url)):
            actions = FlowActions.load(SmallHost(settings))
            async with actions.lifespan():
                node = Node(id="n1", type="chat_message", config={"chatMessageText": "hi"})
                result = await actions.reach(a_walk(), node)
            assert (result.status, result.reason, result.halt) == ("failed", "not_connected", False)

    async def test_after_a_revocation_sends_fail_and_the_card_says_to_reconnect(self, run: Running) -> None:
        """A dead token marks the connection, so the dashboard can tell (§6.2)."""
        for token in run.provider.state.tokens_of(run.provider.state.workspaces[0]):
            token.dead = "token_revoked"
        assert (await run.to_channel()).reason == "send_failed"
        assert "Reconnect" in ((await run.to_channel()).message or "")
        assert run.posts == 1
        transport = httpx.ASGITransport(app=run.actions.asgi_app())  # type: ignore[arg-type]
        async with httpx.AsyncClient(transport=transport, base_url="http://host") as client:
            card = (await client.get("/integrations/chat/connection")).json()["data"]
        assert (card["status"], card["statusReason"]) == ("revoked", "token_revoked")
        assert "Reconnect" in card["advice"]


class TestRetrying:
    async def test_a_passing_failure_is_retried_when_asked(self, run: Running) -> None:
        """Up to four attempts, together with continue-on-failure (§7.1, §8)."""
        run.provider.faults["chat.postMessage"].extend([DOWN, DOWN, DOWN])
        result = await run.to_channel(chatRetryOnFailure=True, chatContinueOnFailure=True)
        assert (result.status, run.posts) == ("sent", 4)

    async def test_four_attempts_are_the_most(self, run: Running) -> None:
        """After the fourth failure the node has failed."""
        run.provider.faults["chat.postMessage"].extend([DOWN] * 5)
        result = await run.to_channel(chatRetryOnFailure=True)
        assert (result.reason, run.posts) == ("send_failed", 4)

    async def test_without_retry_there_is_one_attempt(self, run: Running) -> None:
        """Retry is off by default (§2.1)."""
        run.provider.faults["chat.postMessage"].append(DOWN)
        assert ((await run.to_channel()).reason, run.posts) == ("send_failed", 1)

    async def test_what_needs_a_person_is_not_retried(self, run: Running) -> None:
        """not_in_channel does not pass by itself."""
        result = await run.to_channel(chatChannelId="C0RANDOM", chatRetryOnFailure=True)
        assert (result.reason, run.posts) == ("send_failed", 1)

    async def test_throttling_is_waited_for(self, run: Running) -> None:
        """A Retry-After of a second is honoured."""
        run.provider.faults["chat.postMessage"].append(RATE_LIMITED)
        assert ((await run.to_channel(chatRetryOnFailure=True)).status, run.posts) == ("sent", 2)

    async def test_only_the_post_is_repeated(self, run: Running) -> None:
        """A direct message whose post fails does not open its channel again."""
        run.provider.faults["chat.postMessage"].append(DOWN)
        config = {"chatActionType": "dm", "chatUserId": "U0GRACE", "chatMessageText": "hi"}
        await run.reach({**config, "chatRetryOnFailure": True})
        assert run.provider.calls.count("conversations.open") == 1
        assert run.texts == [("@grace", "hi")]


class TestDeferred:
    """A chat message in a client-paced flow."""

    async def record(self, run: Running) -> Any:
        walk = a_walk(pacing="deferred", next_step_id="s")
        config = {"chatChannelId": "C0ORDERS", "chatMessageText": "hi"}
        assert (
            await run.actions.reach(walk, Node(id="n1", type="chat_message", config=config))
        ).status == "recorded"
        return walk

    async def test_racing_advances_send_once(self, run: Running) -> None:
        """However many calls race, one message is posted (§3.2)."""
        walk = await self.record(run)
        found = await asyncio.gather(*(run.actions.advance(walk, "s") for _ in range(10)))
        assert [result.status for results in found for result in results] == ["sent"]
        assert run.texts == [("#orders", "hi")]
        assert await run.actions.advance(walk, "s") == []

    async def test_a_message_that_was_interrupted_is_not_lost(self, run: Running, database_url: str) -> None:
        """A process that ends in the middle leaves the record; it is sent again, but not at once."""
        walk = await self.record(run)
        run.provider.faults["chat.postMessage"].append(Fault(200, b"{}", delay=30))
        interrupted = asyncio.create_task(run.actions.advance(walk, "s"))
        await until(lambda: run.posts)
        interrupted.cancel()
        await asyncio.wait({interrupted})
        assert await run.actions.advance(walk, "s") == []
        settings = read_settings({"FLOWACTIONS_DATABASE_URL": database_url})
        async with Database(settings.database_url) as database, database.write() as connection:
            await connection.execute(text("UPDATE flowactions_deferred SET held_until = 0"))
        (result,) = await run.actions.advance(walk, "s")
        assert result.status == "sent"
        assert run.texts == [("#orders", "hi")]
        assert await run.actions.advance(walk, "s") == []


def test_every_code_is_either_passing_or_lasting_and_has_advice() -> None:
    """The two sets do not overlap, and a lasting refusal always says what to do."""
    assert not TRANSIENT & PERMANENT
    assert all(ADVICE[code].endswith(".") for code in PERMANENT)
