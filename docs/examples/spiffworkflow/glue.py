"""Action nodes in a BPMN process that SpiffWorkflow runs: service tasks whose operator is ``flowactions/webhook``, for example.

    workflow.script_engine = ActionEngine(actions, walk_of)
    workflow.script_engine.go_on(workflow)

A process that is restored from its serialization runs again what had run since. The passages through each task are numbered in
`Task.internal_data`, which the serialization keeps. So every repetition has the visit of the first, and the event id.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from itertools import count
from typing import Any, Final

from msgspec.structs import replace
from SpiffWorkflow.bpmn.script_engine import PythonScriptEngine
from SpiffWorkflow.bpmn.workflow import BpmnWorkflow
from SpiffWorkflow.task import Task
from SpiffWorkflow.util.task import TaskState
from sqlalchemy.ext.asyncio import AsyncConnection

from flowactions_hookspecs import Deferred, FlowActions, Node, Walk

OPERATOR: Final = "flowactions/"
"""Begins the operator of a service task that is an action node; behind it is the node's type."""

WAITS: Final = "waits"
"""The parameter of a service task that runs when the process comes to users next, or to its end."""

PASSAGE: Final = "flowactions_passage"
ARRIVAL: Final = "flowactions_arrival"
"""In `Task.internal_data`: the number of the passage through a task, and of the arrival at users."""

RUNNING_SECONDS: Final = 0.1
"""Between two questions whether another process has run the nodes of an arrival."""


class _Halted(Exception):
    """An action node stops the process."""


class ActionEngine(PythonScriptEngine):  # type: ignore[misc]
    """The script engine of one workflow. Its methods are called in threads beside the event loop of the plugins.

    Args:
        actions: the plugins.
        walk_of: makes the walk of a run, from a task of it.
        environment: SpiffWorkflow's, in which expressions are evaluated.
        transaction: joined by what action nodes write; the workflow is saved in it, too.
    """

    def __init__(
        self,
        actions: FlowActions,
        walk_of: Callable[[Task], Walk],
        *,
        environment: Any = None,
        transaction: AsyncConnection | None = None,
    ) -> None:
        super().__init__(environment)
        self._actions = actions
        self._walk_of = walk_of
        self._transaction = transaction
        self._halted = False

    def call_service(self, task: Task, **service: Any) -> str:
        """Reach an action node, or record it if it waits. SpiffWorkflow calls it with each service task."""
        name = service["operation_name"]
        if not name.startswith(OPERATOR):
            return str(super().call_service(task, **service))
        config = {field: each["value"] for field, each in service["operation_params"].items()}
        walk = replace(self._walk_of(task), visit=visit_of(task))
        if config.pop(WAITS, False):
            walk = replace(walk, pacing=Deferred(_next_arrival(task.workflow.top_workflow)))
        node = Node(id=task.task_spec.bpmn_id, type=name.removeprefix(OPERATOR), config=config)
        result = self._actions.call(self._actions.reach(walk, node, self._transaction))
        self._halted |= result.halt
        return json.dumps({"status": result.status, "reason": result.reason})

    def go_on(self, workflow: BpmnWorkflow) -> None:
        """Run a workflow until it waits for users, or has ended, and then the action nodes that wait: `run`, then `arrive`."""
        self.run(workflow)
        self.arrive(workflow)

    def run(self, workflow: BpmnWorkflow) -> None:
        """Run a workflow until it waits for users, or has ended. An action node that halts cancels it."""

        def check(_: Task) -> None:
            if self._halted:
                raise _Halted

        try:
            workflow.do_engine_steps(did_complete_task=check)
        except _Halted:
            workflow.cancel()

    def arrive(self, workflow: BpmnWorkflow) -> bool:
        """Run the action nodes that wait, if the workflow has come to users whom it has not shown anything yet, or to its end.

        Returns:
            Whether it has come there: save the workflow.
        """
        new = [each for each in _for_users(workflow) if ARRIVAL not in each.internal_data]
        ended = [workflow.last_task] if workflow.success and workflow.completed else []
        arrived = new or [each for each in ended if ARRIVAL not in each.internal_data]
        if not arrived:
            return False
        walk, step = self._walk_of(arrived[0]), _next_arrival(workflow)
        while (advanced := self._actions.call(self._actions.advance(walk, step))).state == "running":
            time.sleep(RUNNING_SECONDS)  # another call with this run runs them
        for each in arrived:
            each.internal_data[ARRIVAL] = int(step)
        if advanced.state == "halted":
            workflow.cancel()
        return True


def shown(workflow: BpmnWorkflow) -> list[Task]:
    """Return the tasks that wait for users, and for which the action nodes before them have run."""
    return [each for each in _for_users(workflow) if ARRIVAL in each.internal_data]


def action_nodes(specs: Iterable[Any], environment: Any) -> dict[str, Node]:
    """Return the action nodes of processes: id → node, for `Host.node`.

    Args:
        specs: of the process, and of those that it calls.
        environment: as for `ActionEngine`. Fields whose expressions need the data of a run are left out.
    """
    nodes = {}
    for spec in (each for process in specs for each in process.task_specs.values()):
        name = getattr(spec, "operation_name", "")
        if name.startswith(OPERATOR):
            config = {}
            for field, each in spec.operation_params.items():
                with suppress(Exception):  # an expression of the workflow may raise anything
                    config[field] = environment.evaluate(each["value"], {})
            kind = name.removeprefix(OPERATOR)
            nodes[spec.bpmn_id] = Node(id=spec.bpmn_id, type=kind, config=config)
    return nodes


def visit_of(task: Task) -> str:
    """Return the passage through a task, with those through the sub-processes around it: the same after a restore."""
    visit = str(_passage(task))
    while task.workflow.parent_task_id is not None:
        task = task.workflow.top_workflow.get_task_from_id(task.workflow.parent_task_id)
        visit = f"{task.task_spec.bpmn_id}:{_passage(task)}|{visit}"
    return visit


def _passage(task: Task) -> int:
    # Numbered in the order in which SpiffWorkflow has made them, which the serialization keeps, and not in that in which they
    # run, which is that of answers. What a reset removes has its numbers no more, and what is made in its place gets them.
    same = [each for each in task.workflow.tasks.values() if each.task_spec is task.task_spec]
    taken = {each.internal_data.get(PASSAGE) for each in same}
    free = (number for number in count(1) if number not in taken)
    for each in same:
        if PASSAGE not in each.internal_data and not each.has_state(TaskState.PREDICTED_MASK):
            each.internal_data[PASSAGE] = next(free)
    return int(task.internal_data[PASSAGE])


def _next_arrival(workflow: BpmnWorkflow) -> str:
    return str(max((each.internal_data.get(ARRIVAL, 0) for each in _every_task(workflow)), default=0) + 1)


def _every_task(workflow: BpmnWorkflow) -> Iterator[Task]:
    for each in (workflow, *workflow.subprocesses.values()):
        yield from each.tasks.values()


def _for_users(workflow: BpmnWorkflow) -> list[Task]:
    return [each for each in workflow.get_tasks(state=TaskState.READY) if each.task_spec.manual]
