"""Shows what LangGraph runs again, and under which event ids: ``python -m tests.conformance.hosts.langgraph.repeated FOLDER``.

A process is killed between a node and its checkpoint; another one continues the thread, retries a node, resumes its interrupt, and
travels back to before the first node. Then it begins the thread anew. Prints, as JSON, the event ids in the outbox: node id → one of each row.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from glue import (
    ActionNodes,
    ActionState,
    State,
    step_id,
    unless_halted,
)
from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver
from langgraph.graph import END, START, StateGraph
from langgraph.types import Command, RetryPolicy, interrupt

from flowactions_hookspecs import FlowActions
from tests.conformance.hosts.langgraph.small import walk_of
from tests.conformance.hosts.small_host import DATABASE, WEBHOOK, SmallHost, outbox

THREAD: RunnableConfig = {"configurable": {"thread_id": "thread-1"}}
KILLED = 9


class Killing(AsyncSqliteSaver):
    """Ends the process when a node has run and its checkpoint is to be written."""

    async def aput_writes(self, config: Any, writes: Any, task_id: str, task_path: str = "") -> None:
        """See the class."""
        if any(channel == "visits" for channel, _ in writes):
            os._exit(KILLED)
        await super().aput_writes(config, writes, task_id, task_path)


def graph_of(nodes: ActionNodes) -> StateGraph[ActionState]:
    """Make a graph with each kind of node: one runs at once, one fails once, one is beside an interrupt, and two wait."""
    beside = nodes.action("beside-the-interrupt", "webhook", WEBHOOK)
    retried = nodes.action("retried", "webhook", WEBHOOK)
    failures = [ConnectionError("once")]

    async def fail_once(state: State, config: RunnableConfig) -> dict[str, Any]:
        update = await retried(state, config)
        if failures:
            raise failures.pop()
        return update

    async def ask(state: State, config: RunnableConfig) -> dict[str, Any]:
        update = await beside(state, config)
        interrupt({"question": "How was it?", "step": step_id(state, "step")})
        return update

    graph = StateGraph(ActionState)
    nodes.add_action(graph, "at-once", "webhook", WEBHOOK)
    nodes.add_action(graph, "before-the-step", "webhook", WEBHOOK, waits=True)
    nodes.add_step(graph, "step")
    graph.add_node("ask", ask)
    nodes.add_action(graph, "at-the-end", "webhook", WEBHOOK, waits=True)
    nodes.add_end(graph, "end")
    graph.add_edge(START, "at-once")
    graph.add_conditional_edges("at-once", unless_halted("retried"))
    graph.add_node("retried", fail_once, retry_policy=RetryPolicy(initial_interval=0.01))
    graph.add_conditional_edges("retried", unless_halted("before-the-step"))
    graph.add_edge("before-the-step", "step")
    graph.add_conditional_edges("step", unless_halted("ask"))
    graph.add_conditional_edges("ask", unless_halted("at-the-end"))
    graph.add_edge("at-the-end", "end")
    graph.add_edge("end", END)
    return graph


async def go(folder: Path, *, killed: bool) -> None:
    """Run the thread: to its first node, or to its end and then from its beginning again."""
    actions = FlowActions.load(SmallHost(folder))
    graph = graph_of(ActionNodes(actions, walk_of))
    saver = Killing if killed else AsyncSqliteSaver
    async with actions.lifespan(tasks=False), saver.from_conn_string(str(folder / DATABASE)) as checkpoints:
        await checkpoints.setup()
        app = graph.compile(checkpointer=checkpoints)
        if killed:
            await app.ainvoke({}, THREAD, durability="sync")
        await app.ainvoke(None, THREAD)
        await app.ainvoke(Command(resume="well"), THREAD)
        async for state in app.aget_state_history(THREAD):
            if state.next == ("at-once",):
                await app.ainvoke(None, state.config)
        await app.ainvoke(Command(resume="well"), THREAD)
        await app.ainvoke({}, THREAD)


def main() -> None:
    """Run it in two processes, and print what is in the outbox."""
    folder = Path(sys.argv[1])
    if sys.argv[2:] == ["killed"]:
        asyncio.run(go(folder, killed=True))
    ended = subprocess.run([sys.executable, "-m", __spec__.name, str(folder), "killed"], check=False).returncode
    assert ended == KILLED, ended
    asyncio.run(go(folder, killed=False))
    found: dict[str, list[str]] = {}
    for node_id, event_id, _ in outbox(folder):
        found.setdefault(node_id, []).append(event_id)
    sys.stdout.write(json.dumps(found))


if __name__ == "__main__":
    main()
