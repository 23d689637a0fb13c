"""Shows what DBOS runs again, and under which event ids: ``python -m tests.conformance.hosts.dbos.repeated FOLDER``.

A process is killed between a node and DBOS's record of its step; another one recovers the workflow, answers it, rewinds it and
forks it. Prints, as JSON, the event ids in the outbox: node id → one of each row.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from typing import Any

from dbos import DBOS, SetWorkflowID
from glue import ActionNodes

from flowactions_hookspecs import Node, Walk
from tests.conformance.hosts.dbos.small import opened_host, outbox, walk_of, webhook

RUN = "run-1"
KILLED = 9
PATIENCE_SECONDS = 300.0
"""Only a hang takes longer."""

AT_ONCE, OUTSIDE, WAITS, LAST = (
    webhook(name) for name in ("at-once", "outside", "before-the-step", "at-the-end")
)


class Killing(ActionNodes):
    """Ends the process when a node has run that joins no transaction, and DBOS is to record its step."""

    async def reach(self, walk: Walk, node: Node, *, joins: bool) -> bool:
        """See the class."""
        await super().reach(walk, node, joins=joins)
        if node.id == OUTSIDE.id:
            os._exit(KILLED)
        return False


def register(nodes: ActionNodes) -> Any:
    """Register a workflow with each kind of node: in a transaction, outside of one, and two that wait."""

    @DBOS.workflow()
    async def everything() -> None:
        run = nodes.run(walk_of(DBOS.workflow_id))
        await run.reach(AT_ONCE)
        await run.reach_outside(OUTSIDE)
        run.wait(WAITS)
        step = await run.step("ask")
        await DBOS.set_event_async("shown", step)
        await DBOS.recv_async(step, timeout_seconds=PATIENCE_SECONDS)
        run.wait(LAST)
        await run.end()

    return everything


async def answer(run_id: str) -> None:
    """Wait for the workflow's step, go on, and wait for its end."""
    step = await DBOS.get_event_async(run_id, "shown", PATIENCE_SECONDS)
    await DBOS.send_async(run_id, None, topic=step)
    await (await DBOS.retrieve_workflow_async(run_id)).get_result()


async def go(place: str, *, killed: bool) -> list[tuple[str, str, str]]:
    """Run the workflow: to its second node, or to its end, again, and as a fork."""
    async with opened_host(place, register, Killing if killed else ActionNodes) as (engine, everything):
        if killed:
            with SetWorkflowID(RUN):
                await DBOS.start_workflow_async(everything)
            await asyncio.sleep(PATIENCE_SECONDS)
        await answer(RUN)
        await DBOS.rewind_workflow_async(RUN)
        await answer(RUN)
        await answer((await DBOS.fork_workflow_async(RUN, 1)).workflow_id)
        return await outbox(engine)


def main() -> None:
    """Run it in two processes, and print what is in the outbox."""
    place = sys.argv[1]
    if sys.argv[2:] == ["killed"]:
        asyncio.run(go(place, killed=True))
    ended = subprocess.run([sys.executable, "-m", __spec__.name, place, "killed"], check=False).returncode
    assert ended == KILLED, ended
    found: dict[str, list[str]] = {}
    for node_id, event_id, _ in asyncio.run(go(place, killed=False)):
        found.setdefault(node_id, []).append(event_id)
    sys.stdout.write(json.dumps(found))


if __name__ == "__main__":
    main()
