"""An app whose flows LangGraph runs, and its driver for the conformance kit."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from itertools import pairwise
from typing import Any

import msgspec
from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.checkpoint.postgres.aio import AsyncPostgresSaver
from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver
from langgraph.graph import END, START, StateGraph
from langgraph.graph.state import CompiledStateGraph
from langgraph.types import Command, interrupt
from sqlalchemy.engine import make_url

from flowactions_conformance import Env
from flowactions_hookspecs import FlowActions, Walk
from tests.conformance.hosts.fastapi_host import (
    Data,
    ShopDriver,
    ShopHost,
    Walker,
    create_app,
    new_walk,
    owed,
    runs,
)
from tests.conformance.hosts.langgraph.glue import ActionNodes, ActionState, unless_halted

BEGIN, DONE = "begin", "done"


class GraphHost(ShopHost):
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
    """Runs each flow as a graph. `ActionNodes` adds a node for each action, and for each step a node that interrupts."""

    host: GraphHost

    async def open(self, flow: Data, user_id: str, content: str) -> Data:
        """Each run is a thread of its own, and keeps the flow as it is now."""
        walk = new_walk(flow, user_id, content)
        kept = {"items": flow["items"], "state": flow["pacing"]}
        run = {"id": walk.run_id, "walk": msgspec.to_builtins(walk), **kept}
        await self.host._put(runs, **run, position=-1)
        return await self._go_on(run, {})

    async def next(self, run: Data, at: str | None) -> Data:
        """Resume the interrupt that the user has seen, and no other one."""
        state = await self._graph(run).aget_state(_config(run))
        if state.next and not state.interrupts:
            return await self._go_on(run, None)  # its process was killed between two nodes
        shown = _shown(run, state)
        if shown["done"] or at != shown["step"]:
            return shown
        return await self._go_on(run, Command(resume=True))

    def turn(self, run: Data) -> Data:
        """Return what `open` and `next` give: it is what the browser gets."""
        return run

    async def _go_on(self, run: Data, given: Any) -> Data:
        graph = self._graph(run)
        await graph.ainvoke(given, _config(run), durability="sync")
        return _shown(run, await graph.aget_state(_config(run)))

    def _graph(self, run: Data) -> CompiledStateGraph[Any]:
        items, paced = run["items"], run["state"] == "deferred"
        nodes = ActionNodes(self.actions, lambda _: msgspec.convert(run["walk"], Walk), self._later)
        graph = StateGraph(ActionState)
        graph.add_node(BEGIN, _not_yet if paced and items and items[0]["kind"] == "action" else _nothing)
        for index, item in enumerate(items):
            if item["kind"] == "action":
                step = next((each["id"] for each in items[index:] if each["kind"] == "step"), None)
                nodes.add_action(graph, item["id"], item["type"], item["config"], before=step if paced else "")
            elif paced:
                nodes.add_step(graph, item["id"], {"text": item["text"]})
            else:
                graph.add_node(item["id"], _nothing)
        if paced:
            nodes.add_end(graph, DONE)
        else:
            graph.add_node(DONE, _nothing)
        graph.add_edge(START, BEGIN)
        for name, then in pairwise([BEGIN, *(item["id"] for item in items), DONE, END]):
            graph.add_conditional_edges(name, unless_halted(then))
        return graph.compile(checkpointer=self.host.checkpoints)

    async def _later(self, walk: Walk, step_id: str | None) -> None:
        await self.host._put(owed, id=f"{walk.run_id}/{step_id}", run_id=walk.run_id, step_id=step_id)


def _config(run: Data) -> RunnableConfig:
    return {"configurable": {"thread_id": run["id"]}, "recursion_limit": len(run["items"]) + 10}


def _nothing(_: ActionState) -> ActionState:
    return {}


def _not_yet(_: ActionState) -> ActionState:
    interrupt({"step": None})  # what precedes the first step waits for the user, too
    return {}


def _shown(run: Data, state: Any) -> Data:
    step = state.interrupts[0].value["step"] if state.interrupts else None
    return {"run": run["id"], "step": step, "done": not state.next}


class GraphDriver(ShopDriver):
    """How the kit uses this host."""

    claims = frozenset({"pacing", "tenancy", "durability", "scale"})


@asynccontextmanager
async def make_host(env: Env) -> AsyncIterator[GraphDriver]:
    """``python -m flowactions_conformance run tests.conformance.hosts.langgraph.host:make_host``."""
    host = GraphHost(env.settings, env.database_url)
    actions = FlowActions.load(host)
    yield GraphDriver(host, create_app(host, actions, GraphWalker(host, actions)), env)
