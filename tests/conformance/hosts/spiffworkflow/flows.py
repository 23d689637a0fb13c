"""Parcels that several people pack side by side, with action nodes: ``python -m tests.conformance.hosts.spiffworkflow.flows FOLDER``.

The process is run to its end, and then a second time from how it was serialized before, with people who answer in another order.
Prints, as JSON, what is in the outbox after each: [node id, event id, body].
"""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

from glue import shown
from processes import serializer
from SpiffWorkflow.bpmn.workflow import BpmnWorkflow

from flowactions_hookspecs import FlowActions
from tests.conformance.hosts.small_host import SmallHost, outbox
from tests.conformance.hosts.spiffworkflow.small import engine_of, workflow_in

ANSWERS: list[tuple[str, dict[str, Any]]] = [("pack", {}), ("bill", {"said": "the bill"}), ("pack", {})]
"""What people answer: the task and the data."""


def run(actions: FlowActions, state: str, first: int) -> None:
    """Run a process from how it was serialized to its end; it is serialized and restored between any two answers.

    Args:
        actions: the plugins.
        state: the serialization.
        first: the index of who answers first, where several people have the same task: 0 or -1.
    """
    workflow = _restored(actions, state)
    workflow.script_engine.go_on(workflow)
    for name, data in ANSWERS:
        workflow = _restored(actions, serializer().serialize_json(workflow))
        task = [each for each in shown(workflow) if each.task_spec.bpmn_id == name][first]
        task.data.update(data)
        task.run()
        workflow.script_engine.go_on(workflow)
    assert workflow.completed, "it has ended"


def _restored(actions: FlowActions, state: str) -> BpmnWorkflow:
    workflow = serializer().deserialize_json(state)
    workflow.script_engine = engine_of(actions)
    return workflow


async def main(folder: Path) -> dict[str, list[tuple[str, str, str]]]:
    """Run the process to its end, and again from its beginning."""
    workflow = workflow_in("shipping")
    workflow.task_tree.data["towns"] = ["Rome", "Oslo"]
    state = serializer().serialize_json(workflow)
    actions = FlowActions.load(SmallHost(folder))
    async with actions.lifespan(tasks=False):
        await asyncio.to_thread(run, actions, state, 0)
        once = outbox(folder)
        await asyncio.to_thread(run, actions, state, -1)
    return {"once": once, "again": outbox(folder)[len(once) :]}


if __name__ == "__main__":
    sys.stdout.write(json.dumps(asyncio.run(main(Path(sys.argv[1])))))
