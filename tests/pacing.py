"""A host whose deferred nodes a test leads through their states, and its pacing from the inside."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

from msgspec.structs import replace
from sqlalchemy import text

from flowactions_hookspecs import Advanced, Deferred, FlowActions, Node, NodeResult, NodeType, Walk
from flowactions_plugin.nodes.pacing import Pacing
from flowactions_plugin.nodes.store import DeferredStore
from tests.support import SmallHost, development, services_of

URL = "http://127.0.0.1:9/"


class Telling(SmallHost):
    """A host that notes what recovery tells it."""

    def __init__(self, settings: dict[str, str], **more: Any) -> None:
        super().__init__(settings, **more)
        self.told: list[tuple[Walk, str | None, Advanced]] = []
        self.tell: Callable[[], Awaitable[None]] | None = None

    async def nodes_recovered(self, walk: Walk, step_id: str | None, advanced: Advanced) -> None:
        self.told.append((walk, step_id, advanced))
        if self.tell is not None:
            await self.tell()


class Paced:
    """A host, and its pacing from the inside."""

    def __init__(self, host: Telling, actions: FlowActions) -> None:
        self.host = host
        self.actions = actions
        self.services = services_of(host)
        self.pacing = self.services._pacing
        self.store = self.services._deferred
        self.database = self.services._database

    async def record(self, walk: Walk, name: str, *, step: str | None = "s", halts: bool = False) -> NodeResult:
        url = "ftp://x" if halts else URL
        config = {"webhookUrl": url, "webhookBody": f'"{name}"', "webhookContinueOnFailure": not halts}
        recorded = replace(walk, pacing=Deferred(step))
        return await self.actions.reach(recorded, Node(id=name, type="webhook", config=config))

    async def run(self, statement: str, **values: Any) -> None:
        async with self.database.write() as connection:
            await connection.execute(text(statement), values)

    async def query(self, statement: str) -> list[tuple[Any, ...]]:
        async with self.database.read() as connection:
            return [tuple(row) for row in (await connection.execute(text(statement))).all()]

    async def expire(self) -> None:
        await self.run("UPDATE flowactions_deferred SET held_until = 1 WHERE held_until IS NOT NULL")

    def killed(self) -> DeferredStore:
        """Return the store of another process, which does nothing after the test's calls, as if it was killed."""
        return another(self.pacing)._store

    def offering(self, *types: str) -> Pacing:
        """Make the pacing of another process, which offers these types."""

        async def fax(walk: Walk, node: Node) -> NodeResult:
            return NodeResult(status="sent", message=walk.visit)

        known = {
            "webhook": self.actions.node_types["webhook"],
            "fax": NodeType(name="fax", title="Fax", description="Faxes.", reach=fax),
        }
        offered = {name: known[name] for name in types}
        store = DeferredStore(self.database, lambda: types)
        return Pacing(self.database, store, lambda: offered, self.host)


@asynccontextmanager
async def paced(database_url: str, host_type: type[Telling] = Telling, **more: Any) -> AsyncIterator[Paced]:
    host = host_type(development(database_url, FLOWACTIONS_HOST_WORKER="off"), **more)
    actions = FlowActions.load(host)
    async with actions.lifespan():
        yield Paced(host, actions)


def another(pacing: Pacing) -> Pacing:
    """Make the pacing of another process with the same types."""
    store = DeferredStore(pacing.database, lambda: pacing._node_types().keys())
    return Pacing(pacing.database, store, pacing._node_types, pacing._host)


def ran(advanced: Advanced) -> list[str]:
    return [result.node_id for result in advanced.results]
