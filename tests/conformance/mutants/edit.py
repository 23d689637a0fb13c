"""Mutants of the palette's entries and of saved configs."""

from __future__ import annotations

from typing import Any

import msgspec

from flowactions_conformance.reference_host.store import ANY_VERSION, Flow
from flowactions_conformance.reference_host.testing import ReferenceDriver
from tests.conformance.mutants.mutant import changed, mutant

Entry = dict[str, Any]


def _without_empty(config: Entry) -> Entry:
    return {name: value for name, value in config.items() if value not in (None, "", [], {})}


def _empty_config_dropped(driver: ReferenceDriver) -> None:
    store = driver.made.host.store
    save = store.save_flow

    async def save_flow(flow: Flow, over: str | None = ANY_VERSION) -> bool:
        items = [
            {**item, "config": _without_empty(item["config"])} if item["kind"] == "action" else item
            for item in flow.items
        ]
        return await save(msgspec.structs.replace(flow, items=items), over)

    store.save_flow = save_flow  # type: ignore[method-assign]


MUTANTS = [
    mutant(
        "empty-config-dropped",
        "Empty values are cleaned out of configs when they are stored.",
        changed(_empty_config_dropped),
        kills="EDIT-5 SAVING-2",
        spares="EDIT-1 EAGER-1 SAVING-1",
        message="the config of a node changed: config.text is missing",
    ),
]
