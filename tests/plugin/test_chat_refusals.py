from __future__ import annotations

import asyncio
import base64
import gc
import json
import resource
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from sqlalchemy import text
from sqlalchemy.ext.asyncio import create_async_engine

from flowactions_conformance.chat_provider import FakeChatProvider, Fault
from flowactions_conformance.chat_provider.faults import RATE_LIMITED
from flowactions_conformance.serving import serve
from flowactions_hookspecs import FlowActions, Node
from flowactions_plugin.chat.connection import SEND_SECONDS
from flowactions_plugin.chat.store import ConnectionStore
from flowactions_plugin.errors import StorageUnavailable
from tests.chatting import Adopted, adopt, adopted, adopting_settings
from tests.support import SmallHost, a_walk, until
from tests.waiting import SAFETY_SECONDS, within

DOWN = Fault(503, b"<html>down</html>")


@pytest.fixture
async def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Adopted]:
    monkeypatch.chdir(tmp_path)  # the development key file
    async with adopted(f"sqlite:///{tmp_path / 'f.db'}") as running:
        yield running


JSON = (("content-type", "application/json;charset=utf-8"),)


def refusal(code: str) -> Fault:
    return Fault(200, json.dumps({"ok": False, "error": code}).encode(), JSON)


RECONNECT = "Reconnect the chat workspace."
ASK = "Ask an administrator of the chat workspace"
LATER = "try again later."
LASTING = {
    "invalid_auth": RECONNECT,
    "not_authed": RECONNECT,
    "account_inactive": RECONNECT,
    "token_revoked": RECONNECT,
    "token_expired": RECONNECT,
    "missing_scope": RECONNECT,
    "no_permission": RECONNECT,
    "not_allowed_token_type": RECONNECT,
    "not_in_channel": "Invite the app to the channel first.",
    "channel_not_found": "choose another channel or invite the app.",
    "is_archived": "choose another one.",
    "restricted_action": "choose another one.",
    "restricted_action_read_only_channel": "choose another one.",
    "restricted_action_thread_only_channel": "choose another one.",
    "restricted_action_non_threadable_channel": "choose another one.",
    "cannot_dm_bot": "choose a person.",
    "user_not_found": "choose another one.",
    "user_not_visible": "choose another one.",
    "user_disabled": "choose another one.",
    "messages_tab_disabled": "turn it on",
    "no_text": "write a text.",
    "msg_too_long": "shorten it.",
    "access_denied": ASK,
    "enterprise_is_restricted": ASK,
    "ekm_access_denied": ASK,
    "team_access_not_granted": ASK,
    "message_limit_exceeded": "ask an administrator",
}
PASSING = {
    "ratelimited": (refusal("ratelimited"), "throttling"),
    "rate_limited": (refusal("rate_limited"), "throttling"),
    "429": (RATE_LIMITED, "throttling"),
    "429 without anything": (Fault(429), "throttling"),
    "429 in HTML": (Fault(429, b"<html>slow down</html>", (("retry-after", "soon"),)), "throttling"),
    "service_unavailable": (refusal("service_unavailable"), LATER),
    "502": (Fault(502), LATER),
    "503": (DOWN, LATER),
    "504": (Fault(504, b"{}", JSON), LATER),
    "request_timeout": (refusal("request_timeout"), LATER),
    "internal_error": (refusal("internal_error"), LATER),
    "fatal_error": (refusal("fatal_error"), LATER),
    "no answer": (Fault(0), LATER),
    "no JSON": (Fault(200, b"not json", JSON), LATER),
    "JSON, but no object": (Fault(200, b"[1]", JSON), LATER),
    "an unknown code": (refusal("something_new"), "something_new"),
}


class TestCodes:
    """Every code of the provider that matters: retried or not, how often, reason and message."""

    @pytest.mark.parametrize("code", LASTING)
    async def test_what_lasts_fails_at_once_and_says_what_to_do(self, run: Adopted, code: str) -> None:
        """One attempt although retry is on (§7.1)."""
        run.provider.faults["chat.postMessage"].extend([refusal(code)] * 5)
        result = await run.to_channel(chatRetryOnFailure=True)
        assert (result.status, result.reason, result.halt, run.posts) == ("failed", "send_failed", False, 1)
        assert LASTING[code] in (result.message or "")

    @pytest.mark.parametrize("name", PASSING)
    async def test_what_passes_is_tried_four_times(
        self, run: Adopted, name: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Four attempts with retry, in time; one without; and the fourth may succeed (§8)."""
        monkeypatch.setattr("flowactions_plugin.chat.connection.RETRY_DELAYS", (0.01, 0.02, 0.03))
        # That there is time for all attempts is not left to the machine.
        monkeypatch.setattr("flowactions_plugin.chat.connection.SEND_SECONDS", SAFETY_SECONDS)
        fault, message = PASSING[name]
        posts = run.provider.faults["chat.postMessage"]
        posts.append(fault)
        result = await run.to_channel(chatContinueOnFailure=False)
        assert (result.reason, result.halt, run.posts) == ("send_failed", True, 1)
        assert message in (result.message or "")
        posts.extend([fault] * 4)
        async with within(SEND_SECONDS):
            result = await run.to_channel(chatRetryOnFailure=True)
        assert (result.reason, run.posts) == ("send_failed", 5)
        assert message in (result.message or "")
        posts.extend([fault] * 3)
        assert ((await run.to_channel(chatRetryOnFailure=True)).status, run.posts) == ("sent", 9)

    @pytest.mark.parametrize("code", ["user_not_found", "cannot_dm_bot", "missing_scope", "fatal_error"])
    async def test_a_direct_channel_that_cannot_be_opened_is_not_posted_to(
        self, run: Adopted, code: str
    ) -> None:
        """Opening is tried once: only the post is repeated."""
        run.provider.faults["conversations.open"].append(refusal(code))
        config = {"chatActionType": "dm", "chatUserId": "U0GRACE", "chatMessageText": "hi"}
        result = await run.reach({**config, "chatRetryOnFailure": True})
        assert (result.reason, run.posts) == ("send_failed", 0)
        assert run.provider.calls == ["conversations.open"]

    async def test_nothing_of_it_is_for_the_end_user(self, run: Adopted) -> None:
        """A walk gets the result; what is shown is the host's, and a result has no text but the author's advice."""
        run.provider.faults["chat.postMessage"].append(refusal("xoxb-secret " + "<script>" * 100))
        result = await run.to_channel()
        assert len(result.message or "") < 200


class TestBounds:
    """However slow or busy the provider, a walk is held for a few seconds at the most."""

    SLOW = Fault(200, b'{"ok":true}', JSON, delay=SEND_SECONDS + 10)

    @pytest.mark.parametrize("retry", [True, False])
    async def test_a_provider_that_does_not_answer_holds_nobody(self, run: Adopted, retry: bool) -> None:
        """Also when the next attempt would be as slow."""
        run.provider.faults["chat.postMessage"].extend([self.SLOW] * 4)
        async with within(SEND_SECONDS + 0.5):
            result = await run.to_channel(chatRetryOnFailure=retry)
        assert (result.reason, LATER in (result.message or "")) == ("send_failed", True)

    @pytest.mark.parametrize(("asked", "posts"), [("2", 4), ("3", 2), ("4", 1), ("86400", 1), ("-1", 4)])
    async def test_a_wait_is_honoured_as_far_as_there_is_time(
        self, run: Adopted, asked: str, posts: int
    ) -> None:
        """Longer waits end the sending at once, instead of holding the walk for nothing."""
        fault = RATE_LIMITED._replace(headers=(("retry-after", asked), *JSON))
        run.provider.faults["chat.postMessage"].extend([fault] * 4)
        async with within(SEND_SECONDS):
            result = await run.to_channel(chatRetryOnFailure=True)
        assert (result.reason, "throttling" in (result.message or "")) == ("send_failed", True)
        assert run.posts <= posts

    async def test_five_hundred_walks_at_once_meet_a_throttled_provider(self, run: Adopted) -> None:
        """Each ends within the bound with a result, and nothing is left behind."""
        run.provider.faults["chat.postMessage"].extend([RATE_LIMITED] * 10_000)
        memory_after = []
        for _ in range(2):
            async with within(SEND_SECONDS + 1):
                results = await asyncio.gather(*(run.to_channel(chatRetryOnFailure=True) for _ in range(500)))
            assert {(result.status, result.reason, result.halt) for result in results} == {
                ("failed", "send_failed", False)
            }
            gc.collect()
            memory_after.append(memory())
        assert memory_after[1] - memory_after[0] < 10 * 1024 * 1024

    async def test_a_hosts_own_transaction_is_not_waited_for(self, tmp_path: Path) -> None:
        """On SQLite the host holds the write lock while the node notes that its token is dead."""
        engine = create_async_engine(f"sqlite+aiosqlite:///{tmp_path / 'shared.db'}")
        async with engine.connect() as connection:
            await connection.exec_driver_sql("PRAGMA journal_mode = WAL")
        provider = FakeChatProvider()
        token = provider.state.add_token(provider.state.workspaces[0])
        async with serve(provider.app) as url:
            key = base64.b64encode(b"k" * 32).decode()
            settings = adopting_settings("", url, token.value) | {"FLOWACTIONS_ENCRYPTION_KEYS": key}
            del settings["FLOWACTIONS_DATABASE_URL"]
            actions = FlowActions.load(SmallHost(settings, database=engine))
            async with actions.lifespan():
                await adopt(actions)
                token.dead = "token_revoked"
                async with engine.connect() as connection:
                    await connection.exec_driver_sql("BEGIN IMMEDIATE")
                    config = {"chatChannelId": "C0ORDERS", "chatMessageText": "hi"}
                    node = Node(id="n", type="chat_message", config=config)
                    async with within(2):
                        result = await actions.reach(a_walk(connection=connection), node)
                    assert result.reason == "send_failed"
                    await connection.rollback()

                async def noted() -> bool:
                    async with engine.connect() as connection:
                        query = text("SELECT status FROM flowactions_chat_connections")
                        return bool((await connection.execute(query)).scalar_one() == "revoked")

                await until(noted)
        await engine.dispose()

    async def test_a_database_that_is_away_is_a_failed_send(
        self, run: Adopted, caplog: pytest.LogCaptureFixture
    ) -> None:
        """It is told in the words of §6.3, and halts a walk whose author asked for that."""

        async def away(self: ConnectionStore, organization_id: str) -> None:
            raise StorageUnavailable("the database failed: it is away")

        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(ConnectionStore, "get", away)
            result = await run.to_channel(chatContinueOnFailure=False)
        assert (result.status, result.reason, result.halt) == ("failed", "send_failed", True)
        assert "chat_message node n1 not sent: send_failed" in caplog.messages


def memory() -> int:
    """Give the resident memory of this process in bytes."""
    fields = Path("/proc/self/statm").read_text().split()
    return int(fields[1]) * resource.getpagesize()
