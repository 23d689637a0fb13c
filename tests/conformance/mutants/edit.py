"""Mutants of the palette's entries and of saved configs."""

from __future__ import annotations

import json
import unicodedata
from collections.abc import Callable
from typing import Any

import msgspec

from flowactions_conformance import Login
from flowactions_conformance.reference_host.store import ANY_VERSION, Flow
from flowactions_conformance.reference_host.testing import ReferenceDriver
from tests.conformance.mutants.mutant import changed, mutant

Entry = dict[str, Any]


def _each(driver: ReferenceDriver, change: Callable[[Entry], Entry | None]) -> None:
    ask = driver.palette

    async def palette(who: Login) -> list[Entry]:
        return [entry for each in await ask(who) if (entry := change(dict(each))) is not None]

    driver.palette = palette  # type: ignore[method-assign]


def _without_falsy(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _without_falsy(each) for name, each in value.items() if each}
    return [_without_falsy(each) for each in value] if isinstance(value, list) else value


def _without_empty(config: Entry) -> Entry:
    return {name: value for name, value in config.items() if value not in (None, "", [], {})}


def _schema_again(driver: ReferenceDriver) -> None:
    kept = ("configSchema", "uiSchema")
    _each(driver, lambda entry: {**entry, **{name: _without_falsy(entry[name]) for name in kept}})


def _icon_removed(driver: ReferenceDriver) -> None:
    _each(driver, lambda entry: {**entry, "icon": ""})


def _only_available(driver: ReferenceDriver) -> None:
    _each(driver, lambda entry: entry if entry["available"] else None)


def _palette_cut(driver: ReferenceDriver) -> None:
    kept = ("name", "title", "description", "category", "icon", "version", "available", "unavailableReason")
    _each(driver, lambda entry: {name: entry[name] for name in (*kept, "configSchema", "uiSchema")})


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


def _texts_composed(driver: ReferenceDriver) -> None:
    store = driver.made.host.store
    save = store.save_flow

    async def save_flow(flow: Flow, over: str | None = ANY_VERSION) -> bool:
        composed = unicodedata.normalize("NFC", json.dumps(flow.items, ensure_ascii=False))
        return await save(msgspec.structs.replace(flow, items=json.loads(composed)), over)

    store.save_flow = save_flow  # type: ignore[method-assign]


MUTANTS = [
    mutant(
        "schema-again",
        "Schemas go through a model of the host's, which leaves falsy values out.",
        changed(_schema_again),
        kills="EDIT-2",
        spares="LOAD-2 EDIT-1 EDIT-3 EDIT-4 HTTP-2",
        message="is missing",
    ),
    mutant(
        "icon-removed",
        "The palette is cleaned of SVG.",
        changed(_icon_removed),
        kills="EDIT-1",
        spares="LOAD-2 EDIT-2 EDIT-4",
        message="the palette's entry of 'webhook' is not what the plugin gave: icon",
    ),
    mutant(
        "only-available",
        "What is not available is left out, so that its author never learns why.",
        changed(_only_available),
        kills="EDIT-3",
        spares="LOAD-2 EDIT-1 EDIT-2 EDIT-4",
        message="the palette does not offer 'probe_unavailable'",
    ),
    mutant(
        "palette-cut",
        "The palette is rebuilt of the fields that the host's author knew.",
        changed(_palette_cut),
        kills="EDIT-4",
        spares="LOAD-2 EDIT-1 EDIT-2 EDIT-3 HTTP-2",
        message="lacks 'pickers'",
    ),
    mutant(
        "empty-config-dropped",
        "Empty values are cleaned out of configs when they are stored.",
        changed(_empty_config_dropped),
        kills="EDIT-5 SAVING-2",
        spares="EDIT-2 EAGER-1 SAVING-1",
        message="the config of a node changed: config.text is missing",
    ),
    mutant(
        "texts-composed",
        "Texts are normalized when a flow is saved.",
        changed(_texts_composed),
        kills="EDIT-5",
        spares="EDIT-1 EDIT-2 EAGER-3",
        message="the config of a node changed: config.decomposed",
    ),
]
