"""Three processes as people draw them for SpiffWorkflow, with action nodes: ``python -m tests.conformance.hosts.spiffworkflow.flows FOLDER``.

An order with a loop and a called process, parcels that several people pack side by side, and an approval with a timer that
reminds. Each is run to its end, and then a second time from how it was serialized before, with people who answer in another order.
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

FLOWS: dict[str, tuple[dict[str, Any], list[tuple[str, dict[str, Any]]]]] = {
    "order": (
        {},
        [
            ("choose", {"product": "cup", "more": True}),
            ("choose", {"product": "plate", "more": True}),
            ("choose", {"product": "cup", "more": False}),
        ],
    ),
    "shipping": ({"towns": ["Rome", "Oslo"]}, [("pack", {}), ("bill", {"said": "the bill"}), ("pack", {})]),
    "approval": ({"drafts": 0}, [("approve", {"approved": False}), ("approve", {"approved": True})]),
}
"""Name → its data, and what people answer: the task and the data."""


def run(actions: FlowActions, state: str, answers: list[tuple[str, dict[str, Any]]], first: int) -> None:
    """Run a process from how it was serialized to its end; it is serialized and restored between any two answers.

    Args:
        actions: the plugins.
        state: the serialization.
        answers: see `FLOWS`.
        first: the index of who answers first, where several people have the same task: 0 or -1.
    """
    workflow = _restored(actions, state)
    workflow.script_engine.go_on(workflow)
    for name, data in answers:
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


async def run_twice(folder: Path, name: str) -> dict[str, list[tuple[str, str, str]]]:
    """Run a process to its end, and again from its beginning."""
    data, answers = FLOWS[name]
    workflow = workflow_in(name)
    workflow.task_tree.data.update(data)
    state = serializer().serialize_json(workflow)
    actions = FlowActions.load(SmallHost(folder))
    async with actions.lifespan(tasks=False):
        await asyncio.to_thread(run, actions, state, answers, 0)
        once = outbox(folder)
        await asyncio.to_thread(run, actions, state, answers, -1)
    return {"once": once, "again": outbox(folder)[len(once) :]}


def main() -> None:
    """Run all of them, each in a folder of its own."""
    sent = {}
    for name in FLOWS:
        folder = Path(sys.argv[1]) / name
        folder.mkdir()
        sent[name] = asyncio.run(run_twice(folder, name))
    sys.stdout.write(json.dumps(sent))


if __name__ == "__main__":
    main()
