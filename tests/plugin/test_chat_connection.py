from __future__ import annotations

import asyncio
import logging
import sqlite3
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import httpx
import pytest

from flowactions_conformance.chat_provider import Channel, FakeChatProvider, Workspace, sample_workspace
from flowactions_conformance.chat_provider.app import CLIENT_ID, CLIENT_SECRET
from flowactions_conformance.chat_provider.faults import RATE_LIMITED
from flowactions_conformance.serving import serve
from flowactions_hookspecs import Agent, DashboardPrincipal, FlowActions, Node
from tests.support import SmallHost, a_walk, development

CALLBACK = "http://host/integrations/chat/callback"
SCOPES = "chat:write,channels:read,groups:read,users:read,im:write"


class Running:
    """A host with OAuth settings, a browser for it, and a provider with two workspaces."""

    def __init__(self, host: SmallHost, actions: FlowActions, provider: FakeChatProvider) -> None:
        self.host = host
        self.actions = actions
        self.provider = provider
        self.browser = self.new_browser()

    def new_browser(self) -> httpx.AsyncClient:
        transport = httpx.ASGITransport(app=self.actions.asgi_app())  # type: ignore[arg-type]
        return httpx.AsyncClient(transport=transport, base_url="http://host")

    async def start(self) -> str:
        started = await self.browser.get("/integrations/chat/install")
        assert started.status_code == 302
        return started.headers["location"]

    async def consent(
        self, url: str, *, decision: str = "allow", workspace: str = "T0ACME", **form: str
    ) -> str:
        """Decide on the consent page; give the callback's URL."""
        query = {name: values[0] for name, values in parse_qs(urlsplit(url).query).items()}
        async with httpx.AsyncClient() as client:
            data = {**query, "workspace": workspace, "decision": decision, **form}
            answer = await client.post(url.partition("?")[0], data=data)
        location: str = answer.headers["location"]
        return location

    async def end(self, url: str) -> dict[str, str]:
        """Follow the callback; give the query with which the dashboard is reached."""
        answer = await self.browser.get(url)
        assert answer.status_code == 303
        assert answer.headers["cache-control"] == "no-store"
        assert answer.headers["referrer-policy"] == "no-referrer"
        location = urlsplit(answer.headers["location"])
        assert location.path == "/connections"
        return {name: values[0] for name, values in parse_qs(location.query).items()}

    async def connect(self, **form: str) -> dict[str, str]:
        return await self.end(await self.consent(await self.start(), **form))

    async def card(self) -> Any:
        return (await self.browser.get("/integrations/chat/connection")).json()["data"]

    def sign_in(self, organization: str) -> None:
        self.host.principal = DashboardPrincipal(organization_id=organization, user_id="u", user_name="U")


@pytest.fixture
async def run(database_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Running]:
    monkeypatch.chdir(tmp_path)
    provider = FakeChatProvider([sample_workspace(), sample_workspace("Globex", "T0GLOBEX")])
    async with serve(provider.app) as url:
        settings = development(
            database_url,
            CHAT_CLIENT_ID=CLIENT_ID,
            CHAT_CLIENT_SECRET=CLIENT_SECRET,
            CHAT_API_URL=f"{url}/api/",
            CHAT_AUTHORIZE_URL=f"{url}/oauth/v2/authorize",
            BACKEND_PUBLIC_URL="http://host",
        )
        host = SmallHost(settings)
        host.agents = [Agent(id="a1", name="Support", organization_id="acme")]
        actions = FlowActions.load(host)
        async with actions.lifespan():
            running = Running(host, actions, provider)
            async with running.browser:
                yield running


class TestInstall:
    async def test_connecting_shows_the_card(self, run: Running) -> None:
        """After consent, the card shows workspace, person, agents and scopes (§2.2)."""
        assert await run.card() is None
        assert await run.connect() == {"chat": "connected"}
        card = await run.card()
        assert card["workspace"] == {"id": "T0ACME", "name": "Acme"}
        assert card["installedBy"] == {"id": "ada", "name": "Ada"}
        assert card["agents"] == [{"id": "a1", "name": "Support"}]
        assert card["scopes"] == SCOPES.split(",")
        assert (card["status"], card["defaultChannel"]) == ("active", None)
        assert "xoxb" not in str(card)

    async def test_exactly_the_scopes_are_asked_for(self, run: Running) -> None:
        """The authorize request carries the five scopes, and where to come back to (§2.3)."""
        query = parse_qs(urlsplit(await run.start()).query)
        assert query["scope"] == [SCOPES]
        assert query["redirect_uri"] == [CALLBACK]
        assert query["client_id"] == [CLIENT_ID]

    async def test_the_address_is_given_as_json_when_asked_for(self, run: Running) -> None:
        """A dashboard that fetches gets the URL in a body."""
        answer = await run.browser.get("/integrations/chat/install", headers={"accept": "application/json"})
        assert answer.status_code == 200
        assert answer.json()["data"]["url"].startswith("http://127.0.0.1")
        cookie = answer.headers["set-cookie"].lower()
        assert "httponly" in cookie
        assert "samesite=lax" in cookie

    async def test_cancelling_is_told(self, run: Running) -> None:
        """Cancel at the provider ends in a reason, and nothing is stored."""
        url = await run.consent(await run.start(), decision="cancel")
        assert await run.end(url) == {"chat": "error", "reason": "cancelled"}
        assert await run.card() is None

    async def test_a_callback_works_once(self, run: Running) -> None:
        """A replayed callback is refused before any exchange."""
        url = await run.consent(await run.start())
        assert await run.end(url) == {"chat": "connected"}
        exchanges = run.provider.calls.count("oauth.v2.access")
        assert await run.end(url) == {"chat": "error", "reason": "expired"}
        assert run.provider.calls.count("oauth.v2.access") == exchanges

    async def test_racing_callbacks_connect_once(self, run: Running) -> None:
        """Of simultaneous callbacks, one is exchanged."""
        url = await run.consent(await run.start())
        ends = await asyncio.gather(*(run.end(url) for _ in range(5)))
        assert sorted(end["chat"] for end in ends) == ["connected", *["error"] * 4]

    async def test_another_browser_cannot_end_it(self, run: Running) -> None:
        """A callback without the flow's cookie is refused: nobody can slip a workspace to somebody else."""
        url = await run.consent(await run.start())
        run.browser = run.new_browser()
        assert await run.end(url) == {"chat": "error", "reason": "wrong_browser"}

    @pytest.mark.parametrize("state", ["", "x", "a.b", "é.ü", "%00", "e30.e30", "a" * 5000])
    async def test_a_forged_state_is_refused(self, run: Running, state: str) -> None:
        """Whatever the state, a callback that was not started here ends in a reason."""
        answer = await run.browser.get(CALLBACK, params={"code": "c", "state": state})
        assert answer.status_code == 303
        assert "reason=invalid_state" in answer.headers["location"]

    async def test_a_state_with_a_changed_organization_is_refused(self, run: Running) -> None:
        """The signature covers everything in the state."""
        url = await run.consent(await run.start())
        query = parse_qs(urlsplit(url).query)
        payload, _, signature = query["state"][0].partition(".")
        changed = f"{payload[:-4]}AAAA.{signature}"
        answer = await run.browser.get(CALLBACK, params={"code": query["code"][0], "state": changed})
        assert "reason=invalid_state" in answer.headers["location"]

    async def test_two_tabs_do_not_disturb_each_other(self, run: Running) -> None:
        """Each flow has a cookie of its own."""
        first, second = await run.start(), await run.start()
        assert await run.end(await run.consent(second)) == {"chat": "connected"}
        assert await run.end(await run.consent(first)) == {"chat": "connected"}

    async def test_a_permission_that_was_not_granted_is_told(self, run: Running) -> None:
        """Missing scopes end in a reason."""
        assert await run.connect(scope="chat:write") == {"chat": "error", "reason": "missing_scope"}

    async def test_a_code_the_provider_does_not_know_is_told(self, run: Running) -> None:
        """The provider's own code becomes the reason."""
        query = parse_qs(urlsplit(await run.start()).query)
        answer = await run.browser.get(CALLBACK, params={"code": "made-up", "state": query["state"][0]})
        assert "reason=invalid_code" in answer.headers["location"]

    async def test_reinstalling_replaces_and_keeps_the_default_channel(self, run: Running) -> None:
        """The same workspace keeps its default channel; another workspace starts without."""
        await run.connect()
        await run.browser.put("/integrations/chat/connection/default-channel", json={"channelId": "C0GENERAL"})
        await run.connect()
        assert (await run.card())["defaultChannel"] == "C0GENERAL"
        await run.connect(workspace="T0GLOBEX")
        card = await run.card()
        assert (card["workspace"]["name"], card["defaultChannel"]) == ("Globex", None)

    async def test_secrets_are_neither_logged_nor_stored_in_clear(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        """Code, state and token appear in no log line at any level, and the token in no database byte."""
        monkeypatch.chdir(tmp_path)
        caplog.set_level(logging.DEBUG)
        provider = FakeChatProvider()
        async with serve(provider.app) as url:
            settings = development(
                f"sqlite:///{tmp_path / 'f.db'}",
                CHAT_CLIENT_ID=CLIENT_ID,
                CHAT_CLIENT_SECRET=CLIENT_SECRET,
                CHAT_API_URL=f"{url}/api/",
                CHAT_AUTHORIZE_URL=f"{url}/oauth/v2/authorize",
                BACKEND_PUBLIC_URL="http://host",
            )
            actions = FlowActions.load(SmallHost(settings))
            async with actions.lifespan():
                run = Running(SmallHost(), actions, provider)
                callback = await run.consent(await run.start())
                caplog.clear()  # the test's own browser logs what it asks for
                logging.getLogger("httpx").setLevel(logging.WARNING)
                assert await run.end(callback) == {"chat": "connected"}
                node = Node(
                    id="n",
                    type="chat_message",
                    config={"chatChannelId": "C0ORDERS", "chatMessageText": "hi"},
                )
                assert (await actions.reach(a_walk(), node)).status == "sent"
        logging.getLogger("httpx").setLevel(logging.NOTSET)
        (token,) = provider.state.tokens_of(provider.state.workspaces[0])
        query = parse_qs(urlsplit(callback).query)
        for secret in (token.value, query["code"][0], query["state"][0], CLIENT_SECRET):
            assert secret not in caplog.text
        files = b"".join(path.read_bytes() for path in tmp_path.glob("f.db*"))
        assert token.value.encode() not in files


class TestTenancy:
    async def test_two_organizations_do_not_cross(self, run: Running) -> None:
        """Each organization sends with its own workspace, and sees its own card."""
        await run.connect()
        run.sign_in("globex")
        assert await run.card() is None
        await run.connect(workspace="T0GLOBEX")
        node = Node(id="n", type="chat_message", config={"chatChannelId": "C0ORDERS", "chatMessageText": "hi"})
        await run.actions.reach(a_walk(organization_id="acme"), node)
        await run.actions.reach(a_walk(organization_id="globex"), node)
        assert [message.workspace for message in run.provider.messages] == ["Acme", "Globex"]
        await run.browser.delete("/integrations/chat/connection")
        assert await run.card() is None
        run.sign_in("acme")
        assert (await run.card())["workspace"]["name"] == "Acme"

    async def test_a_token_moved_to_another_row_does_not_open(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Whoever writes to the database cannot make one organization use another's token."""
        monkeypatch.chdir(tmp_path)
        provider = FakeChatProvider()
        token = provider.state.add_token(provider.state.workspaces[0])
        async with serve(provider.app) as url:
            settings = development(
                f"sqlite:///{tmp_path / 'f.db'}",
                CHAT_BOT_TOKEN=token.value,
                CHAT_API_URL=f"{url}/api/",
                BACKEND_PUBLIC_URL="http://host",
            )
            actions = FlowActions.load(SmallHost(settings))
            async with actions.lifespan():
                run = Running(SmallHost(), actions, provider)
                await run.end(await run.start())
                with sqlite3.connect(tmp_path / "f.db") as database:
                    database.execute("UPDATE flowactions_chat_connections SET organization_id = 'globex'")
                node = Node(
                    id="n",
                    type="chat_message",
                    config={"chatChannelId": "C0ORDERS", "chatMessageText": "x"},
                )
                result = await actions.reach(a_walk(organization_id="globex"), node)
        assert result.reason == "send_failed"
        assert provider.messages == []


class TestTestSend:
    async def test_a_test_message_goes_to_the_default_channel(self, run: Running) -> None:
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

    async def test_a_refusal_is_an_answer_with_advice(self, run: Running) -> None:
        """A refused test is a 200 with ok false, the code and what to do."""
        await run.connect()
        path = "/integrations/chat/connection/default-channel"
        await run.browser.put(path, json={"channelId": "C0RANDOM"})
        answer = await run.browser.post("/integrations/chat/send-message", json={"text": "hello"})
        assert answer.status_code == 200
        assert answer.json()["data"] == {
            "ok": False,
            "ts": "",
            "error": "not_in_channel",
            "message": "Invite the app to the channel first.",
        }

    async def test_what_is_missing_is_told(self, run: Running) -> None:
        """No connection and no default channel are conflicts, no text is a mistake."""
        path = "/integrations/chat/send-message"
        missing = await run.browser.post(path, json={"text": "x"})
        assert (missing.status_code, missing.json()["code"]) == (409, "not_connected")
        await run.connect()
        missing = await run.browser.post(path, json={"text": "x"})
        assert (missing.status_code, missing.json()["code"]) == (409, "no_default_channel")
        for body in ({"text": " "}, {"text": 7}, {}, {"text": "x" * 4001}):
            answer = await run.browser.post(path, json=body)
            assert (answer.status_code, answer.json()["code"]) == (400, "invalid_request")

    @pytest.mark.parametrize("channel", ["", "\u0000", "C" * 101, "a b", "é"])
    async def test_a_default_channel_is_an_id(self, run: Running, channel: str) -> None:
        """Only what looks like an id is taken."""
        await run.connect()
        path = "/integrations/chat/connection/default-channel"
        assert (await run.browser.put(path, json={"channelId": channel})).status_code == 400

    async def test_disconnecting_revokes_at_the_provider(self, run: Running) -> None:
        """The token is worthless afterwards, even when somebody kept it."""
        await run.connect()
        assert (await run.browser.delete("/integrations/chat/connection")).status_code == 204
        (token,) = run.provider.state.tokens_of(run.provider.state.workspaces[0])
        assert token.dead == "token_revoked"
        assert (await run.browser.delete("/integrations/chat/connection")).status_code == 204


class TestPickers:
    async def test_channels_are_found_by_name_and_marked(self, run: Running) -> None:
        """A channel that the app has not joined says so; archived ones are left out."""
        await run.connect()
        page = (await run.browser.get("/integrations/chat/channels")).json()
        notes = {choice["label"]: choice["note"] for choice in page["data"]}
        assert notes == {
            "#general": None,
            "#orders": None,
            "#random": "The app has not joined this channel.",
            "#leads": "Private channel",
        }
        found = (await run.browser.get("/integrations/chat/channels", params={"search": "#ORD"})).json()
        assert [choice["id"] for choice in found["data"]] == ["C0ORDERS"]

    async def test_members_are_people(self, run: Running) -> None:
        """Bots, deactivated accounts and the built-in user are left out (§2.3)."""
        await run.connect()
        page = (await run.browser.get("/integrations/chat/members")).json()
        assert [choice["id"] for choice in page["data"]] == ["U0GRACE", "U0LINUS"]

    async def test_a_big_workspace_is_paged_through(self, run: Running) -> None:
        """With empty pages first, every channel is found exactly once."""
        channels = [Channel(id=f"C{number}", name=f"c{number}") for number in range(500)]
        big = Workspace(
            id="T1", name="Big", bot_user_id="UB", channels=channels, members=[], page_size=100, empty_pages=3
        )
        run.provider.state.workspaces[:] = [big]
        await run.connect(workspace="T1")
        seen: list[str] = []
        cursor: str | None = ""
        while cursor is not None:
            page = (await run.browser.get("/integrations/chat/channels", params={"cursor": cursor})).json()
            seen += [choice["id"] for choice in page["data"]]
            cursor = page["nextCursor"]
        assert seen == [channel.id for channel in channels]

    async def test_a_throttled_picker_gives_what_there_is(self, run: Running) -> None:
        """Throttling on the first page is told with advice."""
        await run.connect()
        run.provider.faults["conversations.list"].append(RATE_LIMITED)
        answer = await run.browser.get("/integrations/chat/channels")
        assert (answer.status_code, answer.json()["code"]) == (502, "chat_refused")
        assert "throttling" in answer.json()["detail"]
