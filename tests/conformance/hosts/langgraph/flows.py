"""Three flows as people build them with LangGraph, with action nodes: ``python -m tests.conformance.hosts.langgraph.flows FOLDER``.

An agent that uses tools and is approved by a person, a map-reduce with ``Send``, and a supervisor over sub-graphs. Plain functions
stand for the models. Each flow is run to its end, and then a second time from its first checkpoint. Prints, as JSON, what is
in the outbox after each: [node id, event id, body].
"""

from __future__ import annotations

import asyncio
import json
import operator
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Literal, cast

from glue import ActionNodes, ActionState, handed_on, unless_halted
from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver
from langgraph.graph import END, START, StateGraph
from langgraph.types import Command, Send, interrupt

from flowactions_hookspecs import FlowActions
from tests.conformance.hosts.langgraph.small import walk_of
from tests.conformance.hosts.small_host import WEBHOOK, SmallHost, outbox


class Chat(ActionState):
    """An agent's state.

    Attributes:
        said: what the agent said last.
        messages: all of them.
        left: the tool calls that it will make.
    """

    said: str
    messages: Annotated[list[str], operator.add]
    left: list[str]


def agent(nodes: ActionNodes) -> StateGraph[Chat]:
    """An agent that calls tools until it has an answer, which a person approves before it is published."""

    def think(state: Chat) -> dict[str, Any]:
        return {"said": f"call {state['left'][0]}" if state["left"] else "the answer"}

    def use_tool(state: Chat) -> dict[str, Any]:
        tool, *left = state["left"]
        return {"messages": [f"{tool} says 42"], "said": f"used {tool}", "left": left}

    def next_of(state: Chat) -> Literal["use_tool", "answered"]:
        return "use_tool" if state["said"].startswith("call") else "answered"

    def ask(state: Chat) -> Command[Literal["published", "think"]]:
        is_approved = interrupt({"approve": state["said"]})
        return Command(goto="published") if is_approved else Command(goto="think", update={"left": ["search"]})

    graph = StateGraph(Chat)
    graph.add_node("think", think)
    graph.add_node("use_tool", use_tool)
    nodes.add_action(graph, "tool_used", "webhook", WEBHOOK)
    nodes.add_action(graph, "answered", "webhook", WEBHOOK, waits=True)
    nodes.add_step(graph, "approval")
    graph.add_node("ask", ask)
    nodes.add_action(graph, "published", "webhook", WEBHOOK, waits=True)
    nodes.add_end(graph, "end")
    graph.add_edge(START, "think")
    graph.add_conditional_edges("think", next_of)
    graph.add_edge("use_tool", "tool_used")
    graph.add_conditional_edges("tool_used", unless_halted("think"))
    graph.add_edge("answered", "approval")
    graph.add_conditional_edges("approval", unless_halted("ask"))
    graph.add_edge("published", "end")
    graph.add_edge("end", END)
    return graph


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


class Team(ActionState):
    """The state of a supervisor and its workers.

    Attributes:
        said: the newest result.
        done: the workers that have worked, in order.
    """

    said: str
    done: Annotated[list[str], operator.add]


def supervisor(nodes: ActionNodes) -> StateGraph[Team]:
    """A supervisor that sends the work to sub-graphs until it is done; one of them works twice."""
    plan = ["research", "write", "research"]

    def decide(state: Team) -> Command[Literal["research", "write", "__end__"]]:
        if state.get("halted") or len(state["done"]) == len(plan):
            return Command(goto=END)
        return Command(goto=cast("Literal['research', 'write']", plan[len(state["done"])]))

    graph = StateGraph(Team)
    graph.add_node("decide", decide)
    for worker in ("research", "write"):
        nodes.add_subgraph(graph, worker, _worker(nodes, worker).compile())
        graph.add_edge(worker, "decide")
    graph.add_edge(START, "decide")
    return graph


class Work(ActionState):
    """The state of a worker: it shares one channel with the supervisor's."""

    said: str
    done: list[str]


def _worker(nodes: ActionNodes, name: str) -> StateGraph[Work]:
    def work(state: Work) -> dict[str, Any]:
        return {"said": f"{name} after {state.get('said', 'nothing')}", "done": [name]}

    graph = StateGraph(Work)
    graph.add_node("work", work)
    nodes.add_action(graph, f"{name}_done", "webhook", WEBHOOK)
    graph.add_edge(START, "work")
    graph.add_edge("work", f"{name}_done")
    graph.add_edge(f"{name}_done", END)
    return graph


FLOWS: dict[str, tuple[Callable[[ActionNodes], StateGraph[Any]], dict[str, Any], list[Any]]] = {
    "agent": (agent, {"left": ["search", "calculator"], "said": "", "messages": []}, [False, True]),
    "map_reduce": (map_reduce, {"parts": []}, []),
    "supervisor": (supervisor, {"done": []}, []),
}
"""Name → what builds it, its input, and what people answer."""


async def run(folder: Path, name: str) -> dict[str, list[tuple[str, str, str]]]:
    """Run a flow to its end, and again from its first checkpoint."""
    build, given, answers = FLOWS[name]
    actions = FlowActions.load(SmallHost(folder))
    graph = build(ActionNodes(actions, walk_of))
    thread: RunnableConfig = {"configurable": {"thread_id": "thread-1"}}
    found = {}
    async with (
        actions.lifespan(tasks=False),
        AsyncSqliteSaver.from_conn_string(str(folder / "checkpoints.db")) as checkpoints,
    ):
        app = graph.compile(checkpointer=checkpoints)
        await app.ainvoke(given, thread)
        for answer in answers:
            await app.ainvoke(Command(resume=answer), thread)
        assert not (await app.aget_state(thread)).next, "it has ended"
        found["once"] = outbox(folder)
        first = [state async for state in app.aget_state_history(thread)][-1]
        await app.ainvoke(None, first.config)
        for answer in answers:
            await app.ainvoke(Command(resume=answer), thread)
        assert not (await app.aget_state(thread)).next, "it has ended again"
        found["again"] = outbox(folder)[len(found["once"]) :]
    return found


def main() -> None:
    """Run all of them, each in a folder of its own."""
    sent = {}
    for name in FLOWS:
        folder = Path(sys.argv[1]) / name
        folder.mkdir()
        sent[name] = asyncio.run(run(folder, name))
    sys.stdout.write(json.dumps(sent))


if __name__ == "__main__":
    main()
