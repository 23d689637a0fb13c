from __future__ import annotations

import json
import time
from typing import Any
from urllib.parse import parse_qs, urlsplit

import httpx
import pytest
from litestar import Litestar

from flowactions_conformance.chat_provider import FakeChatProvider
from flowactions_conformance.chat_provider.app import SIGNING_SECRET
from flowactions_conformance.chat_provider.events import send_event, signature
from flowactions_conformance.serving import listen, serve, url_of
from flowactions_hookspecs import FlowActions
from tests.chatting import SCOPES, chat_settings
from tests.docs.fences import ROOT, blocks_of
from tests.support import SmallHost

PREFIX = "/api"
OTHER_EVENTS = "message", "app_mention", "app_home_opened", "team_join", "channel_rename", "user_change"

PAGE = ROOT / "docs" / "how-to" / "connect-a-chat-workspace.md"


class Browser:
    """A person who installs the app at the fake provider."""

    def __init__(self, host: str, provider: FakeChatProvider, client: httpx.AsyncClient) -> None:
        self._routes = f"{host}{PREFIX}/integrations/chat"
        self._provider = provider
        self._client = client
        self.asked: dict[str, str] = {}

    async def connect(self) -> str:
        """Install the app; give the URL to which the provider sent the browser back."""
        started = await self._client.get(f"{self._routes}/install")
        consent, _, query = started.headers["location"].partition("?")
        self.asked = {name: values[0] for name, values in parse_qs(query).items()}
        form = {**self.asked, "workspace": self._provider.state.workspaces[0].id, "decision": "allow"}
        back: str = (await self._client.post(consent, data=form)).headers["location"]
        ended = await self._client.get(back)
        assert ended.status_code == 303
        assert urlsplit(ended.headers["location"]).query == "chat=connected"
        return back

    async def status(self) -> str:
        card = (await self._client.get(f"{self._routes}/connection")).json()["data"]
        status: str = card["status"]
        return status


async def challenged(client: httpx.AsyncClient, url: str) -> Any:
    """Verify a request URL as the provider does when an app is made; give the answer."""
    body, now = b'{"type":"url_verification","challenge":"c4ll"}', int(time.time())
    headers = {
        "x-slack-request-timestamp": str(now),
        "x-slack-signature": signature(SIGNING_SECRET, now, body),
    }
    return (await client.post(url, content=body, headers=headers)).json()


@pytest.mark.ci
async def test_what_the_manifest_names_is_what_a_running_host_uses(sqlite_url: str) -> None:
    """Installed and told of events by the manifest alone, and asked for exactly its scopes (§2.3, §4.1, §6.2)."""
    listener, provider = listen(), FakeChatProvider()
    team, bot = provider.state.workspaces[0].id, provider.state.workspaces[0].bot_user_id
    async with serve(provider.app) as provider_url, httpx.AsyncClient(timeout=300) as client:
        settings = {**chat_settings(sqlite_url, provider_url), "BACKEND_PUBLIC_URL": url_of(listener)}
        (block,) = (each for each in blocks_of(PAGE) if each.language == "json")
        manifest = json.loads(block.text.replace("https://dashboard.example.com", url_of(listener) + PREFIX))
        actions = FlowActions.load(SmallHost(settings), prefix=PREFIX)
        app = Litestar(
            [*actions.route_handlers], lifespan=[actions.lifespan], openapi_config=None, logging_config=None
        )
        async with serve(app, listener) as url:
            browser = Browser(url, provider, client)
            back = await browser.connect()
            assert manifest["oauth_config"]["redirect_urls"] == [browser.asked["redirect_uri"]]
            assert back.startswith(f"{browser.asked['redirect_uri']}?")
            assert manifest["oauth_config"]["scopes"] == {"bot": browser.asked["scope"].split(",")}
            assert browser.asked["scope"] == SCOPES

            subscribed = manifest["settings"]["event_subscriptions"]
            assert await challenged(client, subscribed["request_url"]) == {"challenge": "c4ll"}
            assert len(subscribed["bot_events"]) == 2
            for kind in (*OTHER_EVENTS, *subscribed["bot_events"]):
                assert await browser.status() == "active"
                event = {"type": kind, "tokens": {"oauth": [], "bot": [bot]}}
                answered = await send_event(
                    subscribed["request_url"], SIGNING_SECRET, int(time.time()), team, event
                )
                assert answered == 200
                if kind in subscribed["bot_events"]:
                    assert await browser.status() == "revoked"
                    await browser.connect()
