"""A host whose deliveries are asked for by the routes of the outbox."""

from __future__ import annotations

from typing import Any

from flowactions_hookspecs import Node
from tests.plugin.nodes import running as hosting


class Running(hosting.Running):
    async def enqueue(self, **walk: Any) -> str:
        result = await self.reach(
            Node(id="n", type="webhook", config={"webhookUrl": self.receiver.url}), **walk
        )
        assert result.delivery_id is not None
        return result.delivery_id

    async def rows(self, **query: Any) -> list[dict[str, Any]]:
        answer = await self.client.get("/v1/webhooks/outbox", params=query)
        rows: list[dict[str, Any]] = answer.json()["data"]
        return rows

    async def is_listed(self, delivery_id: str, state: str = "dead") -> bool:
        return any(row["id"] == delivery_id for row in await self.rows(status=state))
