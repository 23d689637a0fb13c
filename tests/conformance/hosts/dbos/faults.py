"""The host with a fault in its glue: ``FAULT=NAME python -m flowactions_conformance run tests.conformance.hosts.dbos.faults:make_host``.

Each is a change of a module's text, made before the module is imported.
"""

from __future__ import annotations

import importlib.util
import json
import os
import sys
from contextlib import AbstractAsyncContextManager
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any, Final, NamedTuple

from flowactions_conformance import Env, one_host_per_process

ENGINE: Final = "flowactions_conformance.engines.dbos"
GLUE: Final = f"{ENGINE}.glue"
FLOWS: Final = f"{ENGINE}.flows"
HOST: Final = "tests.conformance.hosts.dbos.host"
MODULES: Final = (GLUE, FLOWS, HOST)
"""In the order in which they import each other."""


class Fault(NamedTuple):
    """What is wrong.

    Args:
        module: where.
        right: text of it.
        wrong: what stands there instead.
        found_by: a check that fails.
    """

    module: str
    right: str
    wrong: str
    found_by: str


FAULTS: Final = {
    "one visit for all passages": Fault(
        GLUE,
        'visit=f"{DBOS.step_id}{self._place}")\n            return kept',
        'visit="1")\n            return kept',
        "LOOPS-1",
    ),
    "one visit for all that waits": Fault(
        GLUE, 'visit = f"{DBOS.step_id}{self._place}.{number}"', 'visit = "1"', "LOOPS-3"
    ),
    "one step id for all passages": Fault(GLUE, 'f"{name}@{reserved.step_id}{self._place}"', "name", "LOOPS-2"),
    "waits for the end": Fault(GLUE, "pacing=Deferred(step)", "pacing=Deferred(None)", "PACING-2"),
    "always eager": Fault(GLUE, "visit=visit, pacing=Deferred(step)", "visit=visit", "PACING-12"),
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
    "running taken for done": Fault(GLUE, '.state == "running":', '.state == "never":', "SCALE-4"),
    "unavailable taken for done": Fault(GLUE, 'if state == "unavailable":\n', "if False:\n", "PACING-12"),
    "the client's step trusted": Fault(FLOWS, 'or at != turn["step"]', "", "PACING-6"),
    "one message for all steps": Fault(FLOWS, 'f"next {step}"', '"next"', "PACING-2"),
    "next walks again": Fault(FLOWS, 'await DBOS.send_async(run_id, None, topic=f"next {at}")', "", "PACING-2"),
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
    fault = FAULTS[os.environ["FAULT"]]
    if fault.module not in sys.modules:
        for name in MODULES:
            _load(name, fault)
    host: Any = sys.modules[HOST]
    made: AbstractAsyncContextManager[Any] = host.make_host(env)
    return made


def _load(name: str, fault: Fault) -> None:
    spec: ModuleSpec | None = importlib.util.find_spec(name)
    assert spec is not None
    assert spec.origin is not None
    text = Path(spec.origin).read_text("utf-8")
    if name == fault.module:
        assert fault.right in text, f"{fault.right!r} does not stand in {name}"
        text = text.replace(fault.right, fault.wrong)
    module = sys.modules[name] = ModuleType(name)
    module.__file__ = spec.origin
    module.__dict__.update(os=os)
    exec(compile(text, spec.origin, "exec"), module.__dict__)  # noqa: S102  the text is this repository's


if __name__ == "__main__":
    sys.stdout.write(json.dumps({name: fault.found_by for name, fault in FAULTS.items()}))
