"""A host that runs, with a receiver and a client of its routes, and drafts of nodes."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import httpx

from flowactions_hookspecs import FlowActions, Node, NodeDraft, NodeResult
from tests.recorder import Recorder, recorder
from tests.support import SmallHost, a_walk, transport_of
from tests.waiting import until


def a_draft(kind: str = "webhook", organization: str = "acme", **config: Any) -> NodeDraft:
    return NodeDraft(
        organization_id=organization, agent_id="agent-1", node=Node(id="n1", type=kind, config=config)
    )


class Running:
    """A host whose plugin runs, a receiver, and a way to look at the outbox."""

    def __init__(self, host: Any, actions: FlowActions, receiver: Recorder, client: httpx.AsyncClient) -> None:
        self.host, self.actions, self.receiver, self.client = host, actions, receiver, client

    async def reach(self, node: Node, **walk: Any) -> NodeResult:
        return await self.actions.reach(a_walk(**walk), node)

    async def row(self, delivery_id: str | None) -> dict[str, Any]:
        row: dict[str, Any] = (await self.client.get(f"/v1/webhooks/outbox/{delivery_id}")).json()["data"]
        return row

    async def ended(self, result: NodeResult) -> dict[str, Any]:
        async def finished() -> dict[str, Any] | None:
            row = await self.row(result.delivery_id)
            return row if row["status"] in {"delivered", "dead"} else None

        row: dict[str, Any] = await until(finished)
        return row


@asynccontextmanager
async def running(host: SmallHost, plugins: Sequence[Any] = ()) -> AsyncIterator[Running]:
    actions = FlowActions.load(host, plugins=plugins)
    client = httpx.AsyncClient(transport=transport_of(actions), base_url="http://host")
    async with recorder() as receiver, actions.lifespan(), client:
        yield Running(host, actions, receiver, client)
