"""Mutants of what becomes of a halt, and of what the end user sees."""

from __future__ import annotations

import msgspec
from msgspec.structs import replace

from flowactions_conformance.reference_host.store import Run
from flowactions_conformance.reference_host.testing import ReferenceDriver
from flowactions_conformance.reference_host.walker import Turn
from flowactions_hookspecs import Advanced, NodeResult
from tests.conformance.mutants.altered import (
    AlteredActions,
    AlteredWalker,
    alter_actions,
    alter_walker,
    shown,
)
from tests.conformance.mutants.mutant import changed, mutant


def halt_ignored(driver: ReferenceDriver) -> None:
    class Actions(AlteredActions):
        def result(self, result: NodeResult) -> NodeResult:
            return replace(result, halt=False)

        def advanced(self, advanced: Advanced) -> Advanced:
            return replace(advanced, state="done") if advanced.state == "halted" else advanced

    alter_actions(driver, Actions)


def items_leaked(driver: ReferenceDriver) -> None:
    class Broken(AlteredWalker):
        async def turn(self, turn: Turn, run: Run) -> Turn:
            return shown(turn, msgspec.json.encode(run.flow.items).decode())

    alter_walker(driver, Broken)


MUTANTS = [
    mutant(
        "halt-ignored",
        "Nothing stops a run.",
        changed(halt_ignored),
        kills="EAGER-9 HALT-2",
        spares="HALT-1 PACING-2",
        message="a node was reached behind one that halts",
    ),
    mutant(
        "items-leaked",
        "The client gets the whole flow, with the configs of its nodes.",
        changed(items_leaked),
        kills="EAGER-5",
        spares="EAGER-1",
        message="the end user's client got the webhook's signing secret",
    ),
]
