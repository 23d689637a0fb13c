"""Mutants of loading and the palette."""

from __future__ import annotations

import time
from typing import Any

from flowactions_conformance import Login
from flowactions_conformance.reference_host import ReferenceHost
from flowactions_conformance.reference_host.store import ANY_VERSION, Flow
from flowactions_conformance.reference_host.testing import ReferenceDriver
from flowactions_hookspecs import FlowActions
from tests.conformance.mutants.mutant import changed, mutant

_flows: dict[str, Flow] = {}
_present: list[str] = []


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


def _global_buffer(driver: ReferenceDriver) -> None:
    walker = driver.made.walker
    walk = walker.open

    async def open_(flow: Flow, user_id: str, content: str) -> Any:
        _present[:] = [user_id, content]
        time.sleep(0.002)  # noqa: ASYNC251  as a library that waits without the event loop
        return await walk(flow, *_present)

    walker.open = open_  # type: ignore[method-assign]


def _loaded_twice(driver: ReferenceDriver) -> None:
    host = driver.made.host
    FlowActions.load(ReferenceHost(host.settings, host.store))


MUTANTS = [
    mutant(
        "fixed-palette",
        "The editor offers a fixed list of node types.",
        changed(_fixed_palette),
        kills="LOAD-2 EDIT-1 EDIT-2 EDIT-3 EDIT-4 HTTP-2",
        spares="LOAD-1 LOAD-3 EDIT-5 EAGER-1",
        message="the palette must offer 'probe' once",
    ),
    mutant(
        "loaded-twice",
        "The plugins are loaded a second time, for the part that walks flows.",
        changed(_loaded_twice),
        kills="LOAD-1",
        spares="LOAD-2 LOAD-3 EAGER-1",
        message="loaded more than once for one host",
    ),
    mutant(
        "global-cache",
        "Flows are cached in a dictionary of the module, which all hosts of the process share.",
        changed(_global_cache),
        kills="LOAD-3",
        spares="LOAD-1 LOAD-2 EDIT-5 EAGER-1",
        message="one walks the other's flow",
    ),
    mutant(
        "global-buffer",
        "What is walked is kept in a list of the module, which is right while only one thread uses it.",
        changed(_global_buffer),
        kills="LOAD-3",
        spares="LOAD-1 LOAD-2 EAGER-1 EAGER-2",
        message="of two hosts that run in two threads, one gets what belongs to a walk of the other",
    ),
]
