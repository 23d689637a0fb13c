"""A token that the provider refuses: whose answer that is, who asks again, and what ends it (§6.2, §7.1)."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any, cast

import pytest
from sqlalchemy import insert, text, update

from flowactions_conformance.chat_provider import Fault, Gate
from flowactions_plugin.chat.calls import ProviderCalls
from flowactions_plugin.chat.failures import ADVICE, FOR_OPERATORS, ChatRefused
from flowactions_plugin.chat.store import ConnectionStore, StoredConnection
from flowactions_plugin.cli.checks import Checks, check_chat
from flowactions_plugin.cli.context import CommandContext
from flowactions_plugin.settings.model import read_settings
from flowactions_plugin.storage.database import Database
from flowactions_plugin.storage.schema import chat_connections
from tests.chatting import JSON, ChatHost, chat_host, refusing
from tests.plugin.chat.test_events import send, status, uninstalled
from tests.plugin.stored import a_connection
from tests.queueing import Queue
from tests.rings import sampled
from tests.support import hurry, services_of
from tests.waiting import until

CODES = ("invalid_auth", "token_revoked", "token_expired", "account_inactive")
DIRECT = {"chatActionType": "dm", "chatUserId": "U000GRACE"}


@pytest.fixture
async def run(database_url: str, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[ChatHost]:
    """A host whose chat workspace is connected."""
    hurry(monkeypatch, "refused chat tokens")
    async with chat_host(database_url, FLOWACTIONS_ENCRYPTION_KEYS="A" * 43 + "=") as running:
        await running.connect()
        running.provider.calls.clear()
        yield running


def answering(**changes: Any) -> Fault:
    said = {"ok": True, "team": "Acme", "team_id": "T0000ACME", "user_id": "UBOTACME", **changes}
    return Fault(200, json.dumps(said).encode(), JSON)


async def is_revoked(run: ChatHost) -> bool:
    return bool((await run.card())["status"] == "revoked")


async def is_active(run: ChatHost) -> bool:
    return bool((await run.card())["status"] == "active")


async def let_time_pass(run: ChatHost, minutes: float = 1) -> None:
    passed = "UPDATE flowactions_chat_connections SET ask_at = ask_at - :ms, revoked_at = revoked_at - :ms"
    async with services_of(run.host)._database.write() as connection:
        await connection.execute(text(passed), {"ms": round(minutes * 60_000)})


async def refused(run: ChatHost, code: str = "invalid_auth") -> None:
    """Let a message and the question after it be refused."""
    for token in run.provider.state.tokens_of(run.provider.state.workspaces[0]):
        token.dead = code
    assert (await run.message()).reason == "send_failed"
    await until(lambda: is_revoked(run))


def accept(run: ChatHost) -> None:
    for token in run.provider.state.tokens_of(run.provider.state.workspaces[0]):
        token.dead = None


async def kept(run: ChatHost) -> StoredConnection:
    found = await ConnectionStore(services_of(run.host)._database).get("acme")
    assert found is not None
    return found


async def wait_ms(run: ChatHost) -> int:
    """Return how long after the refusal the provider is asked again."""
    stored = await kept(run)
    return (stored.ask_at or 0) - (stored.revoked_at or 0)


class TestOneWrongAnswer:
    @sampled("code", CODES, size=2)
    @pytest.mark.parametrize("method", ["chat.postMessage", "conversations.open", "users.list"])
    async def test_it_ends_no_chat(self, run: ChatHost, method: str, code: str) -> None:
        """The message says what §7.1 says; the provider's auth test accepts the token, and the next message is sent."""
        run.provider.faults[method].append(refusing(code))
        if method == "users.list":
            assert (await run.browser.get("/integrations/chat/members")).status_code == 502
        else:
            result = await run.message(**DIRECT)
            assert (result.reason, result.message) == ("send_failed", ADVICE[code])
        await run.settled()
        assert run.provider.calls[-1] == "auth.test"
        assert (await run.message(**DIRECT)).status == "sent"
        assert await is_active(run)

    @pytest.mark.parametrize(
        "said",
        [
            pytest.param(refusing("not_authed"), id="the token was lost on the way"),
            pytest.param(Fault(503), id="no answer"),
            pytest.param(refusing("invalid_auth", 401), id="a gateway's"),
            pytest.param(refusing("invalid_auth", 407), id="the egress proxy's"),
            pytest.param(refusing("invalid_auth", ok=None), id="a portal's"),
            pytest.param(answering(team_id="T00GLOBEX"), id="about another workspace"),
        ],
    )
    async def test_only_the_providers_own_answer_is_believed(self, run: ChatHost, said: Fault) -> None:
        """Whatever else answers the question after a refusal, the connection stays active."""
        run.provider.faults["chat.postMessage"].append(refusing("invalid_auth"))
        run.provider.faults["auth.test"].append(said)
        assert (await run.message()).reason == "send_failed"
        await run.settled()
        assert run.provider.calls == ["chat.postMessage", "auth.test"]
        assert (await run.message()).status == "sent"
        assert await is_active(run)

    @pytest.mark.parametrize(
        "said", [refusing("not_authed"), refusing("invalid_auth", 403), refusing("token_revoked", ok="false")]
    )
    async def test_what_no_provider_says_asks_nothing(self, run: ChatHost, said: Fault) -> None:
        """Not even a question follows: a token is sent with each call, and the provider refuses with 200 and ok false."""
        run.provider.faults["chat.postMessage"].append(said)
        result = await run.message()
        assert "Reconnect" not in (result.message or "")
        await run.settled()
        assert run.provider.calls == ["chat.postMessage"]
        assert await is_active(run)

    async def test_it_is_asked_once_for_any_number_of_refused_messages(self, run: ChatHost) -> None:
        """While it is under way, nobody asks again."""
        run.provider.faults["chat.postMessage"].extend([refusing("invalid_auth")] * 5)
        held = Gate()
        run.provider.faults["auth.test"].append(Fault(passes=True, gate=held))
        assert {(await run.message()).reason for _ in range(5)} == {"send_failed"}
        held.opened.set()
        await run.settled()
        assert run.provider.calls.count("auth.test") == 1

    async def test_no_call_waits_for_the_question(self) -> None:
        """It is asked in the background; the host's end waits for it."""
        may_write, written = asyncio.Event(), asyncio.Event()

        async def verify(_: StoredConnection) -> None:
            await may_write.wait()
            written.set()

        async def refuse() -> None:
            raise ChatRefused("invalid_auth")

        calls = ProviderCalls(cast("ConnectionStore", None), verify)
        stored = cast("StoredConnection", SimpleNamespace(organization_id="acme", install_id="i"))
        async with asyncio.timeout(300):
            with pytest.raises(ChatRefused, match="no longer accepts"):
                await calls.make(stored, asyncio.get_running_loop().time() + 300, refuse(), ())
        assert not written.is_set()
        may_write.set()
        await calls.aclose()
        assert written.is_set()

    async def test_a_token_that_was_replaced_meanwhile_is_not_meant(self, run: ChatHost) -> None:
        """The answer about an earlier token marks no later installation."""
        run.provider.faults["chat.postMessage"].append(refusing("invalid_auth"))
        held = Gate()
        run.provider.faults["auth.test"].append(refusing("invalid_auth")._replace(gate=held))
        await run.message()
        await held.reached.wait()
        await run.connect()
        held.opened.set()
        await run.settled()
        assert await is_active(run)


class TestAskedAgain:
    async def test_after_1_10_and_60_minutes_and_then_hourly(self, queue: Queue) -> None:
        """Counted from the refusal; what was missed is not made up for."""
        store = ConnectionStore(queue.database)
        connection = a_connection("acme", install_id="i", status="revoked")
        async with queue.database.write() as transaction:
            await transaction.execute(insert(chat_connections).values(connection))
        for minutes, later in ((1, 10), (9, 10), (10, 60), (59, 60), (60, 120), (500, 560)):
            now = int(await queue.database.time() * 1000)
            refused_at = now - minutes * 60_000
            async with queue.database.write() as transaction:
                times = {"ask_at": now, "revoked_at": refused_at}
                await transaction.execute(update(chat_connections).values(times))
            (asked,) = await store.claim_refused()
            assert round(((asked.ask_at or 0) - refused_at) / 60_000) == later
            assert await store.claim_refused() == ()

    async def test_until_it_accepts_the_token_and_then_nobody_reconnects(self, run: ChatHost) -> None:
        """Meanwhile messages fail without a call, and card and page say that it is asked again."""
        await refused(run)
        assert await wait_ms(run) == 60_000
        run.provider.calls.clear()
        assert (await run.message()).message == ADVICE["invalid_auth"]
        assert run.provider.calls == []
        assert "you need not reconnect" in (await run.card())["advice"]
        assert "asked again" in (await run.browser.get("/integrations/webhooks/connections")).text
        await let_time_pass(run)

        async def is_asked() -> bool:
            return await wait_ms(run) == 600_000

        await until(is_asked)
        await run.settled()
        assert run.provider.calls == ["auth.test"]
        assert await is_revoked(run)
        accept(run)
        await let_time_pass(run, 9)
        await until(lambda: is_active(run))
        assert (await run.message()).status == "sent"
        assert (await run.card())["advice"] is None

    async def test_of_several_processes_one_asks(self, run: ChatHost) -> None:
        """The time stands in the record."""
        await refused(run)
        settings = read_settings(run.host.settings)
        run.provider.calls.clear()
        async with Database(settings.database_url) as one, Database(settings.database_url) as two:
            stores = [ConnectionStore(one), ConnectionStore(two)] * 3
            await let_time_pass(run)
            claims = await asyncio.gather(*(store.claim_refused() for store in stores))
            assert [len(await store.claim_refused()) for store in stores] == [0] * 6
        await run.settled()
        assert sum(map(len, claims)) + run.provider.calls.count("auth.test") == 1

    async def test_a_message_that_succeeds_meanwhile_ends_it(self, run: ChatHost) -> None:
        """One that was on its way when the token was refused."""
        held = Gate()
        run.provider.faults["chat.postMessage"].extend(
            [Fault(passes=True, gate=held), refusing("invalid_auth")]
        )
        run.provider.faults["auth.test"].append(refusing("invalid_auth"))
        slow = asyncio.create_task(run.message())
        await held.reached.wait()
        await run.message()
        await until(lambda: is_revoked(run))
        held.opened.set()
        assert (await slow).status == "sent"
        await until(lambda: is_active(run))
        assert run.provider.calls.count("auth.test") == 1  # and nobody has asked again

    async def test_what_the_workspace_revokes_is_final(self, run: ChatHost) -> None:
        """Before and after the refusal: its event is believed, and nobody is asked. Another refusal postpones nothing."""
        await refused(run)
        before, store = await kept(run), ConnectionStore(services_of(run.host)._database)
        await let_time_pass(run, 0.5)  # so that it is not yet time to ask
        await store.refused(before, "invalid_auth")
        assert (await kept(run)).ask_at == (before.ask_at or 0) - 30_000
        assert (await send(run, uninstalled())).status_code == 200
        assert await status(run, "acme") == ("revoked", "app_uninstalled")
        assert "need not" not in (await run.card())["advice"]
        stored = await kept(run)
        assert stored.ask_at is None
        assert not await store.accepted(stored)
        await store.refused(stored, "invalid_auth")
        assert (await kept(run)).ask_at is None
        accept(run)
        assert await is_revoked(run)

    async def test_a_shared_workspaces_token_is_not_revoked_while_another_waits(self, run: ChatHost) -> None:
        """The organization that waits needs it when the provider accepts it again; without it, the token is revoked."""
        run.sign_in("globex")
        await run.connect()
        run.sign_in("acme")
        await refused(run)
        accept(run)
        run.sign_in("globex")
        await run.browser.delete("/integrations/chat/connection")
        assert "auth.revoke" not in run.provider.calls
        run.sign_in("acme")
        await run.browser.delete("/integrations/chat/connection")
        assert "auth.revoke" in run.provider.calls

    async def test_doctor_asks_too(self, run: ChatHost) -> None:
        """What is accepted again is active at once, and not told any more; an answer about another workspace counts for nothing."""
        await refused(run)
        settings = read_settings(run.host.settings)

        async def told() -> list[str]:
            checks = Checks()
            await check_chat(checks, CommandContext(None, settings, services_of(run.host)._database))
            return [each.message for each in checks.found]

        assert (await told())[0] == "organization acme: invalid_auth"
        run.provider.faults["auth.test"].append(answering(team_id="T00GLOBEX"))
        assert (await told())[0] == "organization acme: unreachable"
        assert await is_revoked(run)
        accept(run)
        assert await told() == ["the provider accepts 1 of 1 tokens"]
        assert await is_active(run)


async def test_a_token_that_expires_is_not_connected(run: ChatHost, caplog: pytest.LogCaptureFixture) -> None:
    """With token rotation an install ends with a reason of its own, and the log says what to turn off (§2.2)."""
    body = {"ok": True, "access_token": "xoxe.xoxb-1", "expires_in": 43200, "refresh_token": "xoxe-1"}
    run.provider.faults["oauth.v2.access"].append(Fault(200, json.dumps(body).encode(), JSON))
    assert await run.connect() == {"chat": "error", "reason": "token_rotation"}
    assert FOR_OPERATORS["token_rotation"] in caplog.text
    assert "auth.revoke" not in run.provider.calls
    assert (await run.message()).status == "sent"
