"""Mutants of loading and the palette."""

from __future__ import annotations

from typing import Any

from flowactions_conformance import Login
from flowactions_conformance.reference_host.testing import ReferenceDriver
from tests.conformance.mutants.mutant import changed, mutant


def _fixed_palette(driver: ReferenceDriver) -> None:
    ask = driver.palette

    async def palette(who: Login) -> list[Any]:
        return [entry for entry in await ask(who) if entry["name"] in {"webhook", "chat_message"}]

    driver.palette = palette  # type: ignore[method-assign]


MUTANTS = [
    mutant(
        "fixed-palette",
        "The editor offers a fixed list of node types.",
        changed(_fixed_palette),
        kills="LOAD-2",
        spares="LOAD-1 EAGER-1",
        message="the palette must offer 'probe' once",
    ),
]
