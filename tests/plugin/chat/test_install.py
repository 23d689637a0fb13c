"""Connecting a workspace: from the button to the provider's page and back (§4.1.1)."""

from __future__ import annotations

import asyncio
import base64
import json
import logging
from pathlib import Path
from typing import cast
from urllib.parse import parse_qs, urlsplit

import pytest
from sqlalchemy import text

from flowactions_conformance.chat_provider import Fault
from flowactions_conformance.chat_provider.oauth import CLIENT_ID, CLIENT_SECRET
from flowactions_hookspecs import DashboardPrincipal, FlowActions
from flowactions_plugin.chat.service import Chat
from flowactions_plugin.chat.store import ConnectionStore, OAuthFlow
from flowactions_plugin.settings.model import read_settings
from flowactions_plugin.storage.database import Database
from tests.chatting import CALLBACK, JSON, SCOPES, ChatHost, chat_host, chat_settings, refusing
from tests.support import SmallHost, services_of


async def age_flows(database_url: str, seconds: int) -> None:
    """Let time pass for the installs under way."""
    settings = read_settings({"FLOWACTIONS_DATABASE_URL": database_url})
    async with Database(settings.database_url) as database, database.write() as connection:
        query = "UPDATE flowactions_oauth_states SET expires_at = expires_at - :passed"
        await connection.execute(text(query), {"passed": seconds * 1000})


async def test_flows_that_were_not_finished_are_kept_for_a_day(sqlite_url: str) -> None:
    """So that a late callback is answered with ``expired``; one that begins takes no other's away."""
    settings = read_settings({"FLOWACTIONS_DATABASE_URL": sqlite_url})
    async with Database(settings.database_url) as database:
        store = ConnectionStore(database)

        async def begin(flow_id: str) -> None:
            flow = OAuthFlow(id=flow_id, organization_id="acme", user_id="u", user_name="U", browser="b")
            await store.start_flow(flow, 600_000)

        await begin("one")
        await begin("two")
        assert await store.flow("one") is not None
        for hours, is_kept in ((23, True), (2, False)):
            await age_flows(sqlite_url, hours * 3600)
            await begin(f"after {hours} more")
            assert (await store.flow("one") is not None) == is_kept


class TestInstall:
    async def test_connecting_shows_the_card(self, run: ChatHost) -> None:
        """After consent, the card shows workspace, person, agents and scopes (§2.2, §5.2)."""
        assert await run.card() is None
        assert await run.connect() == {"chat": "connected"}
        card = await run.card()
        assert card["workspace"] == {"id": "T0000ACME", "name": "Acme"}
        assert card["installedBy"] == {"id": "ada", "name": "Ada"}
        assert card["agents"] == [{"id": "a1", "name": "Support"}]
        assert card["scopes"] == SCOPES.split(",")
        assert (card["status"], card["defaultChannel"]) == ("active", None)
        assert "xoxb" not in str(card)

    async def test_exactly_the_scopes_are_requested(self, run: ChatHost) -> None:
        """The authorize request has the five scopes and the redirect URI (§2.3, §4.1.1)."""
        query = parse_qs(urlsplit(await run.start()).query)
        assert query["scope"] == [SCOPES]
        assert query["redirect_uri"] == [CALLBACK]
        assert query["client_id"] == [CLIENT_ID]

    @pytest.mark.parametrize("login", ["/login", ""])
    async def test_who_is_not_signed_in_is_sent_to_the_login_page_and_back(
        self, sqlite_url: str, login: str
    ) -> None:
        """From the link alone; without a login page, for scripts, and at every other route it is 401 (§4.1.1)."""
        async with chat_host(sqlite_url, FLOWACTIONS_LOGIN_PATH=login) as run:
            run.host.principal = None
            for accept in ("text/html", "*/*", ""):
                answer = await run.browser.get("/integrations/chat/install?a=b", headers={"accept": accept})
                assert answer.status_code == (303 if login else 401), accept
                if login:
                    back = "%2Fintegrations%2Fchat%2Finstall%3Fa%3Db"
                    assert answer.headers["location"] == f"http://host/login?next={back}"
                    assert answer.headers["cache-control"] == "no-store"
                    assert "set-cookie" not in answer.headers
            json = await run.browser.get("/integrations/chat/install", headers={"accept": "application/json"})
            assert (json.status_code, json.json()["code"]) == (401, "unauthorized")
            for method, path in (
                ("GET", "connection"),
                ("DELETE", "connection"),
                ("PUT", "connection/default-channel"),
                ("POST", "send-message"),
                ("GET", "channels"),
                ("GET", "members"),
            ):
                url = f"/integrations/chat/{path}"
                answer = await run.browser.request(method, url, headers={"accept": "text/html"})
                assert (answer.status_code, answer.json()["code"]) == (401, "unauthorized"), url

    async def test_install_answers_with_json_on_request(self, run: ChatHost) -> None:
        """A dashboard that uses fetch gets the URL in a body (§4.1.1)."""
        answer = await run.browser.get("/integrations/chat/install", headers={"accept": "application/json"})
        assert answer.status_code == 200
        assert answer.json()["data"]["url"].startswith("http://127.0.0.1")
        cookie = answer.headers["set-cookie"].lower()
        assert "httponly" in cookie
        assert "samesite=lax" in cookie

    async def test_a_cancelled_install_cannot_be_taken_up_again(self, run: ChatHost) -> None:
        """Nothing is stored, and its state is used up, whatever the first callback brought (§4.1.2, §5.2)."""
        url = await run.start()
        cancelled = await run.end(await run.consent(url, decision="cancel"))
        assert cancelled == {"chat": "error", "reason": "cancelled"}
        assert await run.end(await run.consent(url)) == {"chat": "error", "reason": "already_used"}
        assert "oauth.v2.access" not in run.provider.calls
        assert await run.card() is None

    async def test_a_callback_works_once(self, run: ChatHost) -> None:
        """A replayed callback is refused before any exchange (§4.1.2, §5.2)."""
        url = await run.consent(await run.start())
        assert await run.end(url) == {"chat": "connected"}
        exchanges = run.provider.calls.count("oauth.v2.access")
        assert await run.end(url) == {"chat": "error", "reason": "already_used"}
        assert run.provider.calls.count("oauth.v2.access") == exchanges

    async def test_concurrent_callbacks_connect_once(self, run: ChatHost) -> None:
        """Of concurrent callbacks, one is exchanged."""
        url = await run.consent(await run.start())
        ends = await asyncio.gather(*(run.end(url) for _ in range(5)))
        assert sorted(end["chat"] for end in ends) == ["connected", *["error"] * 4]

    async def test_another_browser_cannot_finish_an_install(self, run: ChatHost) -> None:
        """A callback without the flow's cookie is refused, so that nobody can connect a workspace to another user's organization (§4.1.1, §5.2)."""
        url = await run.consent(await run.start())
        run.browser = run.new_browser()
        assert await run.end(url) == {"chat": "error", "reason": "wrong_browser"}

    async def test_a_member_of_another_organization_cannot_finish_an_install(self, run: ChatHost) -> None:
        """When another organization's user has signed in meanwhile, neither gets the workspace."""
        url = await run.consent(await run.start())
        run.sign_in("globex")
        assert await run.end(url) == {"chat": "error", "reason": "wrong_organization"}
        assert await run.card() is None
        run.sign_in("acme")
        assert await run.card() is None

    async def test_a_browser_without_a_session_can_finish_an_install(self, run: ChatHost) -> None:
        """A dashboard with bearer tokens sends none after a redirect: the flow's cookie is enough."""
        url = await run.consent(await run.start())
        run.host.principal = None
        assert await run.end(url) == {"chat": "connected"}
        run.sign_in("acme")
        assert (await run.card())["installedBy"]["name"] == "Ada"

    async def test_an_expired_flow_redirects_with_its_reason(self, run: ChatHost, database_url: str) -> None:
        """After ten minutes, and also after others have started flows (§5.2)."""
        early, late = await run.start(), await run.start()
        await age_flows(database_url, 580)
        assert await run.end(await run.consent(early)) == {"chat": "connected"}
        await age_flows(database_url, 21)
        await run.start()
        exchanges = run.provider.calls.count("oauth.v2.access")
        callback = await run.consent(late)
        assert await run.end(callback) == {"chat": "error", "reason": "expired"}
        assert await run.end(callback) == {"chat": "error", "reason": "already_used"}
        assert run.provider.calls.count("oauth.v2.access") == exchanges

    async def test_the_state_holds_neither_tenant_nor_user(self, run: ChatHost, database_url: str) -> None:
        """In no encoding."""
        principal = DashboardPrincipal(
            organization_id="org-marker", user_id="user-marker", user_name="Name Marker", may_change=True
        )
        run.host.principal = principal
        url = await run.start()
        (state,) = parse_qs(urlsplit(url).query)["state"]
        flow_id, _, signature = state.partition(".")
        for part in (flow_id, signature, state):
            decoded = base64.urlsafe_b64decode(part.partition(".")[0] + "==")
            assert b"marker" not in decoded.lower()
            assert "marker" not in part
        assert len(state) < 100
        assert await run.end(await run.consent(url)) == {"chat": "connected"}
        card = await run.card()
        assert card["installedBy"] == {"id": "user-marker", "name": "Name Marker"}

    async def test_a_changed_part_of_the_state_is_refused(self, run: ChatHost) -> None:
        """Neither part can be replaced with that of another flow, or with anything else (§5.2)."""
        first, second = [
            parse_qs(urlsplit(await run.start()).query)["state"][0].partition(".") for _ in range(2)
        ]
        mixed = (f"{first[0]}.{second[2]}", f"{second[0]}.{first[2]}", first[0], f".{first[2]}")
        for state in (*mixed, "", "a.b", "é.ü", "%00", "a" * 5000):
            assert await run.end(f"{CALLBACK}?code=x&state={state}") == {
                "chat": "error",
                "reason": "invalid_state",
            }

    @pytest.mark.parametrize("method", ["oauth.v2.access", "auth.test"])
    async def test_an_enterprise_install_is_refused(self, run: ChatHost, method: str) -> None:
        """Its token belongs to no workspace: it is revoked, and the advice is to choose one."""
        workspace = run.provider.state.workspaces[0]
        token = run.provider.state.add_token(workspace)
        body = {"ok": True, "access_token": token.value, "team": None, "is_enterprise_install": True}
        run.provider.faults[method].append(Fault(200, json.dumps(body).encode(), JSON))
        assert await run.connect() == {"chat": "error", "reason": "enterprise_install"}
        assert method == "auth.test" or token.dead == "token_revoked"
        assert await run.card() is None

    @pytest.mark.parametrize(
        ("code", "said"),
        [("bad_redirect_uri", "bad_redirect_uri"), ("x" * 500, "x" * 100), ("", "unreachable")],
    )
    async def test_a_refused_exchange_redirects_with_the_providers_code(
        self, run: ChatHost, code: str, said: str
    ) -> None:
        """Whatever the code is."""
        run.provider.faults["oauth.v2.access"].append(refusing(code))
        assert await run.connect() == {"chat": "error", "reason": said}

    @pytest.mark.parametrize(
        ("more", "reason"),
        [("&error=%3Cscript%3E", "provider_error"), ("", "no_code"), ("&code=x", "invalid_code")],
    )
    async def test_a_callback_that_brings_no_token_redirects_with_a_reason(
        self, run: ChatHost, more: str, reason: str
    ) -> None:
        """Text that anyone can write into the callback's URL does not reach the dashboard's URL."""
        query = parse_qs(urlsplit(await run.start()).query)
        url = f"{CALLBACK}?state={query['state'][0]}{more}"
        assert await run.end(url) == {"chat": "error", "reason": reason}

    async def test_two_tabs_can_install_at_the_same_time(self, run: ChatHost) -> None:
        """Each flow has its own cookie."""
        first, second = await run.start(), await run.start()
        assert await run.end(await run.consent(second)) == {"chat": "connected"}
        assert await run.end(await run.consent(first)) == {"chat": "connected"}

    async def test_reinstalling_replaces_and_keeps_the_default_channel(self, run: ChatHost) -> None:
        """The same workspace keeps its default channel; another workspace starts without."""
        await run.connect()
        await run.browser.put("/integrations/chat/connection/default-channel", json={"channelId": "C0GENERAL"})
        await run.connect()
        assert (await run.card())["defaultChannel"] == "C0GENERAL"
        await run.connect(workspace="T00GLOBEX")
        card = await run.card()
        assert (card["workspace"]["name"], card["defaultChannel"]) == ("Globex", None)
        acme, globex = run.provider.state.workspaces
        assert not run.provider.state.is_installed(acme)  # it cannot be used any more, so it does not lie about
        assert run.provider.state.is_installed(globex)

    async def test_secrets_are_neither_logged_nor_stored_in_clear(
        self, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        """Code, state and token appear in no log line at any level, and the token in no database byte (§5.2)."""
        caplog.set_level(logging.DEBUG)
        async with chat_host(f"sqlite:///{tmp_path / 'f.db'}") as run:
            callback = await run.consent(await run.start())
            caplog.clear()  # the test's own browser logs what it asks for
            logging.getLogger("httpx").setLevel(logging.WARNING)
            assert await run.end(callback) == {"chat": "connected"}
            assert (await run.message()).status == "sent"
        logging.getLogger("httpx").setLevel(logging.NOTSET)
        (token,) = run.provider.state.tokens_of(run.provider.state.workspaces[0])
        query = parse_qs(urlsplit(callback).query)
        for secret in (token.value, query["code"][0], query["state"][0], CLIENT_SECRET):
            assert secret not in caplog.text
        files = b"".join(path.read_bytes() for path in tmp_path.glob("f.db*"))
        assert token.value.encode() not in files


@pytest.mark.parametrize("public_url", ["https://host.example", "https://host.example/flows"])
def test_the_prefix_is_in_the_callback_once(public_url: str, sqlite_url: str) -> None:
    """Whether BACKEND_PUBLIC_URL names the prefix of the routes or not, the provider sends browsers to the same place."""
    settings = chat_settings(sqlite_url, "http://127.0.0.1:9")
    actions = FlowActions.load(SmallHost({**settings, "BACKEND_PUBLIC_URL": public_url}), prefix="/flows")
    installer = cast("Chat", services_of(actions.host)._chat).installer
    assert installer._redirect_uri == "https://host.example/flows/integrations/chat/callback"
    pickers = actions.node_types["chat_message"].pickers
    assert pickers["chatChannelId"] == "/flows/integrations/chat/channels"
