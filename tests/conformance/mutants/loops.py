"""Mutants of the flow engine: how passages are named, which of them there are, and what a halt in them does."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

from msgspec.structs import replace

from flowactions_conformance import Env, Factory
from flowactions_hookspecs import Node, NodeResult, Walk
from tests.conformance.hosts.engine.app import create_app
from tests.conformance.hosts.engine.testing import EngineDriver
from tests.conformance.hosts.engine.walks import Engine, Item, Place, Run
from tests.conformance.mutants.mutant import mutant


def changed(change: Callable[[EngineDriver], None]) -> Factory:
    """Returns a factory of the flow engine to which something was done before it starts."""

    @asynccontextmanager
    async def make_host(env: Env) -> AsyncIterator[EngineDriver]:
        driver = EngineDriver(create_app(env.settings, env.database_url), env)
        change(driver)
        yield driver

    make_host.__module__, make_host.__qualname__ = change.__module__, f"{change.__qualname__}.factory"
    change.factory = make_host  # type: ignore[attr-defined]
    return make_host


class Altered:
    """The facade as the engine has it: walks may be altered on their way in."""

    def __init__(self, driver: EngineDriver) -> None:
        self.actions = driver.made.engine.actions
        driver.made.engine.actions = self

    def walk(self, walk: Walk, _: Node) -> Walk:
        """Alters a walk."""
        return walk

    async def reach(self, walk: Walk, node: Node) -> NodeResult:
        """Runs or records a node."""
        result: NodeResult = await self.actions.reach(self.walk(walk, node), node)
        return result

    async def advance(self, walk: Walk, step_id: str | None) -> Any:
        """Runs a step's nodes."""
        return await self.actions.advance(walk, step_id)


def visit_counted_in_memory(driver: EngineDriver) -> None:
    class Actions(Altered):
        def walk(self, walk: Walk, node: Node) -> Walk:
            counts[walk.run_id, node.id] += 1
            return replace(walk, visit=str(counts[walk.run_id, node.id]))

    counts: Counter[tuple[str, str]] = Counter()
    Actions(driver)


def innermost_round_only(driver: EngineDriver) -> None:
    class Actions(Altered):
        def walk(self, walk: Walk, _: Node) -> Walk:
            return replace(walk, visit=walk.visit.rpartition("/")[2])

    Actions(driver)


def all_arms(driver: EngineDriver) -> None:
    class Broken(Engine):
        def places(self, run: Run, run_id: int) -> list[Place]:
            return super().places(replace(run, items=list(_with_other_arms(run.items))), run_id)

    driver.made.engine.__class__ = Broken


def _with_other_arms(items: Sequence[Item]) -> Iterator[Item]:
    for item in items:
        if item["kind"] == "branch":
            nodes = [each for each in item["other"] if each["kind"] == "action"]
            yield {**item, "taken": [*item["taken"], *nodes]}
        else:
            yield item


def halt_ends_the_sub_flow(driver: EngineDriver) -> None:
    class Actions(Altered):
        async def reach(self, walk: Walk, node: Node) -> NodeResult:
            if (walk.run_id, walk.visit) in ended:
                return NodeResult(node_id=node.id, status="skipped")
            result = await super().reach(walk, node)
            if result.halt and "/" in walk.visit:
                ended.add((walk.run_id, walk.visit))
                return replace(result, halt=False)
            return result

    ended: set[tuple[str, str]] = set()
    Actions(driver)


def run_counted_in_memory(driver: EngineDriver) -> None:
    class Broken(Altered):
        def walk(self, walk: Walk, _: Node) -> Walk:
            return replace(walk, run_id=str(runs.setdefault(walk.run_id, len(runs) + 1)))

        async def advance(self, walk: Walk, step_id: str | None) -> Any:
            return await super().advance(self.walk(walk, Node(id="-", type="-")), step_id)

    runs: dict[str, int] = {}
    Broken(driver)


MUTANTS = [
    mutant(
        "visit-counted-in-memory",
        "Passages are counted in memory.",
        changed(visit_counted_in_memory),
        kills="LOOPS-7",
        spares="LOOPS-1 LOOPS-3 LOOPS-4",
        message="visit is counted in memory",
    ),
    mutant(
        "innermost-round-only",
        "A passage is the round of the innermost loop.",
        changed(innermost_round_only),
        kills="LOOPS-3",
        spares="LOOPS-1",
        message="visit counts the rounds of the innermost loop only",
    ),
    mutant(
        "all-arms",
        "The nodes of all arms of a branch are reached.",
        changed(all_arms),
        kills="LOOPS-5",
        spares="LOOPS-1 LOOPS-3",
        message="other nodes ran than those of the arm that the run takes",
    ),
    mutant(
        "halt-ends-the-sub-flow",
        "A halt ends the sub-flow in which it comes.",
        changed(halt_ends_the_sub_flow),
        kills="LOOPS-6",
        spares="LOOPS-4 HALT-2",
        message="nodes ran behind one that halts in a sub-flow",
    ),
    mutant(
        "runs-counted-in-memory",
        "Run ids are counted in memory.",
        changed(run_counted_in_memory),
        kills="TASK-3",
        spares="EAGER-4 LOOPS-1",
        message="run ids are counted in memory",
    ),
]
