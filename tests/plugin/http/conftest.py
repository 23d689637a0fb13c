from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from flowactions_hookspecs import (
    Agent,
    ApiPrincipal,
    LogicAction,
)
from tests.chatting import ChatHost, chat_host


@pytest.fixture
async def run(tmp_path: Path, sqlite_url: str, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[ChatHost]:
    """A host with chat, an agent and a logic action, connected to a workspace, with somebody signed in."""
    monkeypatch.chdir(tmp_path)
    async with chat_host(
        sqlite_url,
        AUTH_WEBHOOK_SIGNING_SECRET="whsec_c2VjcmV0LXNlY3JldC1zZWNyZXQ=",
        FLOWACTIONS_DASHBOARD_ORIGINS="https://app.example.com",
        FLOWACTIONS_HOST_WORKER="off",
    ) as running:
        running.host.agents = [
            Agent(id="agent-1", name="A", organization_id="acme"),
            Agent(id="agent-2", name="B", organization_id="globex"),
        ]
        running.host.api = ApiPrincipal(organization_id="acme", all_agents=True)
        running.host.action = LogicAction(url="http://127.0.0.1:9/hook")
        await running.connect()
        yield running
