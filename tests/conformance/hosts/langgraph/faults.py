"""The host with a fault in its glue: ``FAULT=NAME python -m flowactions_conformance run tests.conformance.hosts.langgraph.faults:make_host``.

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

from langgraph.checkpoint.memory import InMemorySaver

from flowactions_conformance import Env

ENGINE: Final = "flowactions_conformance.engines.langgraph"
GLUE: Final = f"{ENGINE}.glue"
HOST: Final = "tests.conformance.hosts.langgraph.host"
MODULES: Final = (GLUE, f"{ENGINE}.graphs", HOST)
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
    "always eager": Fault(GLUE, "if waits:", "if False:", "PACING-2"),
    "one visit for all passages": Fault(
        GLUE, 'passage = state["visits"].get(name, 0) + 1', "passage = 1", "LOOPS-1"
    ),
    "no place of sub-graphs": Fault(GLUE, """f"{state['place']}{name}:{label}|\"""", 'f"|"', "LOOPS-4"),
    "one step id for all passages": Fault(GLUE, 'f"@{passage}" if passage > 1', '"" if passage > 1', "LOOPS-2"),
    "halt ignored at a step": Fault(GLUE, 'advanced.state == "halted"', "False", "PACING-7"),
    "halt ignored at once": Fault(GLUE, '"halted": result.halt', '"halted": False', "HALT-2"),
    "halt ends the sub-graph only": Fault(
        GLUE, '**result, "visits"', '**result, "halted": False, "visits"', "LOOPS-6"
    ),
    "no advance at the end": Fault(
        GLUE,
        "            walk = self._walk_of(state, config)",
        "            if is_end: return {}\n\n            walk = self._walk_of(state, config)",
        "PACING-3",
    ),
    "running taken for done": Fault(GLUE, '.state == "running":', '.state == "never":', "PACING-5"),
    "unavailable taken for done": Fault(GLUE, 'advanced.state == "unavailable"', "False", "PACING-12"),
    "the client's step trusted": Fault(
        HOST,
        'if turn["done"] or at != turn["step"]:\n            return turn\n',
        'if turn["done"]:\n            return turn\n        if at != turn["step"]:\n'
        "            graph, config = self._graph(run), config_of(run['id'])\n"
        "            await graph.aupdate_state(config, {}, as_node=f'ask {at}')\n"
        "            return await self._go_on(run, None)\n",
        "PACING-6",
    ),
    "next walks again": Fault(HOST, "self._go_on(run, going_on(state))", "self._go_on(run, {})", "PACING-2"),
    "one thread for all runs of a flow": Fault(
        HOST,
        'graph, config = self._graph(run), config_of(run["id"])',
        'graph, config = self._graph(run), config_of(run["walk"]["flowId"])',
        "PACING-9",
    ),
    "checkpoints in memory": Fault(
        HOST,
        "self.checkpoints = await stack.enter_async_context(saver)\n            await self.checkpoints.setup()",
        "self.checkpoints = InMemorySaver()",
        "DURABILITY-1",
    ),
}


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
    module.__dict__.update(InMemorySaver=InMemorySaver)
    exec(compile(text, spec.origin, "exec"), module.__dict__)  # noqa: S102  the text is this repository's


if __name__ == "__main__":
    sys.stdout.write(json.dumps({name: fault.found_by for name, fault in FAULTS.items()}))
