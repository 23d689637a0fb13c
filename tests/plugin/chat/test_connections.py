from __future__ import annotations

import asyncio
import base64
import json
import sqlite3
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from flowactions_conformance.chat_provider import FakeChatProvider, Fault
from flowactions_hookspecs import FlowActions, Node
from flowactions_plugin.chat.failures import ADVICE, FOR_OPERATORS
from flowactions_plugin.chat.store import ConnectionStore
from flowactions_plugin.chat.tokens import TOKEN_PURPOSE, reseal
from flowactions_plugin.cli import main
from flowactions_plugin.nodes.chat_message import NOT_SET_UP
from flowactions_plugin.storage.sealing import KeyRing
from tests.chatting import JSON, SCOPES, ChatHost, adopted, chat_host, chat_settings, refusing
from tests.rings import sampled
from tests.support import SmallHost, a_walk
from tests.waiting import until


class TestScopes:
    """What is said to be missing: the callback's end and the card agree, whatever the provider says."""

    FULL, PART = SCOPES, "chat:write,channels:read"

    def says(self, run: ChatHost, header: str | None, field: str | None) -> None:
        """Have the provider name the scopes in the header of the test, and in the exchange's answer, or not at all."""
        (token,) = run.provider.state.tokens_of(run.provider.state.workspaces[0]) or [
            run.provider.state.add_token(run.provider.state.workspaces[0])
        ]
        exchanged = {"ok": True, "access_token": token.value, "app_id": "A0FAKE"}
        if field is not None:
            exchanged["scope"] = field
        tested = {"ok": True, "team": "Acme", "team_id": "T0000ACME", "user_id": "UBOT000ACME"}
        headers = (*JSON,) if header is None else (*JSON, ("x-oauth-scopes", header))
        run.provider.faults["oauth.v2.access"].append(Fault(200, json.dumps(exchanged).encode(), (*JSON,)))
        run.provider.faults["auth.test"].extend([Fault(200, json.dumps(tested).encode(), headers)] * 2)

    async def test_callback_and_card_report_the_same_scopes(self, run: ChatHost) -> None:
        """From the header; without it, from the exchange's answer; without both, none counts as missing."""
        for header, field in (
            (None, None),
            ("", ""),
            ("", self.PART),
            (None, self.FULL),
            (self.PART, self.FULL),
            (self.FULL.replace(",", ", "), self.PART),
        ):
            self.says(run, header, field)
            end = await run.connect()
            card = await run.card()
            granted = (header or field or "").replace(" ", "")
            missing = ["groups:read", "users:read", "im:write"] if granted == self.PART else []
            assert card["missingScopes"] == missing
            assert card["scopes"] == (granted.split(",") if granted else [])
            assert (card["status"], card["advice"] is not None) == ("active", bool(missing))
            assert end == ({"chat": "error", "reason": "missing_scope"} if missing else {"chat": "connected"})

    async def test_a_scope_that_a_call_lacks_is_shown_on_the_card(self, run: ChatHost) -> None:
        """The connection stays active, and the scope is removed when a call succeeds."""
        await run.connect()
        (token,) = run.provider.state.tokens_of(run.provider.state.workspaces[0])
        direct = {"chatActionType": "dm", "chatUserId": "U000GRACE"}
        token.scopes = ("channels:read", "groups:read")
        assert "Reconnect" in ((await run.message()).message or "")
        assert (await run.message(**direct)).reason == "send_failed"
        assert (await run.browser.get("/integrations/chat/members")).status_code == 502
        await run.settled()
        card = await run.card()
        assert (card["status"], card["statusReason"]) == ("active", None)
        assert card["missingScopes"] == ["chat:write", "users:read", "im:write"]
        assert card["scopes"] == ["channels:read", "groups:read"]
        assert "Reconnect" in card["advice"]
        token.scopes = tuple(SCOPES.split(","))
        assert (await run.message(**direct)).status == "sent"

        async def only_users() -> bool:
            return bool((await run.card())["missingScopes"] == ["users:read"])

        await until(only_users)
        await run.connect()
        card = await run.card()
        assert (card["missingScopes"], card["advice"], card["scopes"]) == ([], None, SCOPES.split(","))

    @pytest.mark.parametrize(
        ("more", "missing"),
        [
            ({}, ["chat:write"]),
            ({"needed": None}, ["chat:write"]),
            ({"needed": 7, "provided": ["chat:write"]}, ["chat:write"]),
            ({"needed": "chat:write,im:write", "provided": "im:write,users:read"}, ["chat:write"]),
            ({"needed": "chat:write.public, chat:write"}, ["chat:write", "chat:write.public"]),
            ({"needed": "\ud800,<script>,a b\u0000,chat:write," + "x" * 101}, ["chat:write", "a"]),
            ({"needed": ",".join(f"s{at}" for at in range(5000))}, [f"s{at}" for at in range(100)]),
        ],
    )
    async def test_the_providers_missing_scopes_are_validated(
        self, run: ChatHost, more: dict[str, Any], missing: list[str]
    ) -> None:
        """Only well-formed scopes are stored, and the call's own scope when the provider names none."""
        await run.connect()
        run.provider.faults["chat.postMessage"].append(refusing("missing_scope", **more))
        assert (await run.message()).reason == "send_failed"
        await run.settled()
        assert (await run.card())["missingScopes"] == missing
        assert (await run.message()).status == "sent"

        async def cleared() -> bool:
            left = (await run.card())["missingScopes"]
            return not any(scope.startswith("chat:write") for scope in left)

        await until(cleared)

    async def test_a_known_missing_scope_is_not_written_again(
        self, run: ChatHost, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A flow that keeps failing costs one write, and one that works none."""
        await run.connect()
        change, writes = ConnectionStore.change_missing_scopes, 0

        async def counted(self: ConnectionStore, *given: Any) -> None:
            nonlocal writes
            writes += 1
            await change(self, *given)

        monkeypatch.setattr(ConnectionStore, "change_missing_scopes", counted)
        for _ in range(3):
            assert (await run.message()).status == "sent"
        assert writes == 0
        (token,) = run.provider.state.tokens_of(run.provider.state.workspaces[0])
        token.scopes = ("im:write",)
        for _ in range(3):
            assert (await run.message()).reason == "send_failed"
            await run.settled()
        assert writes == 1


class TestStaticToken:
    @pytest.mark.parametrize(("environment", "with_app"), [("production", True), ("", False)])
    async def test_a_static_token_outside_development_makes_chat_unavailable(
        self, sqlite_url: str, environment: str, with_app: bool
    ) -> None:
        """Routes name the setting, the node names none; with an app configured or not, everything else works (§5.5)."""
        settings = chat_settings(
            sqlite_url,
            "http://127.0.0.1:1",
            CHAT_BOT_TOKEN="xoxb-hush",
            FLOWACTIONS_ENVIRONMENT=environment,
            FLOWACTIONS_ENCRYPTION_KEYS=base64.b64encode(b"k" * 32).decode(),
        )
        if not with_app:
            del settings["CHAT_CLIENT_ID"], settings["CHAT_CLIENT_SECRET"]
        actions = FlowActions.load(SmallHost(settings))
        assert not actions.node_types["chat_message"].available
        assert actions.node_types["chat_message"].unavailable_reason == NOT_SET_UP
        assert actions.node_types["webhook"].available
        async with actions.lifespan():
            run = ChatHost(SmallHost(), actions, FakeChatProvider())
            for path in ("install", "connection", "callback", "channels", "members"):
                answer = await run.browser.get(f"/integrations/chat/{path}")
                assert (answer.status_code, answer.json()["code"]) == (503, "not_configured")
                assert "CHAT_BOT_TOKEN" in answer.json()["detail"]
                assert "FLOWACTIONS_ENVIRONMENT=development" in answer.json()["detail"]
                assert "xoxb-hush" not in answer.text
            result = await run.message()
            assert (result.reason, result.halt) == ("not_connected", False)
            assert (await run.browser.get("/v1/webhooks/outbox")).status_code == 200


class TestTenancy:
    async def test_every_agent_of_the_organization_can_use_it(self, run: ChatHost) -> None:
        """One install serves all agents of the organization, and those of no other (§2.2)."""
        await run.connect()
        node = Node(id="n", type="chat_message", config={"chatChannelId": "C00ORDERS", "chatMessageText": "hi"})
        walks = [a_walk(organization_id="acme", agent_id=agent) for agent in ("a1", "a2", "made later")]
        assert {(await run.actions.reach(walk, node)).status for walk in walks} == {"sent"}
        other = await run.actions.reach(a_walk(organization_id="globex", agent_id="a1"), node)
        assert other.reason == "not_connected"

    async def test_organizations_are_separate(self, run: ChatHost) -> None:
        """Each organization sends with its own workspace, and sees its own card."""
        await run.connect()
        run.sign_in("globex")
        assert await run.card() is None
        await run.connect(workspace="T00GLOBEX")
        node = Node(id="n", type="chat_message", config={"chatChannelId": "C00ORDERS", "chatMessageText": "hi"})
        await run.actions.reach(a_walk(organization_id="acme"), node)
        await run.actions.reach(a_walk(organization_id="globex"), node)
        assert [message.workspace for message in run.provider.messages] == ["Acme", "Globex"]
        await run.browser.delete("/integrations/chat/connection")
        assert await run.card() is None
        run.sign_in("acme")
        assert (await run.card())["workspace"]["name"] == "Acme"

    async def test_a_token_moved_to_another_row_does_not_open(self, tmp_path: Path) -> None:
        """A writer of the database cannot make one organization use another's token (§2.2)."""
        async with adopted(f"sqlite:///{tmp_path / 'f.db'}") as run:
            with sqlite3.connect(tmp_path / "f.db") as database:
                database.execute("UPDATE flowactions_chat_connections SET organization_id = 'globex'")
            config = {"chatChannelId": "C00ORDERS", "chatMessageText": "x"}
            result = await run.reach(config, organization_id="globex")
            assert (result.reason, run.provider.calls) == ("send_failed", [])

    async def test_two_organizations_can_share_a_workspace(self, run: ChatHost) -> None:
        """Cards and channels are separate; when one disconnects, the other continues to send."""
        await run.connect()
        await run.browser.put("/integrations/chat/connection/default-channel", json={"channelId": "C0GENERAL"})
        run.sign_in("globex")
        assert await run.card() is None
        await run.connect()
        card = await run.card()
        assert (card["installedBy"]["id"], card["defaultChannel"], card["agents"]) == ("u", None, [])
        assert (await run.browser.delete("/integrations/chat/connection")).status_code == 204
        assert await run.card() is None
        assert (await run.message("globex")).reason == "not_connected"
        assert (await run.message("acme")).status == "sent"
        run.sign_in("acme")
        assert (await run.card())["defaultChannel"] == "C0GENERAL"
        await run.browser.delete("/integrations/chat/connection")
        assert not run.provider.state.is_installed(run.provider.state.workspaces[0])

    async def test_the_static_token_is_never_revoked(self, sqlite_url: str) -> None:
        """Disconnecting does not revoke a token that no install created."""
        async with adopted(sqlite_url) as run:
            browser = ChatHost(SmallHost(), run.actions, run.provider).browser
            assert (await browser.delete("/integrations/chat/connection")).status_code == 204
            assert (await browser.get("/integrations/chat/connection")).json() == {"data": None}
            assert run.provider.calls == []


class TestKeys:
    """What the database gives to whoever has the keys, and to whoever has not."""

    OLD, NEW = (base64.b64encode(bytes([number]) * 32).decode() for number in (1, 2))

    async def test_without_its_key_a_connection_is_unusable(
        self,
        database_url: str,
        caplog: pytest.LogCaptureFixture,
    ) -> None:
        """Card, test send, picker and node say what to do; the log says it to operators, and names the setting."""
        async with chat_host(database_url, FLOWACTIONS_ENCRYPTION_KEYS=self.OLD) as run:
            await run.connect()
            await run.browser.put(
                "/integrations/chat/connection/default-channel", json={"channelId": "C0GENERAL"}
            )
        async with chat_host(database_url, FLOWACTIONS_ENCRYPTION_KEYS=self.NEW) as run:
            card = await run.card()
            assert (card["status"], card["statusReason"]) == ("unusable", "token_unreadable")
            assert card["advice"] == ADVICE["token_unreadable"]
            sent = await run.browser.post("/integrations/chat/send-message", json={"text": "x"})
            assert sent.json()["data"]["error"] == "token_unreadable"
            assert (await run.browser.get("/integrations/chat/channels")).status_code == 502
            result = await run.message()
            assert (result.reason, result.message) == ("send_failed", ADVICE["token_unreadable"])
            assert FOR_OPERATORS["token_unreadable"] in caplog.text
            assert run.provider.calls == []
            assert (await run.browser.delete("/integrations/chat/connection")).status_code == 204

    async def test_resealing_goes_over_all_pages_of_tokens(self) -> None:
        """However many organizations there are; the second time, nothing is left to do."""
        old, both = KeyRing([b"1" * 32]), KeyRing([b"2" * 32, b"1" * 32])
        sealed = {name: old.seal("xoxb-1", name, TOKEN_PURPOSE) for name in "abcde"}

        async def page(after: str, _most: int) -> list[tuple[str, bytes]]:
            return [(name, value) for name, value in sealed.items() if name > after][:2]

        async def change(name: str, _before: bytes, value: bytes) -> bool:
            sealed[name] = value
            return True

        store = cast("ConnectionStore", SimpleNamespace(sealed_tokens=page, reseal=change))
        assert await reseal(store, both) == (5, 0, [])
        assert await reseal(store, both) == (0, 5, [])

    async def test_after_resealing_the_old_key_is_not_needed(
        self,
        database_url: str,
        monkeypatch: pytest.MonkeyPatch,
        capsys: pytest.CaptureFixture[str],
    ) -> None:
        """`flowactions reseal` seals everything with the new key (§2.2)."""
        async with chat_host(database_url, FLOWACTIONS_ENCRYPTION_KEYS=self.OLD) as run:
            await run.connect()
            run.sign_in("globex")
            await run.connect(workspace="T00GLOBEX")
        monkeypatch.setenv("FLOWACTIONS_DATABASE_URL", database_url)
        monkeypatch.setenv("FLOWACTIONS_ENCRYPTION_KEYS", f"{self.NEW},{self.OLD}")
        for arguments, exit_status, told in (
            (["reseal"], 0, "tokens resealed: 2; under the newest key already: 0"),
            (["reseal"], 0, "tokens resealed: 0; under the newest key already: 2"),
        ):
            assert await asyncio.to_thread(main, arguments) == exit_status
            assert capsys.readouterr().out.strip() == told
        async with chat_host(database_url, FLOWACTIONS_ENCRYPTION_KEYS=self.NEW) as run:
            for organization in ("acme", "globex"):
                run.sign_in(organization)
                assert (await run.card())["status"] == "active"
        monkeypatch.setenv("FLOWACTIONS_ENCRYPTION_KEYS", self.OLD)
        assert await asyncio.to_thread(main, ["reseal"]) == 1
        errors = capsys.readouterr().err
        assert "organization acme" in errors
        assert "organization globex" in errors

    async def test_reseal_without_a_key_names_the_setting(
        self, sqlite_url: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        """It changes nothing."""
        monkeypatch.setenv("FLOWACTIONS_DATABASE_URL", sqlite_url)
        assert await asyncio.to_thread(main, ["migrate"]) == 0
        assert await asyncio.to_thread(main, ["reseal"]) == 1
        assert "FLOWACTIONS_ENCRYPTION_KEYS" in capsys.readouterr().err


class TestTestSend:
    async def test_a_test_message_goes_to_the_default_channel(self, run: ChatHost) -> None:
        """The answer is §4.1's: ok and the message's timestamp."""
        await run.connect()
        card = await run.browser.put(
            "/integrations/chat/connection/default-channel", json={"channelId": "C0GENERAL"}
        )
        assert card.json()["data"]["defaultChannel"] == "C0GENERAL"
        answer = await run.browser.post("/integrations/chat/send-message", json={"text": "hello"})
        (message,) = run.provider.messages
        assert (answer.status_code, answer.json()) == (200, {"data": {"ok": True, "ts": message.ts}})
        assert (message.channel, message.text) == ("#general", "hello")

    async def test_a_refusal_is_an_answer_with_advice(self, run: ChatHost) -> None:
        """A refused test is a 200 with ok false, the code and what to do (§4.1.3)."""
        await run.connect()
        path = "/integrations/chat/connection/default-channel"
        await run.browser.put(path, json={"channelId": "C00RANDOM"})
        answer = await run.browser.post("/integrations/chat/send-message", json={"text": "hello"})
        assert answer.status_code == 200
        assert answer.json()["data"] == {
            "ok": False,
            "ts": "",
            "error": "not_in_channel",
            "message": "Invite the app to the channel first.",
        }

    async def test_a_test_send_names_what_is_missing(self, run: ChatHost) -> None:
        """No connection and no default channel are conflicts, an empty text is invalid (§4.1.3)."""
        path = "/integrations/chat/send-message"
        missing = await run.browser.post(path, json={"text": "x"})
        assert (missing.status_code, missing.json()["code"]) == (409, "not_connected")
        await run.connect()
        missing = await run.browser.post(path, json={"text": "x"})
        assert (missing.status_code, missing.json()["code"]) == (409, "no_default_channel")
        for body in ({"text": " "}, {"text": 7}, {}, {"text": "x" * 4001}):
            answer = await run.browser.post(path, json=body)
            assert (answer.status_code, answer.json()["code"]) == (400, "invalid_request")

    @sampled(
        "channel",
        [
            "",
            "\u0000",
            "C" * 101,
            "a b",
            "é",
            "C0GENERAL\n",
            "C0GENERAL\r\n",
            "\nC0GENERAL",
            "C0\nGENERAL",
            "C0GENERAL\n\n",
            "C0GENERAL\u2028",
            "C" * 100 + "\n",
            "\n",
        ],
        size=4,
    )
    async def test_a_default_channel_must_be_an_id(self, run: ChatHost, channel: str) -> None:
        """Other text is refused."""
        await run.connect()
        path = "/integrations/chat/connection/default-channel"
        assert (await run.browser.put(path, json={"channelId": channel})).status_code == 400

    async def test_a_connection_that_was_not_shown_is_not_changed(self, run: ChatHost) -> None:
        """With If-Match, of what somebody else has chosen or connected meanwhile, nothing is replaced or removed."""
        await run.connect()
        connection = "/integrations/chat/connection"
        path = f"{connection}/default-channel"
        shown = {"if-match": (await run.browser.get(connection)).headers["etag"]}
        first = await run.browser.put(path, json={"channelId": "C0GENERAL"}, headers=shown)
        assert first.status_code == 200
        assert {"if-match": first.headers["etag"]} != shown
        for refused in (
            await run.browser.put(path, json={"channelId": "C00RANDOM"}, headers=shown),
            await run.browser.delete(connection, headers=shown),
        ):
            assert (refused.status_code, refused.json()["code"]) == (412, "changed")
        assert (await run.card())["defaultChannel"] == "C0GENERAL"
        weak = {"if-match": f"W/{first.headers['etag']}"}
        assert (await run.browser.put(path, json={"channelId": "C0GENERAL"}, headers=weak)).status_code == 200
        await run.connect()  # the same channel, and another install
        assert (await run.browser.delete(connection, headers=weak)).status_code == 412
        assert (await run.browser.delete(connection)).status_code == 204
        assert (await run.browser.delete(connection, headers=weak)).status_code == 204

    async def test_disconnecting_revokes_the_token(self, run: ChatHost) -> None:
        """It does not work afterwards, also for a caller that kept it."""
        await run.connect()
        assert (await run.browser.delete("/integrations/chat/connection")).status_code == 204
        (token,) = run.provider.state.tokens_of(run.provider.state.workspaces[0])
        assert token.dead == "token_revoked"
        assert (await run.browser.delete("/integrations/chat/connection")).status_code == 204
