"""Mutants of loading and the palette."""

from __future__ import annotations

from typing import Any

from flowactions_conformance import Login
from flowactions_conformance.reference_host.store import ANY_VERSION, Flow
from flowactions_conformance.reference_host.testing import ReferenceDriver
from tests.conformance.mutants.mutant import changed, mutant

_flows: dict[str, Flow] = {}


def _fixed_palette(driver: ReferenceDriver) -> None:
    ask = driver.palette

    async def palette(who: Login) -> list[Any]:
        return [entry for entry in await ask(who) if entry["name"] in {"webhook", "chat_message"}]

    driver.palette = palette  # type: ignore[method-assign]


def _global_cache(driver: ReferenceDriver) -> None:
    store = driver.made.host.store
    save, load = store.save_flow, store.flow

    async def save_flow(flow: Flow, over: str | None = ANY_VERSION) -> bool:
        _flows[flow.id] = flow
        return await save(flow, over)

    async def flow(flow_id: str) -> Flow | None:
        return _flows.get(flow_id) or await load(flow_id)

    store.save_flow, store.flow = save_flow, flow  # type: ignore[method-assign]


MUTANTS = [
    mutant(
        "fixed-palette",
        "The editor offers a fixed list of node types.",
        changed(_fixed_palette),
        kills="LOAD-2 EDIT-1",
        spares="LOAD-1 LOAD-3 EDIT-5 EAGER-1",
        message="the palette must offer 'probe' once",
    ),
    mutant(
        "global-cache",
        "Flows are cached in a dictionary of the module, which all hosts of the process share.",
        changed(_global_cache),
        kills="LOAD-3",
        spares="LOAD-1 LOAD-2 EDIT-5 EAGER-1",
        message="one walks the other's flow",
    ),
]
