from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from sqlalchemy.ext.asyncio import create_async_engine

from flowactions_conformance.chat_provider import Fault
from flowactions_conformance.chat_provider.faults import RATE_LIMITED
from flowactions_hookspecs import Deferred, Node
from flowactions_plugin.chat.calls import SEND_SECONDS, ProviderCalls
from flowactions_plugin.chat.failures import FOR_OPERATORS, ChatRefused
from flowactions_plugin.chat.store import ConnectionStore, StoredConnection
from flowactions_plugin.errors import StorageUnavailable
from tests.chatting import JSON, Adopted, adopted, chat_host, refusing
from tests.rings import sampled
from tests.support import a_walk
from tests.waiting import SAFETY_SECONDS, within

DOWN = Fault(503, b"<html>down</html>")
TO_CHANNEL = {"chatChannelId": "C00ORDERS", "chatMessageText": "hi"}
DIRECT = {"chatActionType": "dm", "chatUserId": "U000GRACE", "chatMessageText": "hi"}


@pytest.fixture
async def run(sqlite_url: str) -> AsyncIterator[Adopted]:
    async with adopted(sqlite_url) as running:
        yield running


RECONNECT = "Reconnect the chat workspace."
ASK = "Ask an administrator of the chat workspace"
LATER = "try again later."
LASTING = {
    "invalid_auth": RECONNECT,
    "not_authed": "Ask the people who operate this service.",
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
    "ratelimited": (refusing("ratelimited"), "throttling"),
    "rate_limited": (refusing("rate_limited"), "throttling"),
    "429": (RATE_LIMITED, "throttling"),
    "429 without anything": (Fault(429), "throttling"),
    "429 in HTML": (Fault(429, b"<html>slow down</html>", (("retry-after", "soon"),)), "throttling"),
    "service_unavailable": (refusing("service_unavailable"), LATER),
    "502": (Fault(502), LATER),
    "503": (DOWN, LATER),
    "504": (Fault(504, b"{}", JSON), LATER),
    "request_timeout": (refusing("request_timeout"), LATER),
    "internal_error": (refusing("internal_error"), LATER),
    "fatal_error": (refusing("fatal_error"), LATER),
    "a cut answer": (Fault(0), LATER),
    "an unknown code": (refusing("something_new"), "something_new"),
}


def test_each_code_is_lasting_or_passing() -> None:
    """Which attempts are repeated is told of every code; one that nobody knows may pass (§8)."""
    codes = {name for name, (fault, _) in PASSING.items() if fault == refusing(name)} | {"something_new"}
    assert codes > {"fatal_error", "internal_error", "ratelimited", "request_timeout"}
    assert [code for code in sorted(codes) if not ChatRefused(code).transient] == []
    assert [code for code in LASTING if ChatRefused(code).transient] == []


class TestCodes:
    """Every code of the provider that matters: retried or not, how often, reason and message."""

    async def test_a_permanent_error_is_not_retried(self, run: Adopted) -> None:
        """One attempt although retry is on, with advice (§7.1)."""
        for code, advice in LASTING.items():
            run.provider.calls.clear()
            run.provider.faults["chat.postMessage"].append(refusing(code))
            result = await run.to_channel(chatRetryOnFailure=True)
            assert (result.status, result.reason, result.halt) == ("failed", "send_failed", False), code
            assert (advice in (result.message or ""), run.posts) == (True, 1), code

    @sampled("name", PASSING, size=4)
    @pytest.mark.parametrize(
        ("method", "config"), [("chat.postMessage", TO_CHANNEL), ("conversations.open", DIRECT)]
    )
    async def test_a_transient_error_is_attempted_four_times(
        self, run: Adopted, method: str, config: dict[str, Any], name: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Four attempts with retry; one without; and the fourth may succeed: to post, and to open a direct channel (§8)."""
        monkeypatch.setattr("flowactions_plugin.chat.calls.RETRY_DELAYS", (0.01, 0.02, 0.03))
        # That there is time for all attempts is not left to the machine.
        monkeypatch.setattr("flowactions_plugin.nodes.chat_message.SEND_SECONDS", SAFETY_SECONDS)
        fault, message = PASSING[name]
        for retries, faults, attempts in ((False, 1, 1), (True, 4, 4), (True, 3, 4)):
            run.provider.calls.clear()
            run.provider.faults[method].extend([fault] * faults)
            async with within(SEND_SECONDS):
                result = await run.reach(
                    {**config, "chatRetryOnFailure": retries, "chatContinueOnFailure": False}
                )
            succeeds = attempts > faults
            assert result.status == ("sent" if succeeds else "failed")
            assert (result.halt, run.provider.calls.count(method)) == (not succeeds, attempts)
            assert succeeds or (result.reason, message in (result.message or "")) == ("send_failed", True)
            assert run.posts == (attempts if method == "chat.postMessage" else succeeds)

    async def test_a_permanent_error_of_opening_a_channel_ends_the_message(self, run: Adopted) -> None:
        """As a permanent error of the post does."""
        run.provider.faults["conversations.open"].append(refusing("user_not_found"))
        result = await run.reach({**DIRECT, "chatRetryOnFailure": True})
        assert (result.reason, run.provider.calls) == ("send_failed", ["conversations.open"])
        assert LASTING["user_not_found"] in (result.message or "")

    @pytest.mark.ci
    async def test_an_opened_channel_is_reused_by_later_attempts(self, run: Adopted) -> None:
        """Opening and posting share the four attempts."""
        run.provider.faults["conversations.open"].extend([DOWN, DOWN])
        run.provider.faults["chat.postMessage"].extend([DOWN, DOWN])
        result = await run.reach({**DIRECT, "chatRetryOnFailure": True})
        assert result.reason == "send_failed"
        assert run.provider.calls == ["conversations.open"] * 3 + ["chat.postMessage"] * 2

    async def test_a_failure_has_no_text_for_the_end_user(self, run: Adopted) -> None:
        """A result has only the author's advice."""
        run.provider.faults["chat.postMessage"].append(refusing("xoxb-secret " + "<script>" * 100))
        result = await run.to_channel()
        assert len(result.message or "") < 200


@pytest.mark.ci
class TestBounds:
    """However slow or busy the provider, a walk is held for a few seconds at the most."""

    SLOW = Fault(200, b'{"ok":true}', JSON, delay=SEND_SECONDS + 10)

    @pytest.mark.parametrize("retry", [True, False])
    async def test_a_provider_that_does_not_answer_delays_a_walk_for_six_seconds(
        self, run: Adopted, retry: bool
    ) -> None:
        """Also when the next attempt would be as slow."""
        run.provider.faults["chat.postMessage"].extend([self.SLOW] * 4)
        async with within(SEND_SECONDS + 0.5):
            result = await run.to_channel(chatRetryOnFailure=retry)
        assert (result.reason, LATER in (result.message or "")) == ("send_failed", True)

    @pytest.mark.parametrize("proceed", [True, False])
    async def test_a_database_that_hangs_is_subject_to_the_same_deadline(
        self, postgres_url: str, proceed: bool
    ) -> None:
        """With the table locked: eager, deferred, and in the host's own transaction, which stays usable."""
        engine = create_async_engine(postgres_url.replace("postgresql:", "postgresql+asyncpg:", 1))
        config = {"chatChannelId": "C00ORDERS", "chatMessageText": "hi", "chatContinueOnFailure": proceed}
        node = Node(id="n", type="chat_message", config=config)
        failed = ("send_failed", not proceed)
        async with adopted("", database=engine) as run:
            deferred = a_walk(pacing=Deferred("s"))
            await run.actions.reach(deferred, node)
            async with engine.connect() as locking:
                await locking.exec_driver_sql(
                    "LOCK TABLE flowactions_chat_connections IN ACCESS EXCLUSIVE MODE"
                )
                async with held_for_six_seconds():
                    eager, joined, advanced = await asyncio.gather(
                        run.actions.reach(a_walk(), node),
                        run.actions.reach(a_walk(), node, locking),
                        run.actions.advance(deferred, "s"),
                    )
                (later,) = advanced.results
                for result in (eager, joined, later):
                    assert (result.reason, result.halt) == failed
                    assert "database" in (result.message or "")
                assert (await locking.exec_driver_sql("SELECT 1")).scalar_one() == 1
                await locking.rollback()
            assert (await run.actions.advance(deferred, "s")).results == ()
            assert run.posts == 0
            assert (await run.actions.reach(a_walk(), node)).status == "sent"
        await engine.dispose()

    async def test_a_locked_file_is_subject_to_the_same_deadline(self, tmp_path: Path) -> None:
        """On SQLite without WAL, as a host may have it, a writer blocks readers."""
        engine = create_async_engine(
            f"sqlite+aiosqlite:///{tmp_path / 'shared.db'}", connect_args={"timeout": 60}
        )
        async with adopted("", database=engine) as run:
            async with engine.connect() as locking:
                await locking.exec_driver_sql("PRAGMA journal_mode = DELETE")
                await locking.exec_driver_sql("BEGIN EXCLUSIVE")
                async with held_for_six_seconds():
                    result = await run.to_channel(chatContinueOnFailure=False)
                assert (result.reason, result.halt) == ("send_failed", True)
                await locking.rollback()
            assert (await run.to_channel()).status == "sent"
        await engine.dispose()

    async def test_what_is_written_in_the_background_fails_with_a_line(
        self, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        """Of an unexpected error, its type alone. Which connections were written about lately is remembered for some only."""
        errors: list[Exception] = [StorageUnavailable("it is away"), LookupError("xoxb-hush")]

        async def record_failure(*_: object) -> None:
            raise errors.pop()

        monkeypatch.setattr("flowactions_plugin.chat.calls.MOST_REMEMBERED", 1)
        store = cast("ConnectionStore", SimpleNamespace(record_failure=record_failure))
        calls = ProviderCalls(store, record_failure)
        for install in ("i", "i", "j"):
            stored = cast(
                "StoredConnection", SimpleNamespace(organization_id="acme", install_id=install, team_id="T1")
            )
            calls.record_failure(stored, "channel_not_found", ("f", "n"))
            await calls.aclose()
        said = "the state of team T1 could not be stored: "
        assert caplog.messages == [f"{said}LookupError", f"{said}it is away"]
        assert len(calls._failures) == 1

    @pytest.mark.parametrize("halts", [True, False])
    @pytest.mark.parametrize(
        "error", [StorageUnavailable("the database failed: it is away"), LookupError("xoxb-hush")]
    )
    async def test_a_database_that_fails_is_a_failed_send(
        self, run: Adopted, caplog: pytest.LogCaptureFixture, error: Exception, halts: bool
    ) -> None:
        """With the line of §6.3, halting if the author asked for that; of an unexpected error, type and location and no message."""

        async def fails(self: ConnectionStore, organization_id: str) -> None:
            raise error

        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(ConnectionStore, "get", fails)
            result = await run.to_channel(chatContinueOnFailure=not halts)
        assert (result.status, result.reason, result.halt) == ("failed", "send_failed", halts)
        assert "chat_message node n1 not sent: send_failed" in caplog.messages
        is_expected = isinstance(error, StorageUnavailable)
        assert is_expected or f"LookupError at {Path(__file__).name}:" in caplog.text
        assert "xoxb-hush" not in caplog.text + str(result)


class TestLog:
    """What an operator finds beside the exact lines of §6.3."""

    async def test_code_and_advice_are_logged_in_a_separate_line(
        self, run: Adopted, caplog: pytest.LogCaptureFixture
    ) -> None:
        """With the organization; the specified line is unchanged."""
        run.provider.faults["chat.postMessage"].extend(
            [refusing("not_in_channel"), DOWN, Fault(200, b"[1]", JSON)]
        )
        cases: list[tuple[str, str, dict[str, str]]] = [
            ("send_failed", "not_in_channel: Invite the app to the channel first.", {}),
            (
                "send_failed",
                "unreachable (HTTP status 503): The chat provider did not answer: try again later.",
                {},
            ),
            (
                "send_failed",
                f"maybe_posted (the answer is no JSON object): {FOR_OPERATORS['maybe_posted']}",
                {},
            ),
            ("missing_target", "missing_target: Choose a channel.", {"chatChannelId": " "}),
            (
                "empty_message",
                "empty_message: The message is empty: write a text.",
                {"chatMessageText": " "},
            ),
        ]
        for reason, said, config in cases:
            caplog.clear()
            await run.to_channel(**config)
            own = [record.getMessage() for record in caplog.records if record.name.startswith("flowactions")]
            assert own == [
                f"chat_message node n1 not sent: {reason}",
                f"chat_message node n1 of organization acme: {said}",
            ]

    @sampled(
        "forged",
        ["n\nchat_message node m sent", "n\r\n", "n\u2028m", "n\x1b[2J", "n\u202em"],
        size=2,
    )
    async def test_an_id_cannot_forge_a_log_line(
        self, run: Adopted, caplog: pytest.LogCaptureFixture, forged: str
    ) -> None:
        """Whatever a node's id is, each message is one line and names it (§6.3)."""
        caplog.set_level(logging.INFO, "flowactions")
        node = Node(
            id=forged, type="chat_message", config={"chatChannelId": "C00ORDERS", "chatMessageText": "hi"}
        )
        result = await run.actions.reach(a_walk(), node)
        assert (result.node_id, result.status) == (forged, "sent")
        run.provider.faults["chat.postMessage"].append(refusing("is_archived"))
        await run.actions.reach(a_walk(), node)
        escaped = forged.encode("unicode_escape").decode()
        ours = [record.getMessage() for record in caplog.records if record.name == "flowactions"]
        assert ours[:2] == [
            f"chat_message node {escaped} sent",
            f"chat_message node {escaped} not sent: send_failed",
        ]
        assert all(message.isprintable() for message in ours)

    async def test_an_organization_id_cannot_forge_a_log_line(
        self, sqlite_url: str, caplog: pytest.LogCaptureFixture
    ) -> None:
        """Connecting, sending, being revoked, disconnecting and failing to connect log one line each."""
        caplog.set_level(logging.DEBUG, "flowactions")
        async with chat_host(sqlite_url) as run:
            run.sign_in("acme\nforged")
            await run.connect()
            await run.message("acme\nforged", chatChannelId="C00RANDOM")
            run.provider.faults["auth.revoke"].append(DOWN)
            await run.browser.delete("/integrations/chat/connection")
            run.provider.faults["oauth.v2.access"].append(DOWN)
            await run.connect()
        ours = [record.getMessage() for record in caplog.records if record.name.startswith("flowactions")]
        assert len([message for message in ours if "acme\\nforged" in message]) >= 4
        assert all(message.isprintable() for message in ours)


@asynccontextmanager
async def held_for_six_seconds() -> AsyncIterator[None]:
    """Check that what is done within takes as long as a message may; who waits for the lock takes 30 s and more."""
    started = time.monotonic()
    async with within(2 * SEND_SECONDS):
        yield
    assert time.monotonic() - started > SEND_SECONDS - 0.1
