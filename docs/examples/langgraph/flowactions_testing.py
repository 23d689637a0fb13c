"""The conformance kit's view of a host whose flows LangGraph runs: how to make it, and how to use it as its users do.

Prove the host: python -m flowactions_conformance run flowactions_testing:make_host

`glue.py` puts action nodes into graphs. `graphs.py` makes a graph of each flow of the kit. Accounts and flows are those of
`example_host.py`, in memory; threads are in LangGraph's checkpoints. Put yours in their place.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import msgspec
from example_host import Data, Engine, ExampleHost, MyDriver, Run, new_walk
from glue import ActionNodes
from graphs import (
    Item,
    actions_in,
    config_of,
    going_on,
    graph_of,
    shown,
    with_sub_flows,
)
from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver
from langgraph.graph.state import CompiledStateGraph

from flowactions_conformance import Env, Flow
from flowactions_hookspecs import FlowActions, Node, Walk


class GraphData(Data):
    """Flows as `graphs.py` takes them."""

    def items_of(self, flow_id: str) -> list[Item]:
        """Return the items of a flow, with those of its sub-flows."""
        return with_sub_flows(self._own(flow_id), self._own)

    def _own(self, flow_id: str) -> Sequence[Item]:
        items: list[Item] = msgspec.to_builtins(self.flows[flow_id].items)
        return items


class GraphHost(ExampleHost):
    """Answers what plugins ask of it."""

    _data: GraphData

    async def node(self, organization_id: str, flow_id: str, node_id: str) -> Node | None:
        """Return the node as it is now, in the flow or one of its sub-flows."""
        flow = self._data.flows.get(flow_id)
        if flow is None or flow.organization != organization_id:
            return None
        for item in actions_in(self._data.items_of(flow_id)):
            if item["id"] == node_id:
                return Node(id=node_id, type=item["type"], config=item["config"])
        return None


class GraphRun(Run):
    """A run: a thread of LangGraph's. It keeps the graph of the flow as it was when it was opened."""

    def __init__(self, walk: Walk, graph: CompiledStateGraph[Any]) -> None:
        super().__init__(walk, [])
        self.graph = graph
        self.step: str | None = None

    @property
    def shown(self) -> str | None:
        """The step that the user sees."""
        return self.step


class GraphEngine(Engine):
    """LangGraph, which walks flows."""

    _runs: dict[str, GraphRun]  # type: ignore[assignment]

    def __init__(self, actions: FlowActions, data: GraphData, checkpoints: BaseCheckpointSaver[Any]) -> None:
        super().__init__(actions)
        self._data = data
        self._checkpoints = checkpoints

    async def open(self, flow: Flow, user: str, content: str) -> Run:
        """Start a thread: it runs to its end, or to its first interrupt."""
        walk = new_walk(flow, user, content)
        nodes = ActionNodes(self._actions, lambda *_: walk)
        graph = graph_of(self._data.items_of(flow.id), nodes, paced=flow.pacing == "deferred")
        run = GraphRun(walk, graph.compile(checkpointer=self._checkpoints))
        self._runs[walk.run_id] = run
        return await self._go_on(run, {})

    async def next(self, run_id: str, at: str | None) -> Run:
        """Resume the interrupt that the user has seen, and no other one."""
        run = self._runs[run_id]
        if run.done or at != run.shown:
            return run  # a doubled click, or a step that the client made up
        state = await run.graph.aget_state(config_of(run_id))
        return await self._go_on(run, going_on(state)) if at == shown(state)["step"] else run

    async def _go_on(self, run: GraphRun, given: Any) -> Run:
        graph, config = run.graph, config_of(run.walk.run_id)
        await graph.ainvoke(given, config, durability="sync")
        turn = shown(await graph.aget_state(config))
        run.step, run.done = turn["step"], turn["done"]
        return run


class GraphDriver(MyDriver):
    """Uses the host as its editor, its end users and its customers do: best over HTTP, at env.base_url."""

    # What the host does beyond "core": example_host.py explains these, and names what further profiles need.
    claims = frozenset({"pacing", "loops", "tenancy"})

    def __init__(self, data: GraphData, actions: FlowActions, checkpoints: BaseCheckpointSaver[Any]) -> None:
        super().__init__(data, actions)
        self._engine = GraphEngine(actions, data, checkpoints)


@asynccontextmanager
async def make_host(env: Env) -> AsyncIterator[GraphDriver]:
    """Make the host. The kit calls this several times, sometimes for two hosts at once, and in child processes."""
    data = GraphData()
    async with AsyncSqliteSaver.from_conn_string(str(env.state_dir / "checkpoints.db")) as checkpoints:
        await checkpoints.setup()
        yield GraphDriver(data, FlowActions.load(GraphHost(env.settings, data)), checkpoints)
