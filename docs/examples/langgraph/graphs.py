"""Makes a graph of a flow, as the kit describes flows: `Step`, `Action`, `Branch`, `Loop` and `SubFlow`, as dictionaries.

Your own graphs need none of this: `glue.py` is all that they use.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from glue import (
    ActionNodes,
    ActionState,
    State,
    step_id,
    unless_halted,
)
from langchain_core.runnables import RunnableConfig
from langgraph.graph import END, START, StateGraph
from langgraph.types import Command, interrupt

Item = dict[str, Any]
BEGIN, DONE = "begin", "done"


class FlowState(ActionState):
    """What the graph of a flow keeps.

    Attributes:
        rounds: of each loop, the one that is being walked.
    """

    rounds: dict[str, int]


def graph_of(items: Sequence[Item], nodes: ActionNodes, *, paced: bool) -> StateGraph[FlowState]:
    """Make the graph of a flow.

    Args:
        items: a sub-flow's own are among them, as ``items``.
        nodes: adds the action nodes.
        paced: whether the user goes from step to step.
    """
    graph = StateGraph(FlowState)
    graph.add_node(BEGIN, _wait if paced and items and items[0]["kind"] != "step" else _nothing)
    if paced:
        nodes.add_end(graph, DONE)
    else:
        graph.add_node(DONE, _nothing)
    graph.add_edge(START, BEGIN)
    graph.add_conditional_edges(BEGIN, unless_halted(_Builder(graph, nodes, paced).add(items, DONE)))
    graph.add_edge(DONE, END)
    return graph


def shown(state: Any) -> Item:
    """Return the step at which a thread waits for the user, and whether it has ended.

    Args:
        state: what ``aget_state`` gives.
    """
    step = state.interrupts[0].value["step"] if state.interrupts else None
    return {"step": step, "done": not state.next}


def going_on(state: Any) -> Command[Any]:
    """Return what resumes the interrupt at which a thread waits, and no later one: a doubled request moves it once.

    Args:
        state: what ``aget_state`` gives.
    """
    return Command(resume={each.id: True for each in state.interrupts})


def with_sub_flows(items: Sequence[Item], flows: Callable[[str], Sequence[Item]]) -> list[Item]:
    """Put the items of sub-flows into the items of a flow.

    Args:
        items: of the flow.
        flows: id of a flow → its items.
    """
    found = []
    for item in items:
        inner: Item = {
            name: with_sub_flows(item[name], flows) for name in ("items", "taken", "other") if name in item
        }
        if item["kind"] == "subflow":
            inner["items"] = with_sub_flows(flows(item["flow"]), flows)
        found.append({**item, **inner})
    return found


def actions_in(items: Sequence[Item]) -> Iterator[Item]:
    """Return the action nodes of items as `with_sub_flows` returns them, in loops, branches and sub-flows, too."""
    for item in items:
        if item["kind"] == "action":
            yield item
        for name in ("items", "taken", "other"):
            yield from actions_in(item.get(name, ()))


def _nothing(_: State) -> Item:
    return {}


def _wait(_: State) -> Item:
    interrupt({"step": None})  # what precedes the first step waits for the user, too
    return {}


class _Builder:
    """Adds the nodes of items to a graph."""

    def __init__(self, graph: StateGraph[FlowState], nodes: ActionNodes, paced: bool) -> None:
        self._graph = graph
        self._nodes = nodes
        self._paced = paced

    def add(self, items: Sequence[Item], then: str) -> str:
        """Add items that are walked one behind the other.

        Args:
            items: theirs.
            then: the node behind the last one.

        Returns:
            The first node.
        """
        for item in reversed(items):
            then = getattr(self, f"_add_{item['kind']}")(item, then)
        return then

    def _add_action(self, item: Item, then: str) -> str:
        self._nodes.add_action(self._graph, item["id"], item["type"], item["config"], waits=self._paced)
        return self._followed(item["id"], then)

    def _add_step(self, item: Item, then: str) -> str:
        if not self._paced:
            return then
        name = item["id"]

        def ask(state: State) -> Item:
            interrupt({"text": item["text"], "step": step_id(state, name)})
            return {}

        self._nodes.add_step(self._graph, name)
        self._graph.add_node(f"ask {name}", ask)
        self._followed(f"ask {name}", then)
        return self._followed(name, f"ask {name}")

    def _add_branch(self, item: Item, then: str) -> str:
        arms = {"taken": self.add(item["taken"], then), "other": self.add(item["other"], then)}
        self._graph.add_node(item["id"], _nothing)
        self._graph.add_conditional_edges(item["id"], lambda _: "taken", arms)
        name: str = item["id"]
        return name

    def _add_loop(self, item: Item, then: str) -> str:
        name, times = item["id"], item["times"]

        def count(state: State) -> Item:
            rounds = state.get("rounds", {})
            return {"rounds": {**rounds, name: rounds.get(name, 0) % (times + 1) + 1}}

        self._graph.add_node(name, count)
        ways = {True: self.add(item["items"], name), False: then}
        self._graph.add_conditional_edges(name, lambda state: state["rounds"][name] <= times, ways)
        return str(name)

    def _add_subflow(self, item: Item, then: str) -> str:
        inner: StateGraph[FlowState] = StateGraph(FlowState)
        first = _Builder(inner, self._nodes, self._paced).add(item["items"], END)
        if first == END:
            return then
        inner.add_edge(START, first)
        self._nodes.add_subgraph(self._graph, item["id"], inner.compile())
        return self._followed(item["id"], then)

    def _followed(self, name: str, then: str) -> str:
        self._graph.add_conditional_edges(name, unless_halted(then))
        return name


def config_of(run_id: str) -> RunnableConfig:
    """Return the config of a run's thread."""
    return {"configurable": {"thread_id": run_id}, "recursion_limit": 1000}
