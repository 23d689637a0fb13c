"""A host with a chat connection to a fake provider, and a browser for it."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import parse_qs, urlsplit

import httpx
from sqlalchemy.ext.asyncio import AsyncEngine

from flowactions_conformance.chat_provider import FakeChatProvider, Fault, Workspace, sample_workspace
from flowactions_conformance.chat_provider.app import SIGNING_SECRET
from flowactions_conformance.chat_provider.oauth import CLIENT_ID, CLIENT_SECRET
from flowactions_conformance.serving import serve
from flowactions_hookspecs import Agent, DashboardPrincipal, FlowActions, Node, NodeResult
from tests.support import SmallHost, a_walk, development, services_of, transport_of
from tests.telemetry import Recorded

JSON = (("content-type", "application/json;charset=utf-8"),)
CALLBACK = "http://host/integrations/chat/callback"
SCOPES = "chat:write,channels:read,groups:read,users:read,im:write"


def refusing(code: str, status: int = 200, **more: Any) -> Fault:
    """Have the provider refuse a call, in its own form."""
    return Fault(status, json.dumps({"ok": False, "error": code, **more}).encode(), JSON)


class ChatHost:
    """A host with OAuth settings, a browser for it, and a provider with two workspaces."""

    def __init__(self, host: SmallHost, actions: FlowActions, provider: FakeChatProvider) -> None:
        self.host = host
        self.actions = actions
        self.provider = provider
        self.browser = self.new_browser()

    def new_browser(self) -> httpx.AsyncClient:
        transport = transport_of(self.actions)
        return httpx.AsyncClient(transport=transport, base_url="http://host")

    async def start(self) -> str:
        started = await self.browser.get("/integrations/chat/install")
        assert started.status_code == 302
        return started.headers["location"]

    async def consent(
        self, url: str, *, decision: str = "allow", workspace: str = "T0000ACME", **form: str
    ) -> str:
        """Decide on the consent page; give the callback's URL."""
        query = {name: values[0] for name, values in parse_qs(urlsplit(url).query).items()}
        async with httpx.AsyncClient(timeout=300) as client:
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

    async def settled(self) -> None:
        """Wait for what the last call of the provider has begun in the background."""
        await services_of(self.host)._chat.calls.aclose()  # type: ignore[union-attr]

    def sign_in(self, organization: str) -> None:
        self.host.principal = DashboardPrincipal(
            organization_id=organization, user_id="u", user_name="U", may_change=True
        )

    async def message(self, organization: str = "acme", **config: Any) -> NodeResult:
        """Let a walk of an organization reach a chat-message node."""
        data = {"chatChannelId": "C00ORDERS", "chatMessageText": "hi", **config}
        walk = a_walk(organization_id=organization)
        return await self.actions.reach(walk, Node(id="n", type="chat_message", config=data))


def chat_settings(database_url: str, provider_url: str, **settings: str) -> dict[str, str]:
    """Give the settings of a host that is installed at a fake provider."""
    return development(
        database_url,
        CHAT_CLIENT_ID=CLIENT_ID,
        CHAT_CLIENT_SECRET=CLIENT_SECRET,
        CHAT_API_URL=f"{provider_url}/api/",
        CHAT_AUTHORIZE_URL=f"{provider_url}/oauth/v2/authorize",
        BACKEND_PUBLIC_URL="http://host",
        **{"CHAT_SIGNING_SECRET": SIGNING_SECRET, **settings},
    )


@asynccontextmanager
async def chat_host(
    database_url: str,
    workspaces: Sequence[Workspace] | None = None,
    recorded: Recorded | None = None,
    **settings: str,
) -> AsyncIterator[ChatHost]:
    """Run a host, and a provider with two workspaces when none are given; what it measures is recorded."""
    provider = FakeChatProvider(workspaces or [sample_workspace(), sample_workspace("Globex", "T00GLOBEX")])
    async with serve(provider.app) as url:
        host = SmallHost(chat_settings(database_url, url, **settings))
        if recorded is not None:
            recorded.listen_to(host)
        host.agents = [Agent(id="a1", name="Support", organization_id="acme")]
        actions = FlowActions.load(host)
        async with actions.lifespan():
            running = ChatHost(host, actions, provider)
            async with running.browser:
                yield running


class Adopted:
    """A host that is connected to a fake workspace."""

    def __init__(self, actions: FlowActions, provider: FakeChatProvider) -> None:
        self.actions = actions
        self.provider = provider

    async def reach(self, config: dict[str, Any], **walk: Any) -> NodeResult:
        return await self.actions.reach(a_walk(**walk), Node(id="n1", type="chat_message", config=config))

    async def to_channel(self, **more: Any) -> NodeResult:
        return await self.reach({"chatChannelId": "C00ORDERS", "chatMessageText": "hi", **more})

    @property
    def texts(self) -> list[tuple[str, str]]:
        return [(message.channel, message.text) for message in self.provider.messages]

    @property
    def posts(self) -> int:
        return self.provider.calls.count("chat.postMessage")


async def adopt(actions: FlowActions) -> str:
    """Connect with the static token; give where the browser ends up."""
    transport = transport_of(actions)
    async with httpx.AsyncClient(transport=transport, base_url="http://host") as client:
        started = await client.get("/integrations/chat/install")
        assert started.status_code == 302
        ended = await client.get(started.headers["location"])
        assert ended.status_code == 303
        return ended.headers["location"]


def adopting_settings(database_url: str, provider_url: str, token: str) -> dict[str, str]:
    return development(
        database_url,
        CHAT_BOT_TOKEN=token,
        CHAT_API_URL=f"{provider_url}/api/",
        BACKEND_PUBLIC_URL="http://host",
    )


async def _adopt(host: SmallHost) -> None:
    """Connect as `adopt` does, without the routes: to build them takes longer than most tests."""
    installer = services_of(host)._chat.installer  # type: ignore[union-attr]
    started = await installer.start(host.principal)  # type: ignore[arg-type]
    given = parse_qs(urlsplit(started.url).query)
    cookies = {started.cookie_name: started.cookie_value}
    await installer.finish(
        code=given["code"][0], state=given["state"][0], error=None, cookies=cookies, principal=host.principal
    )


@asynccontextmanager
async def adopted(database_url: str, database: AsyncEngine | None = None) -> AsyncIterator[Adopted]:
    """Run a host that has adopted a static token of a fake workspace; with its own database when it shares one."""
    provider = FakeChatProvider()
    token = provider.state.add_token(provider.state.workspaces[0])
    async with serve(provider.app) as url:
        settings = adopting_settings(database_url, url, token.value)
        if database is not None:
            settings["FLOWACTIONS_HOST_WORKER"] = "off"  # so that nobody else waits for a lock of the test's
        host = SmallHost(settings, database=database)
        actions = FlowActions.load(host)
        async with actions.lifespan():
            await _adopt(host)
            provider.calls.clear()
            yield Adopted(actions, provider)
