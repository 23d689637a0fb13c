"""Mutants of what authors see and save."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from flowactions_conformance import Action, Flow, Login
from flowactions_conformance.reference_host.testing import ReferenceDriver
from tests.conformance.mutants.mutant import changed, mutant


def _own_preview(driver: ReferenceDriver) -> None:
    preview = driver.preview

    async def with_config(who: Login, flow: str, node: Action) -> Mapping[str, Any]:
        return {**await preview(who, flow, node), "config": node.config}

    driver.preview = with_config  # type: ignore[method-assign]


def _ids_made_anew(driver: ReferenceDriver) -> None:
    save, saved = driver.save, itertools.count(1)

    async def anew(who: Login, flow: Flow) -> Sequence[Mapping[str, Any]]:
        number = next(saved)
        items = [
            msgspec.structs.replace(item, id=f"{item.id}-{number}") if isinstance(item, Action) else item
            for item in flow.items
        ]
        return await save(who, msgspec.structs.replace(flow, items=tuple(items)))

    driver.save = anew  # type: ignore[method-assign]


MUTANTS = [
    mutant(
        "own-preview",
        "The preview shows the config beside what the plugin gave, secrets included.",
        changed(_own_preview),
        kills="SAVING-3",
        spares="SAVING-1 SAVING-2",
        message="the preview shows a secret that the plugin has masked",
    ),
    mutant(
        "ids-made-anew",
        "Saving a flow makes its nodes anew.",
        changed(_ids_made_anew),
        kills="SAVING-2",
        spares="SAVING-1 SAVING-3",
        message="has other node ids than before",
    ),
]
