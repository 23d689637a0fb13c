"""What the mutants of walks and logic actions are made of: the reference host's parts, with one thing altered."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace
from sqlalchemy.ext.asyncio import AsyncConnection

from flowactions_conformance.reference_host.store import Flow, Run, Store
from flowactions_conformance.reference_host.testing import ReferenceDriver
from flowactions_conformance.reference_host.walker import Step, Turn, Walker
from flowactions_hookspecs import Advanced, FlowActions, Node, NodeResult, Walk


class AlteredActions:
    """The facade as the walker has it: what goes in and comes out may be altered."""

    def __init__(self, actions: FlowActions, store: Store) -> None:
        self.actions = actions
        self.store = store

    async def walk(self, walk: Walk, _: Node | None) -> Walk:
        """Alters a walk on its way in; the node is ``None`` for `advance`."""
        return walk

    def result(self, result: NodeResult) -> NodeResult:
        """Alters the result of a node."""
        return result

    def advanced(self, advanced: Advanced) -> Advanced:
        """Alters the result of a step."""
        return advanced

    async def reach(self, walk: Walk, node: Node, transaction: AsyncConnection | None = None) -> NodeResult:
        """Runs or records a node."""
        return self.result(await self.actions.reach(await self.walk(walk, node), node, transaction))

    async def advance(
        self, walk: Walk, step_id: str | None, transaction: AsyncConnection | None = None
    ) -> Advanced:
        """Runs a step's nodes."""
        return self.advanced(await self.actions.advance(await self.walk(walk, None), step_id, transaction))

    async def flow(self, walk: Walk) -> Flow:
        """Returns the walk's flow."""
        flow = await self.store.flow(walk.flow_id)
        assert flow is not None
        return flow


class AlteredWalker(Walker):
    """The walker, whose turns may be altered."""

    async def turn(self, turn: Turn, run: Run) -> Turn:
        """Alters what the end user's client gets."""
        return turn

    async def open(self, flow: Flow, user_id: str, content: str) -> Turn:
        """Starts a run."""
        turn = await super().open(flow, user_id, content)
        run = await self._store.run(turn.session)
        assert run is not None
        return await self.turn(turn, run)

    async def next(self, run: Run, from_step: str | None) -> Turn:
        """Goes on."""
        return await self.turn(await super().next(run, from_step), run)


def shown(turn: Turn, text: str) -> Turn:
    """Returns a turn that shows a text, too."""
    return replace(turn, steps=[*turn.steps, Step("note", "Note", text)])


def alter_actions(driver: ReferenceDriver, kind: type[AlteredActions]) -> None:
    """Puts altered actions between walker and facade."""
    made = driver.made
    made.walker._actions = kind(made.actions, made.host.store)  # type: ignore[assignment]


def alter_walker(driver: ReferenceDriver, kind: type[Walker]) -> None:
    """Has the walker be of another class."""
    driver.made.walker.__class__ = kind


def alter_host(driver: ReferenceDriver, kind: type[Any]) -> None:
    """Has the host be of another class."""
    driver.made.host.__class__ = kind
