"""Action nodes in a LangGraph graph, and steps at which it waits for the user.

    nodes = ActionNodes(actions, walk_of, later)
    nodes.add_action(graph, "notify", "webhook", {"webhookUrl": "https://hooks.example/x"}, before="ask")
    nodes.add_step(graph, "ask", {"question": "How was it?"})
    graph.add_conditional_edges("notify", unless_halted("ask"))

LangGraph may run a node's function several times for one passage: after a crash before its checkpoint, on a resume, on a
retry, on time travel. The passages through each node are counted in a channel of the state, which checkpoints keep. So
every repetition has the visit of the first, and the event id.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from operator import or_
from typing import Annotated, Any, Final, Literal, TypedDict

from langchain_core.runnables import RunnableConfig
from langgraph.graph import END, StateGraph
from langgraph.types import interrupt
from msgspec.structs import replace

from flowactions_hookspecs import Deferred, FlowActions, Node, Walk

Later = Callable[[Walk, str | None], Awaitable[None]]

RUNNING_SECONDS: Final = 0.1
"""Between two questions whether another process has run the nodes of a step."""


def _newest(one: dict[str, int], other: dict[str, int]) -> dict[str, int]:
    return {**one, **other}


class ActionState(TypedDict, total=False):
    """What the state of a graph with action nodes has beside its own channels.

    Attributes:
        visits: passages through each action node and each step.
        halted: whether an action node has stopped the flow.
    """

    visits: Annotated[dict[str, int], _newest]
    halted: Annotated[bool, or_]


class ActionNodes:
    """The action nodes and the steps of a graph.

    Args:
        actions: the plugins.
        walk_of: makes the walk of a run from the config of its thread. The ``run_id`` is the thread's id.
        later: keeps a step whose nodes could not be run, because the database did not answer, to be advanced to again.
    """

    def __init__(self, actions: FlowActions, walk_of: Callable[[RunnableConfig], Walk], later: Later) -> None:
        self._actions = actions
        self._walk_of = walk_of
        self._later = later
        self.nodes: dict[str, Node] = {}
        """Node id → node: for `Host.node` and `Host.signing_secret`."""

    def add_action(
        self,
        graph: StateGraph[Any],
        name: str,
        kind: str,
        config: Mapping[str, Any],
        *,
        before: str | None = "",
    ) -> None:
        """Add an action node to a graph.

        Args:
            graph: its state has the channels of `ActionState`.
            name: the node's; also its id.
            kind: ``webhook``, ``chat_message`` or the type of another plugin.
            config: the node's.
            before: the step that follows: the node runs once, when the user gets there. ``None``: the end that `add_end`
                adds. Empty: it runs at once, and a repetition sends the same event again.
        """
        node = self.nodes[name] = Node(id=name, type=kind, config=config)

        async def act(state: ActionState, config: RunnableConfig) -> ActionState:
            passage = _passage(state, name)
            walk = replace(self._walk_of(config), visit=_visit(passage, config))
            if before != "":
                walk = replace(walk, pacing=Deferred(before and _step_id(state, before)))
            result = await self._actions.reach(walk, node)
            return {"visits": {name: passage}, "halted": result.halt}

        graph.add_node(name, act)

    def add_step(self, graph: StateGraph[Any], name: str, shown: Mapping[str, Any], into: str = "") -> None:
        """Add a node at which the graph waits for the user, when the action nodes before it have run.

        Args:
            graph: as for `add_action`.
            name: the node's.
            shown: the value of the interrupt; the id of the step is added.
            into: the channel that gets the value with which the interrupt is resumed; empty: none.
        """

        async def wait(state: ActionState, config: RunnableConfig) -> dict[str, Any]:
            # LangGraph calls this function again after the user's answer. Then no action nodes are left to run.
            if await self._is_halted(config, _step_id(state, name)):
                return {"halted": True}
            answer = interrupt({**shown, "step": _step_id(state, name)})
            return {"visits": {name: _passage(state, name)}, **({into: answer} if into else {})}

        graph.add_node(name, wait)

    def add_end(self, graph: StateGraph[Any], name: str) -> None:
        """Add the last node. It runs the action nodes that follow the last step."""

        async def end(_: ActionState, config: RunnableConfig) -> ActionState:
            return {"halted": await self._is_halted(config, None)}

        graph.add_node(name, end)

    async def _is_halted(self, config: RunnableConfig, step_id: str | None) -> bool:
        walk = self._walk_of(config)
        while (advanced := await self._actions.advance(walk, step_id)).state == "running":  # noqa: ASYNC110
            await asyncio.sleep(RUNNING_SECONDS)  # another call with this thread runs them
        if advanced.state == "unavailable":
            await self._later(walk, step_id)
        return advanced.state == "halted"


def unless_halted(then: str) -> Callable[[ActionState], str]:
    """Return the condition of the edge behind a node of ours: a node that halts ends the flow.

    Args:
        then: the node that follows.
    """

    def follow(state: ActionState) -> str:
        return END if state.get("halted") else then

    follow.__annotations__["return"] = Literal[then, END]  # LangGraph reads it
    return follow


def _passage(state: ActionState, name: str) -> int:
    return state.get("visits", {}).get(name, 0) + 1


def _step_id(state: ActionState, name: str) -> str:
    passage = _passage(state, name)
    return name if passage == 1 else f"{name}@{passage}"


def _visit(passage: int, config: RunnableConfig) -> str:
    kind, *place = config["metadata"]["langgraph_path"]
    return str(passage) if kind == "__pregel_pull" else f"{passage}/{place[0]}"  # one of several `Send`s
