"""Action nodes in a LangGraph graph, and steps at which they run when the user gets there.

    nodes = ActionNodes(actions, walk_of)
    nodes.add_action(graph, "notify", "webhook", {"webhookUrl": "https://hooks.example/x"})
    graph.add_conditional_edges("notify", unless_halted("ask"))

LangGraph may run a node's function several times for one passage: after a crash before its checkpoint, on a resume, on a
retry, on time travel. The passages through each node are counted in a channel of the state, which checkpoints keep. So
every repetition has the visit of the first, and the event id.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from operator import or_
from typing import Annotated, Any, Final, Literal, TypeAlias, TypedDict

from langchain_core.runnables import RunnableConfig
from langgraph.graph import END, StateGraph
from langgraph.graph.state import CompiledStateGraph
from msgspec.structs import replace

from flowactions_hookspecs import Deferred, FlowActions, Node, Walk

State: TypeAlias = Mapping[str, Any]
Function: TypeAlias = Callable[[State, RunnableConfig], Awaitable[dict[str, Any]]]

RUNNING_SECONDS: Final = 0.1
"""Between two questions whether another process has run the nodes of a step."""


def _merged(one: dict[str, Any], other: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in {**one, **other}.items() if value}


def _newest(_: str, other: str) -> str:
    return other


class ActionState(TypedDict, total=False):
    """What the state of a graph with action nodes has beside its own channels. Only the nodes of `ActionNodes` write to it.

    Attributes:
        visits: passages through each node of `ActionNodes`.
        waiting: action nodes that run at the next step.
        place: in a sub-graph, the passages through the nodes that called it.
        halted: whether an action node has stopped the flow.
    """

    visits: Annotated[dict[str, int], _merged]
    waiting: Annotated[dict[str, list[str]], _merged]
    place: Annotated[str, _newest]
    halted: Annotated[bool, or_]


class ActionNodes:
    """The action nodes and the steps of a graph, whose state has the channels of `ActionState`.

    Args:
        actions: the plugins.
        walk_of: makes the walk of a run from the state and the config of its thread. The ``run_id`` is the thread's id.

    Attributes:
        nodes: node id → node, for `Host.node`.
    """

    def __init__(self, actions: FlowActions, walk_of: Callable[[State, RunnableConfig], Walk]) -> None:
        self._actions = actions
        self._walk_of = walk_of
        self.nodes: dict[str, Node] = {}

    def action(self, name: str, kind: str, config: Mapping[str, Any], *, waits: bool = False) -> Function:
        """Make the function of an action node; a function of your own may call it, and must return what it returns.

        Args:
            name: the node's; also its id.
            kind: ``webhook``, ``chat_message`` or the type of another plugin.
            config: the node's.
            waits: it runs once, when the graph comes to the next node of `add_step` or `add_end`. Otherwise it runs at once,
                and a repetition sends the same event again.
        """
        node = self.nodes[name] = Node(id=name, type=kind, config=config)

        async def act(state: State, config: RunnableConfig) -> dict[str, Any]:
            passage, label = _passage(state, config, name)
            visit = state["place"] + label
            if waits:
                return {"visits": {name: passage}, "waiting": {f"{name} {visit}": [name, visit]}}
            result = await self._actions.reach(replace(self._walk_of(state, config), visit=visit), node)
            return {"visits": {name: passage}, "halted": result.halt}

        return act

    def add_action(
        self, graph: StateGraph[Any], name: str, kind: str, config: Mapping[str, Any], *, waits: bool = False
    ) -> None:
        """Add an action node to a graph: see `action`."""
        graph.add_node(name, self.action(name, kind, config, waits=waits))

    def add_step(self, graph: StateGraph[Any], name: str) -> None:
        """Add a node that runs the action nodes that wait. Behind it is your node that calls ``interrupt``."""
        graph.add_node(name, self._arrive(name, is_end=False))

    def add_end(self, graph: StateGraph[Any], name: str) -> None:
        """Add the last node of a graph. It runs the action nodes that wait behind the last step."""
        graph.add_node(name, self._arrive(name, is_end=True))

    def add_subgraph(self, graph: StateGraph[Any], name: str, subgraph: CompiledStateGraph[Any]) -> None:
        """Add a node that runs a sub-graph with action nodes, so that each passage through it has visits of its own.

        Args:
            graph: the outer one.
            name: of the node.
            subgraph: its state has the channels of `ActionState`, too.
        """

        async def run(state: State, config: RunnableConfig) -> dict[str, Any]:
            passage, label = _passage(state, config, name)
            inside = {**state, "visits": {}, "place": f"{state['place']}{name}:{label}|"}
            result = await subgraph.ainvoke(inside, config)
            waiting = {**dict.fromkeys(state["waiting"]), **result["waiting"]}
            return {**result, "visits": {name: passage}, "place": state["place"], "waiting": waiting}

        graph.add_node(name, run)

    def _arrive(self, name: str, *, is_end: bool) -> Function:
        async def arrive(state: State, config: RunnableConfig) -> dict[str, Any]:
            passage, _ = _passage(state, config, name)
            step = None if is_end else _step(state, name, passage)
            walk = self._walk_of(state, config)
            for node, visit in state["waiting"].values():
                recorded = replace(walk, visit=visit, pacing=Deferred(step))
                await self._actions.reach(recorded, self.nodes[node])
            while (advanced := await self._actions.advance(walk, step)).state == "running":  # noqa: ASYNC110
                await asyncio.sleep(RUNNING_SECONDS)  # another call with this thread runs them
            waiting = dict.fromkeys(state["waiting"])
            return {"visits": {name: passage}, "waiting": waiting, "halted": advanced.state == "halted"}

        return arrive


def unless_halted(then: str) -> Callable[[State], str]:
    """Return the condition of the edge behind a node of ours: a node that halts ends the flow.

    Args:
        then: the node that follows.
    """

    def follow(state: State) -> str:
        return END if state.get("halted") else then

    follow.__annotations__["return"] = Literal[then, END]  # LangGraph reads it
    return follow


def handed_on(state: State) -> dict[str, Any]:
    """Return what the state of a ``Send`` must have beside your own channels, if an action node or a sub-graph gets it."""
    return {name: state[name] for name in ("visits", "place")} | {"waiting": {}}


def step_id(state: State, name: str) -> str:
    """Return the id of the step that the run came to last, at a node of `add_step`: another one in each passage."""
    return _step(state, name, state["visits"][name])


def _step(state: State, name: str, passage: int) -> str:
    return f"{state['place']}{name}" + (f"@{passage}" if passage > 1 else "")


def _passage(state: State, config: RunnableConfig, name: str) -> tuple[int, str]:
    """Return the number of this passage through a node, and its name, which several `Send`s to the node have of their own."""
    if "visits" not in state:
        raise LookupError(f"the state that was sent to {name!r} lacks what handed_on(state) returns")
    if config["configurable"]["checkpoint_ns"].count("|") != state["place"].count("|"):
        raise LookupError(f"the sub-graph with {name!r} is not added by ActionNodes.add_subgraph")
    passage = state["visits"].get(name, 0) + 1
    kind, *place = config["metadata"]["langgraph_path"]
    return passage, str(passage) if kind == "__pregel_pull" else f"{passage}.{place[0]}"
