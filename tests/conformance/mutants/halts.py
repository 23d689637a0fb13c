"""Mutants of what becomes of a halt, and of what the end user sees."""

from __future__ import annotations

import msgspec
from msgspec.structs import replace

from flowactions_conformance.reference_host import store as tables
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


def halts_of_failures_only(driver: ReferenceDriver) -> None:
    class Actions(AlteredActions):
        def result(self, result: NodeResult) -> NodeResult:
            return replace(result, halt=result.halt and result.status == "failed")

    alter_actions(driver, Actions)


def halts_on_any_failure(driver: ReferenceDriver) -> None:
    class Actions(AlteredActions):
        def result(self, result: NodeResult) -> NodeResult:
            return replace(result, halt=result.halt or result.status in {"failed", "skipped"})

        def advanced(self, advanced: Advanced) -> Advanced:
            failed = any(result.status == "failed" for result in advanced.results)
            return replace(advanced, state="halted") if failed else advanced

    alter_actions(driver, Actions)


def halt_before_forgotten(driver: ReferenceDriver) -> None:
    class Actions(AlteredActions):
        def advanced(self, advanced: Advanced) -> Advanced:
            forgotten = advanced.state == "halted" and not advanced.results
            return replace(advanced, state="done") if forgotten else advanced

    class Broken(AlteredWalker):
        async def next(self, run: Run, from_step: str | None) -> Turn:
            turn = await super().next(run, from_step)
            after = await self._store.run(run.session)
            if after is not None and after.done and after.position < len(run.flow.steps) and turn.done:
                # The halt is answered, and not kept.
                await self._store.put(tables.runs, id=run.id, position=run.position, done=False)
            return turn

    alter_actions(driver, Actions)
    alter_walker(driver, Broken)


def reason_shown(driver: ReferenceDriver) -> None:
    class Broken(AlteredWalker):
        async def turn(self, turn: Turn, run: Run) -> Turn:
            failed = [
                f"{result.get('reason')}: {result.get('message')}"
                for result in await self.results(run)
                if result["status"] in {"failed", "skipped"}
            ]
            return shown(turn, "\n".join(failed)) if failed else turn

    alter_walker(driver, Broken)


def results_leaked(driver: ReferenceDriver) -> None:
    class Broken(AlteredWalker):
        async def turn(self, turn: Turn, run: Run) -> Turn:
            return shown(turn, msgspec.json.encode(await self.results(run)).decode())

    alter_walker(driver, Broken)


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
        kills="EAGER-9 HALT-2 PACING-5 PACING-7",
        spares="HALT-1 PACING-2",
        message="a node was reached behind one that halts",
    ),
    mutant(
        "halts-of-failures-only",
        "A halt counts only when the node failed.",
        changed(halts_of_failures_only),
        kills="HALT-2",
        spares="HALT-1 PACING-7",
        message="a node was reached behind one that halts (its status is skipped)",
    ),
    mutant(
        "halts-on-any-failure",
        "A node that failed stops the run.",
        changed(halts_on_any_failure),
        kills="HALT-1 PACING-8",
        spares="HALT-2 PACING-7",
        message="the walk did not continue to its end",
    ),
    mutant(
        "halt-before-forgotten",
        "A halt is answered, and not kept; a run that was halted before counts as one in which nothing halted.",
        changed(halt_before_forgotten),
        kills="PACING-7",
        spares="HALT-2 PACING-2",
        message="a run that was halted showed further steps on next",
    ),
    mutant(
        "reason-shown",
        "The user reads why a node failed.",
        changed(reason_shown),
        kills="HALT-3 PACING-8",
        spares="EAGER-5 HALT-1",
        message="the end user's client got a node's reason",
    ),
    mutant(
        "results-leaked",
        "What came of the nodes is part of what the client gets.",
        changed(results_leaked),
        kills="EAGER-5 HALT-3 PACING-8",
        spares="EAGER-1",
        message="the end user's client got a node's message",
    ),
    mutant(
        "items-leaked",
        "The client gets the whole flow, with the configs of its nodes.",
        changed(items_leaked),
        kills="EAGER-5 HALT-3 PACING-8",
        spares="EAGER-1",
        message="the end user's client got the webhook's signing secret",
    ),
]
