"""A host whose deliveries are asked for by the routes of the outbox."""

from __future__ import annotations

from typing import Any

import httpx

from flowactions_hookspecs import FlowActions, Node
from tests.recorder import Recorder
from tests.support import SmallHost, a_walk, transport_of


class Running:
    def __init__(self, host: SmallHost, actions: FlowActions, receiver: Recorder) -> None:
        self.host = host
        self.actions = actions
        self.receiver = receiver
        transport = transport_of(actions)
        self.client = httpx.AsyncClient(transport=transport, base_url="http://host")

    async def enqueue(self, **walk: Any) -> str:
        node = Node(id="n", type="webhook", config={"webhookUrl": self.receiver.url})
        result = await self.actions.reach(a_walk(**walk), node)
        assert result.delivery_id is not None
        return result.delivery_id

    async def rows(self, **query: Any) -> list[dict[str, Any]]:
        answer = await self.client.get("/v1/webhooks/outbox", params=query)
        rows: list[dict[str, Any]] = answer.json()["data"]
        return rows
