"""Mutants of what authors see and save."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from flowactions_conformance import Action, Flow, Login
from flowactions_conformance.reference_host.testing import ReferenceDriver
from flowactions_hookspecs import Request
from tests.conformance.mutants.auth import Found, person
from tests.conformance.mutants.mutant import changed, mutant


def _problems_hidden(driver: ReferenceDriver) -> None:
    save = driver.save

    async def hidden(who: Login, flow: Flow) -> Sequence[Mapping[str, Any]]:
        await save(who, flow)
        return []

    driver.save = hidden  # type: ignore[method-assign]


def _own_preview(driver: ReferenceDriver) -> None:
    preview = driver.preview

    async def with_config(who: Login, flow: str, node: Action) -> Mapping[str, Any]:
        return {**await preview(who, flow, node), "config": node.config}

    driver.preview = with_config  # type: ignore[method-assign]


def _everybody_may_change(driver: ReferenceDriver) -> None:
    async def change(_: Request, found: Found) -> Found:
        return found and msgspec.structs.replace(found, may_change=True)

    person(driver, change)


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
        "problems-hidden",
        "A flow is saved without a word on what is wrong with it.",
        changed(_problems_hidden),
        kills="SAVING-1",
        spares="SAVING-2 SAVING-3",
        message="the author is not shown the problem 'probe_problem'",
    ),
    mutant(
        "own-preview",
        "The preview shows the config beside what the plugin gave, secrets included.",
        changed(_own_preview),
        kills="SAVING-3",
        spares="SAVING-1 SAVING-2",
        message="the preview shows a secret that the plugin has masked",
    ),
    mutant(
        "everybody-may-change",
        "may_change is always true.",
        changed(_everybody_may_change),
        kills="AUTH-1 AUTH-7 SAVING-6",
        spares="AUTH-5 SAVING-1",
        message="POST /v1/webhooks/outbox/retry, by a person who may only look, is answered 400",
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
