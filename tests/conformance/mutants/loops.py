"""Mutants of the flow engine: how passages are named, which of them there are, and what a halt in them does."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

from msgspec.structs import replace

from flowactions_conformance import Env, Factory
from flowactions_hookspecs import Deferred, Node, NodeResult, Walk
from tests.conformance.hosts.engine.app import EngineHost, create_app
from tests.conformance.hosts.engine.store import Found
from tests.conformance.hosts.engine.testing import EngineDriver
from tests.conformance.hosts.engine.walks import Engine, Item, Place, Run
from tests.conformance.hosts.worlds import every_item
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


PASSAGES: Counter[tuple[str, str, str]] = Counter()
"""Outlives a host that is stopped and started in this process."""


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


def visit_always_the_same(driver: EngineDriver) -> None:
    class Actions(Altered):
        def walk(self, walk: Walk, _: Node) -> Walk:
            return replace(walk, visit="1")

    Actions(driver)


def visit_counted_in_memory(driver: EngineDriver) -> None:
    class Actions(Altered):
        def walk(self, walk: Walk, node: Node) -> Walk:
            counts[walk.run_id, node.id] += 1
            return replace(walk, visit=str(counts[walk.run_id, node.id]))

    counts: Counter[tuple[str, str]] = Counter()
    Actions(driver)


def visit_counted_in_the_process(driver: EngineDriver) -> None:
    class Actions(Altered):
        def walk(self, walk: Walk, node: Node) -> Walk:
            passage = (place, walk.run_id, node.id)
            PASSAGES[passage] += 1
            return replace(walk, visit=str(PASSAGES[passage]))

    place = driver.made.host.store._url
    Actions(driver)


def rounds_in_memory(driver: EngineDriver) -> None:
    class Broken(Engine):
        async def open(self, found: Found, user: str, content: str) -> dict[str, Any]:
            turn = await super().open(found, user, content)
            begun.add(turn["session"])
            return turn

        async def next(self, session: str) -> dict[str, Any] | None:
            row = await self.store.run(session)
            if row is not None and '"loop"' in row.data and session not in begun:
                raise KeyError(session)
            return await super().next(session)

    begun: set[str] = set()
    driver.claims |= {"durability"}  # the runs of the engine are in its database
    driver.made.engine.__class__ = Broken


def innermost_round_only(driver: EngineDriver) -> None:
    class Actions(Altered):
        def walk(self, walk: Walk, _: Node) -> Walk:
            return replace(walk, visit=walk.visit.rpartition("/")[2])

    Actions(driver)


def place_of_sub_flow_left_out(driver: EngineDriver) -> None:
    class Actions(Altered):
        def walk(self, walk: Walk, _: Node) -> Walk:
            # The numbers of rounds are kept, and what it is that has them is not.
            rounds = [part.partition(":")[2] for part in walk.visit.split("/")]
            return replace(walk, visit="/".join(rounds) or "1")

    Actions(driver)


def steps_of_rounds_shared(driver: EngineDriver) -> None:
    class Shared(Place):
        @property
        def step_id(self) -> str | None:
            return str(self.item["id"]) if self.item["kind"] == "step" else None

    class Broken(Engine):
        def places(self, run: Run, run_id: int) -> list[Place]:
            return [Shared(*place) for place in super().places(run, run_id)]

    driver.made.engine.__class__ = Broken


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


def only_one_round(driver: EngineDriver) -> None:
    class Broken(Engine):
        def places(self, run: Run, run_id: int) -> list[Place]:
            seen, first = set(), []
            for place in super().places(run, run_id):
                key = place.item["id"] if place.item["kind"] == "action" else None
                if key is None or key not in seen:
                    first.append(place)
                seen.add(key)
            return first

    driver.made.engine.__class__ = Broken


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


def sub_flow_has_its_own_flow_id(driver: EngineDriver) -> None:
    class Broken(Altered):
        def walk(self, walk: Walk, node: Node) -> Walk:
            own = walk.visit != "1" and isinstance(walk.pacing, Deferred)
            return replace(walk, flow_id=f"{walk.flow_id}/{walk.visit}") if own else walk

    Broken(driver)


def secrets_of_the_outer_flow_only(driver: EngineDriver) -> None:
    class Broken(EngineHost):
        async def node(self, organization_id: str, flow_id: str, node_id: str) -> Node | None:
            tenant, _, number = flow_id.partition(".")
            flow = await self.store.one("flow", tenant=int(tenant), id=int(number))
            items = [] if flow is None else flow.data["items"]
            own = {str(item["id"]) for item in every_item(items)}
            return await super().node(organization_id, flow_id, node_id) if node_id in own else None

    driver.made.host.__class__ = Broken


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
        "visit-always-the-same",
        "No passage is told apart.",
        changed(visit_always_the_same),
        kills="LOOPS-1 LOOPS-2 LOOPS-3 LOOPS-4",
        spares="LOOPS-5 LOOPS-6",
        message="Walk.visit is left at its default",
    ),
    mutant(
        "visit-counted-in-memory",
        "Passages are counted in memory.",
        changed(visit_counted_in_memory),
        kills="LOOPS-7",
        spares="LOOPS-1 LOOPS-2 LOOPS-3 LOOPS-4",
        message="visit is counted in memory",
    ),
    mutant(
        "visit-counted-in-the-process",
        "Passages are counted in memory that outlives a host, but not its process.",
        changed(visit_counted_in_the_process),
        kills="LOOPS-7",
        spares="LOOPS-1 LOOPS-2 LOOPS-3 LOOPS-4",
        message="visit is counted in memory",
    ),
    mutant(
        "rounds-in-memory",
        "After a restart, a run in a loop cannot continue.",
        changed(rounds_in_memory),
        kills="LOOPS-7",
        spares="LOOPS-1 LOOPS-2 PACING-2",
        message="a run in the middle of a loop cannot continue after a restart",
    ),
    mutant(
        "innermost-round-only",
        "A passage is the round of the innermost loop.",
        changed(innermost_round_only),
        kills="LOOPS-3",
        spares="LOOPS-1 LOOPS-2",
        message="visit counts the rounds of the innermost loop only",
    ),
    mutant(
        "place-of-sub-flow-left-out",
        "Passages do not say from where a sub-flow was entered.",
        changed(place_of_sub_flow_left_out),
        kills="LOOPS-4",
        spares="LOOPS-1 LOOPS-3",
        message="visit does not name the place from which the sub-flow was entered",
    ),
    mutant(
        "steps-of-rounds-shared",
        "A step has one id in all rounds.",
        changed(steps_of_rounds_shared),
        kills="LOOPS-2",
        spares="LOOPS-1",
        message="the rounds of a loop have the same step ids",
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
        "only-one-round",
        "A node that has run does not run again.",
        changed(only_one_round),
        kills="LOOPS-1 LOOPS-2 LOOPS-3 LOOPS-4",
        spares="LOOPS-5 LOOPS-6",
        message="the nodes of a loop did not run in each round",
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
        "sub-flow-has-its-own-flow-id",
        "Nodes in loops and sub-flows are recorded with another flow's id than the one that is advanced.",
        changed(sub_flow_has_its_own_flow_id),
        kills="LOOPS-2 LOOPS-3 LOOPS-4 LOOPS-6",
        spares="LOOPS-1 LOOPS-5",
        message="recorded with its own flow_id",
    ),
    mutant(
        "secrets-of-the-outer-flow-only",
        "Secrets are looked for in the flow that was opened, and not in its sub-flows.",
        changed(secrets_of_the_outer_flow_only),
        kills="LOOPS-4",
        spares="LOOPS-1 EAGER-6",
        message="looks only into the flow, and not into its sub-flows",
    ),
    mutant(
        "runs-counted-in-memory",
        "Run ids are counted in memory.",
        changed(run_counted_in_memory),
        kills="EAGER-8",
        spares="EAGER-4 LOOPS-1",
        message="run ids are counted in memory",
    ),
]
