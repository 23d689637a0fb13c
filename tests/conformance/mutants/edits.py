"""Mutants of what becomes of a run whose flow is edited."""

from __future__ import annotations

from msgspec.structs import replace

from flowactions_conformance.reference_host.store import Run
from flowactions_conformance.reference_host.testing import ReferenceDriver
from tests.conformance.mutants.mutant import changed, mutant


def _position_is_a_number(driver: ReferenceDriver) -> None:
    store = driver.made.host.store
    find = store.run

    async def run(session: str) -> Run | None:
        found = await find(session)
        newest = found and await store.flow(found.flow.id)
        return replace(found, flow=newest) if found and newest else found

    store.run = run  # type: ignore[method-assign]


MUTANTS = [
    mutant(
        "position-is-a-number",
        "The position of a run is a number, and counts in the newest version of its flow.",
        changed(_position_is_a_number),
        kills="PACING-11",
        spares="PACING-2 PACING-3",
        message="after its flow was edited, a run showed a step twice",
    ),
]
