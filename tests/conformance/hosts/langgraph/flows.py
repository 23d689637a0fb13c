"""A map-reduce with ``Send`` and action nodes in LangGraph: ``python -m tests.conformance.hosts.langgraph.flows FOLDER``.

Parts of a report are written side by side, and joined. The graph is run to its end, and then a second time from its first
checkpoint. Prints, as JSON, what is in the outbox after each: [node id, event id, body].
"""

from __future__ import annotations

import asyncio
import json
import operator
import sys
from pathlib import Path
from typing import Annotated, Any

from glue import ActionNodes, ActionState, handed_on
from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver
from langgraph.graph import END, START, StateGraph
from langgraph.types import Send

from flowactions_hookspecs import FlowActions
from tests.conformance.hosts.langgraph.small import walk_of
from tests.conformance.hosts.small_host import WEBHOOK, SmallHost, outbox


class Report(ActionState):
    """The state of a map-reduce.

    Attributes:
        said: the topic of one branch, or the report.
        topics: one for each branch.
        parts: one of each branch.
    """

    said: str
    topics: list[str]
    parts: Annotated[list[str], operator.add]


def map_reduce(nodes: ActionNodes) -> StateGraph[Report]:
    """A report whose parts are written side by side, each with an action node of its own passage."""

    def plan(_: Report) -> dict[str, Any]:
        return {"topics": ["stars", "moons", "suns"]}

    def fan_out(state: Report) -> list[Send]:
        return [Send("write", {**handed_on(state), "said": topic}) for topic in state["topics"]]

    async def write(state: Report, config: RunnableConfig) -> dict[str, Any]:
        return {**await written(state, config), "parts": [f"about {state['said']}"]}

    def join(state: Report) -> dict[str, Any]:
        return {"said": ", ".join(state["parts"])}

    written = nodes.action("written", "webhook", WEBHOOK)
    graph = StateGraph(Report)
    graph.add_node("plan", plan)
    graph.add_node("write", write)
    graph.add_node("join", join)
    nodes.add_action(graph, "joined", "webhook", WEBHOOK)
    graph.add_edge(START, "plan")
    graph.add_conditional_edges("plan", fan_out, ["write"])
    graph.add_edge("write", "join")
    graph.add_edge("join", "joined")
    graph.add_edge("joined", END)
    return graph


async def main(folder: Path) -> dict[str, list[tuple[str, str, str]]]:
    """Run the graph to its end, and again from its first checkpoint."""
    actions = FlowActions.load(SmallHost(folder))
    graph = map_reduce(ActionNodes(actions, walk_of))
    thread: RunnableConfig = {"configurable": {"thread_id": "thread-1"}}
    found = {}
    async with (
        actions.lifespan(tasks=False),
        AsyncSqliteSaver.from_conn_string(str(folder / "checkpoints.db")) as checkpoints,
    ):
        app = graph.compile(checkpointer=checkpoints)
        await app.ainvoke({"parts": []}, thread)
        found["once"] = outbox(folder)
        first = [state async for state in app.aget_state_history(thread)][-1]
        await app.ainvoke(None, first.config)
        assert not (await app.aget_state(thread)).next, "it has ended again"
        found["again"] = outbox(folder)[len(found["once"]) :]
    return found


if __name__ == "__main__":
    sys.stdout.write(json.dumps(asyncio.run(main(Path(sys.argv[1])))))
