"""Mutants of the walk: what it gives the plugin, and when nodes run."""

from __future__ import annotations

import asyncio

import msgspec
from msgspec.structs import replace
from sqlalchemy.ext.asyncio import AsyncConnection

from flowactions_conformance.reference_host import store as tables
from flowactions_conformance.reference_host.host import ReferenceHost
from flowactions_conformance.reference_host.store import Flow, Run
from flowactions_conformance.reference_host.testing import ReferenceDriver
from flowactions_conformance.reference_host.walker import Step, Turn, Walker
from flowactions_hookspecs import Advanced, Deferred, Eager, Node, NodeResult, Origin, Walk
from tests.conformance.mutants.altered import (
    AlteredActions,
    AlteredWalker,
    alter_actions,
    alter_host,
    alter_walker,
)
from tests.conformance.mutants.mutant import changed, mutant


def always_eager(driver: ReferenceDriver) -> None:
    class Broken(Walker):
        async def open(self, flow: Flow, user_id: str, content: str) -> Turn:
            turn = await super().open(replace(flow, kind="single_shot"), user_id, content)
            if flow.kind == "single_shot":
                return turn
            position = 0 if flow.items[0]["kind"] == "step" else -1
            run = await self._store.run(turn.session)
            assert run is not None
            items = msgspec.to_builtins(flow)
            await self._store.put(tables.runs, id=run.id, flow=items, position=position, done=False)
            step = flow.steps[0] if position == 0 else None
            return replace(turn, steps=[], done=False, step=step and Step(step["id"], "", ""))

    alter_walker(driver, Broken)


def background(driver: ReferenceDriver) -> None:
    waiting: list[tuple[Walk, Node]] = []
    tasks: set[asyncio.Task[None]] = set()

    class Actions(AlteredActions):
        async def reach(self, walk: Walk, node: Node, transaction: AsyncConnection | None = None) -> NodeResult:
            if isinstance(walk.pacing, Deferred):
                return await super().reach(walk, node, transaction)
            waiting.append((walk, node))
            return NodeResult(node_id=node.id, status="sent")

    class Broken(AlteredWalker):
        async def turn(self, turn: Turn, run: Run) -> Turn:
            mine = [each for each in waiting if each[0].run_id == run.id]
            tasks.add(asyncio.create_task(self._run(mine)))
            return turn

        async def _run(self, nodes: list[tuple[Walk, Node]]) -> None:
            # The answer is sent meanwhile.
            await asyncio.sleep(0.7)
            for walk, node in nodes:
                await driver.made.actions.reach(walk, node)

    alter_actions(driver, Actions)
    alter_walker(driver, Broken)


def user_id_wrong(driver: ReferenceDriver) -> None:
    class Actions(AlteredActions):
        async def walk(self, walk: Walk, _: Node | None) -> Walk:
            return replace(walk, user_id=walk.run_id)

    alter_actions(driver, Actions)


def run_id_is_the_flows(driver: ReferenceDriver) -> None:
    class Actions(AlteredActions):
        async def walk(self, walk: Walk, _: Node | None) -> Walk:
            return replace(walk, run_id=walk.flow_id)

    alter_actions(driver, Actions)


def previous_step(driver: ReferenceDriver) -> None:
    class Actions(AlteredActions):
        async def walk(self, walk: Walk, node: Node | None) -> Walk:
            if node is None or isinstance(walk.pacing, Eager):
                return walk
            step: str | None = None
            for item in (await self.flow(walk)).items:
                if item["id"] == node.id:
                    break
                if item["kind"] == "step":
                    step = item["id"]
            return replace(walk, pacing=Deferred(step))

    alter_actions(driver, Actions)


def clients_step_trusted(driver: ReferenceDriver) -> None:
    class Broken(AlteredWalker):
        async def next(self, run: Run, from_step: str | None) -> Turn:
            ids = [step["id"] for step in run.flow.steps]
            if from_step in ids and not run.done:
                await self._store.move(run, position=ids.index(from_step), done=False, halted=False)
                run = await self._store.run(run.session) or run
            return await super().next(run, from_step)

    alter_walker(driver, Broken)


def running_is_done(driver: ReferenceDriver) -> None:
    class Actions(AlteredActions):
        def advanced(self, advanced: Advanced) -> Advanced:
            return replace(advanced, state="done") if advanced.state == "running" else advanced

    alter_actions(driver, Actions)


def secret_cached(driver: ReferenceDriver) -> None:
    known: dict[Origin, str | None] = {}

    class Broken(ReferenceHost):
        async def signing_secret(self, origin: Origin) -> str | None:
            if origin not in known:
                known[origin] = await super().signing_secret(origin)
            return known[origin]

    alter_host(driver, Broken)


MUTANTS = [
    mutant(
        "always-eager",
        "Every node runs when it is reached, in client-paced flows, too.",
        changed(always_eager),
        kills="PACING-2",
        spares="EAGER-1 HALT-2",
        message="action nodes ran when the client-paced flow was opened",
    ),
    mutant(
        "runs-in-the-background",
        "The walk goes on, and answers, while nodes still run.",
        changed(background),
        kills="EAGER-1",
        spares="EAGER-2 PACING-2",
        message="the host starts reach() in the background",
    ),
    mutant(
        "user-id-wrong",
        "The walk has the run's id as the user's.",
        changed(user_id_wrong),
        kills="EAGER-2 EAGER-3",
        spares="EAGER-1 EAGER-4",
        message="userId of the walk is not the run's",
    ),
    mutant(
        "run-id-is-the-flows",
        "The run's id is the flow's.",
        changed(run_id_is_the_flows),
        kills="EAGER-4",
        spares="EAGER-1 EAGER-3 PACING-2",
        message="two runs of a flow have the same run_id",
    ),
    mutant(
        "previous-step",
        "A node is recorded against the step before it.",
        changed(previous_step),
        kills="PACING-2 PACING-12",
        spares="EAGER-1",
        message="Deferred names the step before the node",
    ),
    mutant(
        "clients-step-trusted",
        "The run goes on from the step that the client names.",
        changed(clients_step_trusted),
        kills="PACING-6",
        spares="PACING-2 PACING-3",
        message="a client at step a that says it is at step c went on from there",
    ),
    mutant(
        "running-is-done",
        "A next beside one that still runs nodes moves on.",
        changed(running_is_done),
        kills="PACING-5",
        spares="PACING-3 PACING-4",
        message="`running` is taken for `done`",
    ),
    mutant(
        "secret-cached",
        "A node's secret is read once.",
        changed(secret_cached),
        kills="EAGER-6 EAGER-7 LOGIC-6",
        spares="EAGER-2 LOGIC-1",
        message="a webhook is not signed with the secret that its node has now",
    ),
]
