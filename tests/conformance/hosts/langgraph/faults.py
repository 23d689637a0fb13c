"""The host with a fault in its glue: ``FAULT=NAME python -m flowactions_conformance run tests.conformance.hosts.langgraph.faults:make_host``."""

from __future__ import annotations

from collections import Counter, defaultdict
from contextlib import AbstractAsyncContextManager
from typing import Any, Final

from langgraph.channels.untracked_value import UntrackedValue
from langgraph.checkpoint.memory import InMemorySaver

from flowactions_conformance import Env
from tests.conformance.hosts.glue_faults import PREFLIGHT, Fault, host_with_a_fault, list_faults

ENGINE: Final = "flowactions_conformance.engines.langgraph"
GLUE: Final = f"{ENGINE}.glue"
HOST: Final = "tests.conformance.hosts.langgraph.host"
MODULES: Final = (GLUE, f"{ENGINE}.graphs", HOST)
"""In the order in which they import each other."""

FAULTS: Final = {
    "always eager": Fault(GLUE, "if waits:", "if False:", "PACING-2"),
    "one visit for all passages": Fault(
        GLUE, 'passage = state["visits"].get(name, 0) + 1', "passage = 1", "LOOPS-1"
    ),
    "visits counted in the process": Fault(
        GLUE,
        'passage = state["visits"].get(name, 0) + 1',
        "passed = PASSED[config['configurable']['thread_id']]\n"
        "    passage = passed[state['place'], name] = passed[state['place'], name] + 1",
        "LOOPS-7",
    ),
    "visits not kept in checkpoints": Fault(
        GLUE, "Annotated[dict[str, int], _merged]", "Annotated[dict[str, int], UntrackedValue]", PREFLIGHT
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

NAMES: Final = {
    "InMemorySaver": InMemorySaver,
    "PASSED": defaultdict[str, Counter[tuple[str, str]]](Counter),
    "UntrackedValue": UntrackedValue,
}
"""What the texts of faults use."""


def make_host(env: Env) -> AbstractAsyncContextManager[Any]:
    """Make the host with the fault that the environment names."""
    return host_with_a_fault(env, FAULTS, MODULES, NAMES)


if __name__ == "__main__":
    list_faults(FAULTS)
