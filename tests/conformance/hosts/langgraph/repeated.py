"""Shows what LangGraph runs again, and under which event ids: ``python -m tests.conformance.hosts.langgraph.repeated FOLDER``.

A process is killed between a node and its checkpoint; another one goes on with the thread, resumes its interrupt, and travels
back to before the first node. Prints, as JSON, the event ids in the outbox: node id → one of each row.
"""

from __future__ import annotations

import asyncio
import json
import os
import sqlite3
import subprocess
import sys
from pathlib import Path
from typing import Any

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver
from langgraph.graph import END, START, StateGraph
from langgraph.types import Command

from flowactions_hookspecs import DashboardPrincipal, FlowActions, Host, Origin, OriginGone, Request, Walk
from tests.conformance.hosts.langgraph.glue import ActionNodes, ActionState, unless_halted

THREAD: RunnableConfig = {"configurable": {"thread_id": "thread-1"}}
WEBHOOK = {"webhookUrl": "https://hooks.example.com/x"}
KILLED = 9


class SmallHost(Host):
    """A host with one flow, whose nodes are unsigned."""

    def __init__(self, folder: Path) -> None:
        self.settings = {
            "FLOWACTIONS_DATABASE_URL": f"sqlite:///{folder / 'all.db'}",
            "FLOWACTIONS_HOST_WORKER": "off",
        }

    async def dashboard_principal(self, request: Request) -> DashboardPrincipal | None:
        """Nobody signs in."""

    async def signing_secret(self, origin: Origin) -> str | None:
        """Nothing is delivered here."""
        raise OriginGone


class Killing(AsyncSqliteSaver):  # type: ignore[misc]
    """Ends the process when a node has run and its checkpoint is to be written."""

    async def aput_writes(self, config: Any, writes: Any, task_id: str, task_path: str = "") -> None:
        """See the class."""
        if any(channel == "visits" for channel, _ in writes):
            os._exit(KILLED)
        await super().aput_writes(config, writes, task_id, task_path)


def walk_of(config: RunnableConfig) -> Walk:
    """Make the walk of a thread."""
    run_id = config["configurable"]["thread_id"]
    return Walk(organization_id="acme", agent_id="agent", flow_id="welcome", run_id=run_id)


async def never(_: Walk, step_id: str | None) -> None:
    """Fail: the database answers here."""
    raise AssertionError(step_id)


async def go(folder: Path, *, killed: bool) -> None:
    """Run the thread: to its first node, or to its end and then from its beginning again."""
    actions = FlowActions.load(SmallHost(folder))
    nodes = ActionNodes(actions, walk_of, never)
    graph = StateGraph(ActionState)
    nodes.add_action(graph, "at-once", "webhook", WEBHOOK)
    nodes.add_action(graph, "before-the-step", "webhook", WEBHOOK, before="ask")
    nodes.add_step(graph, "ask", {"question": "How was it?"})
    nodes.add_action(graph, "at-the-end", "webhook", WEBHOOK, before=None)
    nodes.add_end(graph, "end")
    graph.add_edge(START, "at-once")
    for name, then in [
        ("at-once", "before-the-step"),
        ("before-the-step", "ask"),
        ("ask", "at-the-end"),
        ("at-the-end", "end"),
        ("end", END),
    ]:
        graph.add_conditional_edges(name, unless_halted(then))
    saver = Killing if killed else AsyncSqliteSaver
    async with actions.lifespan(tasks=False), saver.from_conn_string(str(folder / "all.db")) as checkpoints:
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


def main() -> None:
    """Run it in two processes, and print what is in the outbox."""
    folder = Path(sys.argv[1])
    if sys.argv[2:] == ["killed"]:
        asyncio.run(go(folder, killed=True))
    ended = subprocess.run([sys.executable, "-m", __spec__.name, str(folder), "killed"], check=False).returncode
    assert ended == KILLED, ended
    asyncio.run(go(folder, killed=False))
    with sqlite3.connect(folder / "all.db") as connection:
        rows = connection.execute("SELECT node_id, event_id FROM flowactions_outbox ORDER BY id").fetchall()
    found: dict[str, list[str]] = {}
    for node_id, event_id in rows:
        found.setdefault(node_id, []).append(event_id)
    sys.stdout.write(json.dumps(found))


if __name__ == "__main__":
    main()
