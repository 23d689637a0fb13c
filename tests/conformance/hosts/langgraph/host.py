"""An app whose flows LangGraph runs, and its driver for the conformance kit."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import msgspec
from glue import ActionNodes
from graphs import (
    config_of,
    going_on,
    graph_of,
    shown,
    with_sub_flows,
)
from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.checkpoint.postgres.aio import AsyncPostgresSaver
from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver
from langgraph.graph.state import CompiledStateGraph
from sqlalchemy.engine import make_url

from flowactions_conformance import Env
from flowactions_hookspecs import FlowActions, Walk
from tests.conformance.hosts.fastapi_host import Data, Walker, flows, new_walk, runs
from tests.conformance.hosts.full_shop import FullDriver, FullHost


class GraphHost(FullHost):
    """The host, with LangGraph's checkpoints in the database in which the plugin has its tables."""

    checkpoints: BaseCheckpointSaver[Any]

    @asynccontextmanager
    async def _open(self) -> AsyncIterator[None]:
        url = make_url(self._url)
        async with AsyncExitStack() as stack:
            await stack.enter_async_context(super()._open())
            if url.get_backend_name() == "sqlite":
                saver: Any = AsyncSqliteSaver.from_conn_string(str(url.database))
            else:
                plain = url.set(drivername="postgresql").render_as_string(hide_password=False)
                saver = AsyncPostgresSaver.from_conn_string(plain)
            self.checkpoints = await stack.enter_async_context(saver)
            await self.checkpoints.setup()
            yield


class GraphWalker(Walker):
    """Runs each flow as a graph: `graphs` makes it, and `ActionNodes` adds the action nodes."""

    host: GraphHost

    async def open(self, flow: Data, user_id: str, content: str) -> Data:
        """Each run is a thread of its own, and keeps the flow with its sub-flows as it is now."""
        walk = new_walk(flow, user_id, content)
        owned = await self.host._find(flows, organization_id=flow["organization_id"])
        items = with_sub_flows(flow["items"], {each["id"]: each["items"] for each in owned}.__getitem__)
        run = {"id": walk.run_id, "walk": msgspec.to_builtins(walk), "items": items, "state": flow["pacing"]}
        await self.host._put(runs, **run, position=-1)
        return await self._go_on(run, {})

    async def next(self, run: Data, at: str | None) -> Data:
        """Resume the interrupt that the user has seen, and no other one."""
        state = await self._graph(run).aget_state(config_of(run["id"]))
        if state.next and not state.interrupts:
            return await self._go_on(run, None)  # its process was killed between two nodes
        turn = self._turn(run, state)
        if turn["done"] or at != turn["step"]:
            return turn
        return await self._go_on(run, going_on(state))

    def turn(self, run: Data) -> Data:
        """Return what `open` and `next` give: it is what the browser gets."""
        return run

    async def _go_on(self, run: Data, given: Any) -> Data:
        graph, config = self._graph(run), config_of(run["id"])
        await graph.ainvoke(given, config, durability="sync")
        return self._turn(run, await graph.aget_state(config))

    def _graph(self, run: Data) -> CompiledStateGraph[Any]:
        nodes = ActionNodes(self.actions, lambda *_: msgspec.convert(run["walk"], Walk))
        graph = graph_of(run["items"], nodes, paced=run["state"] == "deferred")
        return graph.compile(checkpointer=self.host.checkpoints)

    def _turn(self, run: Data, state: Any) -> Data:
        return {"run": run["id"], **shown(state)}


class GraphDriver(FullDriver):
    """How the kit uses this host."""


@asynccontextmanager
async def make_host(env: Env) -> AsyncIterator[GraphDriver]:
    """``python -m flowactions_conformance run tests.conformance.hosts.langgraph.host:make_host``."""
    host = GraphHost(env.settings, env.database_url)
    actions = FlowActions.load(host)
    yield GraphDriver(host, actions, GraphWalker(host, actions), env)
