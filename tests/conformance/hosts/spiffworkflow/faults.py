"""The host with a fault in its glue: ``FAULT=NAME python -m flowactions_conformance run tests.conformance.hosts.spiffworkflow.faults:make_host``."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from contextlib import AbstractAsyncContextManager
from itertools import count
from typing import Any, Final
from uuid import UUID

from flowactions_conformance import Env
from tests.conformance.hosts.glue_faults import Fault, host_with_a_fault, list_faults

ENGINE: Final = "flowactions_conformance.engines.spiffworkflow"
GLUE: Final = f"{ENGINE}.glue"
HOST: Final = "tests.conformance.hosts.spiffworkflow.host"
MODULES: Final = (GLUE, f"{ENGINE}.processes", HOST)
"""In the order in which they import each other."""

FAULTS: Final = {
    "always eager": Fault(
        GLUE, "if config.pop(WAITS, False):", "if config.pop(WAITS, False) and False:", "PACING-2"
    ),
    "one visit for all passages": Fault(GLUE, "= next(free)", "= 1", "LOOPS-1"),
    "passages counted in the process": Fault(
        GLUE,
        "(number for number in count(1) if number not in taken)",
        "FREE[task.workflow.top_workflow.task_tree.id, task.task_spec.name]",
        "LOOPS-7",
    ),
    "no place of sub-processes": Fault(
        GLUE, 'visit = f"{task.task_spec.bpmn_id}:{_passage(task)}|{visit}"', "pass", "LOOPS-4"
    ),
    "one step id for all arrivals": Fault(GLUE, "[ARRIVAL] = int(step)", "[ARRIVAL] = 0", "LOOPS-2"),
    "halt ignored at an arrival": Fault(GLUE, 'advanced.state == "halted"', "False", "PACING-7"),
    "halt ignored at once": Fault(GLUE, "self._halted |= result.halt", "pass", "HALT-2"),
    "halt ends the task only": Fault(
        GLUE,
        "except _Halted:\n            workflow.cancel()",
        "except _Halted:\n            self._halted = False\n            self.run(workflow)",
        "LOOPS-6",
    ),
    "no arrival at the end": Fault(
        GLUE, "[workflow.last_task] if workflow.success and workflow.completed else []", "[]", "PACING-3"
    ),
    "running taken for done": Fault(GLUE, '.state == "running":', '.state == "never":', "PACING-5"),
    "shown before its nodes have run": Fault(GLUE, "if ARRIVAL in each.internal_data]", "if True]", "PACING-5"),
    "the user's task is not completed": Fault(HOST, "    shown(workflow)[0].run()\n", "", "PACING-2"),
    "the arrival is not saved": Fault(
        HOST, "saved = await self._save(transaction, run, workflow, version)", "saved = True", "PACING-2"
    ),
    "one run for all of a flow": Fault(
        HOST,
        'walk = msgspec.convert(run["walk"], Walk)',
        'walk = msgspec.convert({**run["walk"], "runId": run["walk"]["flowId"]}, Walk)',
        "PACING-9",
    ),
    "the transaction is not joined": Fault(
        HOST,
        "            async with self.host.database.begin() as transaction:\n                await transaction.execute(sa.insert(runs)",
        "            await asyncio.to_thread(self._engine(run, workflow).run, workflow)\n"
        "            async with self.host.database.begin() as transaction:\n                await transaction.execute(sa.insert(runs)",
        "DURABILITY-3",
    ),
}

NAMES: Final = {"FREE": defaultdict[tuple[UUID, str], Iterator[int]](lambda: count(1))}
"""What the text of a fault uses."""


def make_host(env: Env) -> AbstractAsyncContextManager[Any]:
    """Make the host with the fault that the environment names."""
    return host_with_a_fault(env, FAULTS, MODULES, NAMES)


if __name__ == "__main__":
    list_faults(FAULTS)
