"""A host with the database of an earlier release."""

from __future__ import annotations

import base64
import os
import signal
import tempfile
from collections import Counter
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

import httpx

from flowactions_conformance.chat_provider import FakeChatProvider, sample_workspace
from flowactions_conformance.chat_provider.app import CLIENT_ID, CLIENT_SECRET, SIGNING_SECRET
from flowactions_conformance.serving import serve
from flowactions_hookspecs import (
    Agent,
    ApiPrincipal,
    DashboardPrincipal,
    FlowActions,
    LogicAction,
    Node,
)
from flowactions_plugin.storage.migrations import head
from tests.crash.forking import fork
from tests.recorder import Request
from tests.support import SmallHost, a_walk, development, transport_of
from tests.upgrades.released import Rows, every_row

ENCRYPTION_KEY = base64.b64encode(b"0.1.0 seals with these 32 bytes.").decode()


AUTH_SECRET = "whsec_" + base64.b64encode(b"secret of the auth provider").decode()


def is_sqlite(url: str) -> bool:
    return url.startswith("sqlite")


async def command(url: str, *arguments: str) -> tuple[int, str]:
    """Run a command of this release in a process of its own; give its exit status and what it printed."""
    environment = {**os.environ, "FLOWACTIONS_DATABASE_URL": url}
    with tempfile.TemporaryFile() as printed, tempfile.TemporaryFile() as logged:
        process = await fork(*arguments, environment=environment, output=printed, errors=logged)
        status = await process.wait()
        printed.seek(0)
        logged.seek(0)
        assert status in {0, -signal.SIGKILL}, logged.read().decode()
        return status, printed.read().decode()


async def migrate(url: str) -> tuple[int, str]:
    return await command(url, "flowactions_plugin.cli", "migrate")


async def upgrade(url: str) -> None:
    """Upgrade as an operator does: SQLite by starting a host, PostgreSQL by a command."""
    if not is_sqlite(url):
        assert await migrate(url) == (0, f"upgraded the tables from revision 0001 to {head()}\n")
    async with started(url):
        pass


class Shop:
    """A host of this release on an upgraded database; the only place that knows its contract."""

    def __init__(self, host: SmallHost, actions: FlowActions, client: httpx.AsyncClient) -> None:
        self.host = host
        self.actions = actions
        self.client = client

    async def advance(self, organization: str, run_id: str, step: str | None) -> list[tuple[str, str]]:
        """Advance to a step; give what ran, as (node, status)."""
        advanced: Any = await self.actions.advance(a_walk(organization_id=organization, run_id=run_id), step)
        return [(result.node_id, result.status) for result in getattr(advanced, "results", advanced)]

    async def message(self, organization: str) -> tuple[str, str | None]:
        """Reach a chat-message node; give its status and reason."""
        config = {"chatChannelId": "C00ORDERS", "chatMessageText": "after the upgrade"}
        node = Node(id="n", type="chat_message", config=config)
        result = await self.actions.reach(a_walk(organization_id=organization), node)
        return result.status, result.reason

    def become(self, organization: str) -> None:
        """Answer as one organization, whose agents have every id."""
        self.host.principal = DashboardPrincipal(
            organization_id=organization, user_id="ada", user_name="Ada", may_change=True
        )
        self.host.api = ApiPrincipal(organization_id=organization)
        self.host.agents = [
            Agent(id=agent, name="A", organization_id=organization) for agent in ("agent-1", "lonely")
        ]

    async def call(self, key: str, agent: str = "agent-1") -> int:
        """Trigger a logic webhook under a key; give the status."""
        body = {
            "idempotencyKey": key,
            "source": "experience_trigger",
            "actionIndex": 0,
            "triggerRowId": "submitted",
        }
        path = f"/v1/agents/{agent}/experiences/survey/logic-webhook"
        return (await self.client.post(path, json=body)).status_code


@asynccontextmanager
async def started(url: str, **settings: str) -> AsyncIterator[Shop]:
    """Run a host of this release."""
    defaults = {
        "FLOWACTIONS_HOST_WORKER": "off",
        "FLOWACTIONS_ENCRYPTION_KEYS": ENCRYPTION_KEY,
        "AUTH_WEBHOOK_SIGNING_SECRET": AUTH_SECRET,
    }
    host = SmallHost(development(url, **{**defaults, **settings}))
    host.secret = "a signing secret"
    host.action = LogicAction(url="http://127.0.0.1:9/")
    actions = FlowActions.load(host)
    async with actions.lifespan():
        transport = transport_of(actions)
        async with httpx.AsyncClient(transport=transport, base_url="http://host") as client:
            shop = Shop(host, actions, client)
            shop.become("acme")
            yield shop


@asynccontextmanager
async def chatting(url: str, **settings: str) -> AsyncIterator[tuple[Shop, FakeChatProvider]]:
    """Run a host of this release, and the provider that knows the tokens of before."""
    provider = FakeChatProvider([sample_workspace("Acme", "T0ACME"), sample_workspace("Globex", "T0GLOBEX")])
    for workspace in provider.state.workspaces:
        provider.state.add_token(workspace, f"xoxb-of-{workspace.id}")
    async with serve(provider.app) as base:
        chat = {
            "CHAT_CLIENT_ID": CLIENT_ID,
            "CHAT_CLIENT_SECRET": CLIENT_SECRET,
            "CHAT_SIGNING_SECRET": SIGNING_SECRET,
            "CHAT_API_URL": f"{base}/api/",
            "CHAT_AUTHORIZE_URL": f"{base}/oauth/v2/authorize",
            "BACKEND_PUBLIC_URL": "http://host",
        }
        async with started(url, **chat, **settings) as shop:
            yield shop, provider


def decoded(row: Mapping[str, Any]) -> dict[str, Any]:
    """Make text of what is text; what is not UTF-8, and what is no text, stays bytes."""

    def read(name: str, value: Any) -> Any:
        if not isinstance(value, bytes) or name in {"body", "response", "sealed_token"}:
            return value
        try:
            return value.decode()
        except UnicodeDecodeError:
            return value

    return {name: read(name, value) for name, value in row.items()}


async def rows_of(url: str, table: str) -> Rows:
    return [decoded(row) for row in (await every_row(url))[table]]


async def live(url: str) -> Rows:
    return [row for row in await rows_of(url, "flowactions_outbox") if row["status"] in {"pending", "retrying"}]


def event_ids(requests: Sequence[Request]) -> Counter[str]:
    return Counter(request.header("x-service-webhook-id") for request in requests)
