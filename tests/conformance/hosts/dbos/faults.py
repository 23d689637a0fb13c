"""The host with a fault in its glue: ``FAULT=NAME python -m flowactions_conformance run tests.conformance.hosts.dbos.faults:make_host``."""

from __future__ import annotations

import os
from contextlib import AbstractAsyncContextManager
from itertools import count
from typing import Any, Final

from flowactions_conformance import Env, one_host_per_process
from tests.conformance.hosts.glue_faults import Fault, host_with_a_fault, list_faults

ENGINE: Final = "flowactions_conformance.engines.dbos"
GLUE: Final = f"{ENGINE}.glue"
FLOWS: Final = f"{ENGINE}.flows"
HOST: Final = "tests.conformance.hosts.dbos.host"
MODULES: Final = (GLUE, FLOWS, HOST)
"""In the order in which they import each other."""

FAULTS: Final = {
    "one visit for all passages": Fault(
        GLUE,
        'visit=f"{DBOS.step_id}{self._place}")\n            return kept',
        'visit="1")\n            return kept',
        "LOOPS-1",
    ),
    "one visit for all that waits": Fault(
        GLUE, 'visit=f"{DBOS.step_id}{self._place}.{number}"', 'visit="1"', "LOOPS-3"
    ),
    "visits counted in the process": Fault(
        GLUE, 'visit=f"{DBOS.step_id}{self._place}.{number}"', "visit=str(next(COUNTED))", "LOOPS-7"
    ),
    "one step id for all passages": Fault(GLUE, 'f"{name}@{reserved.step_id}{self._place}"', "name", "LOOPS-2"),
    "waits for the end": Fault(GLUE, "pacing=Deferred(step)", "pacing=Deferred(None)", "PACING-2"),
    "always eager": Fault(GLUE, ", pacing=Deferred(step)", "", "PACING-12"),
    "halt ignored at a step": Fault(
        GLUE, 'if state == "halted":\n            raise', "if False:\n            raise", "PACING-7"
    ),
    "halt ignored at once": Fault(
        GLUE,
        'if await DBOS.run_step_async({"name": node.id}, alone):',
        'if await DBOS.run_step_async({"name": node.id}, alone) and False:',
        "HALT-2",
    ),
    "no advance at the end": Fault(FLOWS, "await walker.run.end()", "pass", "PACING-3"),
    "a dead process's runs are left": Fault(
        FLOWS, "await DBOS.resume_workflow_async(run_id)", "return turn", "SCALE-4"
    ),
    "workflows in memory": Fault(
        HOST, 'f"sqlite:///{url.database}-dbos"', 'f"sqlite:///{url.database}-{os.getpid()}"', "DURABILITY-1"
    ),
}


@one_host_per_process
def make_host(env: Env) -> AbstractAsyncContextManager[Any]:
    """Make the host with the fault that the environment names."""
    return host_with_a_fault(env, FAULTS, MODULES, {"os": os, "COUNTED": count(1)})


if __name__ == "__main__":
    list_faults(FAULTS)
