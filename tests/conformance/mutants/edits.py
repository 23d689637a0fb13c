"""Mutants of what becomes of a run whose flow is edited."""

from __future__ import annotations

from msgspec.structs import replace
from sqlalchemy import delete

from flowactions_conformance.reference_host import store as tables
from flowactions_conformance.reference_host.store import ANY_VERSION, Flow, Run
from flowactions_conformance.reference_host.testing import ReferenceDriver
from flowactions_hookspecs import Advanced, Deferred, Node, Walk
from tests.conformance.mutants.altered import AlteredActions, alter_actions
from tests.conformance.mutants.mutant import changed, mutant


def _position_is_a_number(driver: ReferenceDriver) -> None:
    store = driver.made.host.store
    find = store.run

    async def run(session: str) -> Run | None:
        found = await find(session)
        newest = found and await store.flow(found.flow.id)
        return replace(found, flow=newest) if found and newest else found

    store.run = run  # type: ignore[method-assign]


def _saving_ends_runs(driver: ReferenceDriver) -> None:
    store = driver.made.host.store
    save = store.save_flow

    async def save_flow(flow: Flow, over: str | None = ANY_VERSION) -> bool:
        saved = await save(flow, over)
        async with store.engine.begin() as connection:
            await connection.execute(delete(tables.runs).where(tables.runs.c.flow_id == flow.id))
        return saved

    store.save_flow = save_flow  # type: ignore[method-assign]


def _newest_config(driver: ReferenceDriver) -> None:
    class Actions(AlteredActions):
        async def advance(self, walk: Walk, step_id: str | None, transaction: object = None) -> Advanced:
            waiting = replace(walk, pacing=Deferred(step_id), run_id=f"{walk.run_id}+")
            items = (await self.flow(walk)).items
            end = next((at for at, item in enumerate(items) if item["id"] == step_id), len(items))
            begin = max((at + 1 for at, item in enumerate(items[:end]) if item["kind"] == "step"), default=0)
            for item in items[begin:end]:
                node = Node(id=item["id"], type=item["type"], config=item["config"])
                await self.actions.reach(waiting, node)
            return await self.actions.advance(waiting, step_id)

    alter_actions(driver, Actions)


def _promises_the_newest(driver: ReferenceDriver) -> None:
    driver.edits = "live"


MUTANTS = [
    mutant(
        "position-is-a-number",
        "The position of a run is a number, and counts in the newest version of its flow.",
        changed(_position_is_a_number),
        kills="PACING-11",
        spares="PACING-2 PACING-3",
        message="after its flow was edited, a run showed a step twice",
    ),
    mutant(
        "saving-ends-runs",
        "Saving a flow ends the runs that are in it.",
        changed(_saving_ends_runs),
        kills="PACING-11",
        spares="PACING-2 PACING-3",
        message="next() of the driver raised HTTPStatusError",
    ),
    mutant(
        "newest-config",
        "Nodes run with the config that their flow has when the user gets to their step.",
        changed(_newest_config),
        kills="PACING-11",
        spares="PACING-2 PACING-3 PACING-7",
        message="did not run once as it was recorded",
    ),
    mutant(
        "promises-the-newest",
        "The driver says that end users see the newest version, and they see the one in which their run began.",
        changed(_promises_the_newest),
        kills="PACING-11",
        spares="PACING-2",
        message="did not show the steps that `edits = 'live'` promises",
    ),
]
