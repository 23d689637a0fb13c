"""Mutants with faults that other engines, and the frameworks below them, have had: each names where it was reported."""

from __future__ import annotations

import html
import os
import re
from collections.abc import Callable
from typing import Any

import msgspec
import yaml

from flowactions_conformance.reference_host.store import ANY_VERSION, Flow
from flowactions_conformance.reference_host.testing import ReferenceDriver
from flowactions_hookspecs import Node
from tests.conformance.middleware import Answer, Asked, Scope, around
from tests.conformance.mutants.mutant import changed, mutant

WIDTH = 65_535


def _texts(driver: ReferenceDriver, change: Callable[[str], Any]) -> None:
    """Has each text of a config changed when its flow is stored."""
    store = driver.made.host.store
    save = store.save_flow

    def again(value: Any) -> Any:
        if isinstance(value, dict):
            return {name: again(each) for name, each in value.items()}
        if isinstance(value, list):
            return [again(each) for each in value]
        return change(value) if isinstance(value, str) else value

    async def save_flow(flow: Flow, over: str | None = ANY_VERSION) -> bool:
        items = [
            {**item, **({"config": again(item["config"])} if "config" in item else {})} for item in flow.items
        ]
        return await save(msgspec.structs.replace(flow, items=items), over)

    store.save_flow = save_flow  # type: ignore[method-assign]


def _plain_yaml(driver: ReferenceDriver) -> None:
    def plain(text: str) -> Any:
        try:
            read = yaml.safe_load(text)
        except yaml.YAMLError:
            return text
        return read if isinstance(read, bool) else text

    _texts(driver, plain)


def _variables_expanded(driver: ReferenceDriver) -> None:
    _texts(driver, os.path.expandvars)


def _texts_trimmed(driver: ReferenceDriver) -> None:
    _texts(driver, str.strip)


def _texts_escaped(driver: ReferenceDriver) -> None:
    _texts(driver, lambda text: html.escape(text, quote=False))


def _three_bytes(driver: ReferenceDriver) -> None:
    _texts(driver, lambda text: re.sub(r"[^\u0000-\uffff]", "?", text))


def _cut(driver: ReferenceDriver) -> None:
    _texts(driver, lambda text: text.encode()[:WIDTH].decode("utf-8", "ignore"))


def _ids_without_case(driver: ReferenceDriver) -> None:
    host = driver.made.host
    find = host.node

    async def node(organization_id: str, flow_id: str, node_id: str) -> Node | None:
        flow = await host.store.flow(flow_id)
        for item in flow.items if flow is not None else []:
            if item["id"].lower() == node_id.lower():
                return await find(organization_id, flow_id, item["id"])
        return await find(organization_id, flow_id, node_id)

    host.node = node  # type: ignore[method-assign]


def _body_read_before(driver: ReferenceDriver) -> None:
    driver.app = around(driver.app, body_of=lambda _: b"")


def _page_for_everything(driver: ReferenceDriver) -> None:
    def rewrite(_: Asked, answer: Answer) -> Answer:
        page = Answer(200, [(b"content-type", b"text/html")], b"<!doctype html><title>Editor</title>")
        return page if answer.status == 404 else answer

    driver.app = around(driver.app, rewrite=rewrite)


def _slash_appended(driver: ReferenceDriver) -> None:
    def refuse(asked: Asked) -> Answer | None:
        if asked.path.endswith("/"):
            return None
        return Answer(307, [(b"location", f"{asked.path}/".encode())], b"")

    def without(scope: Scope) -> Scope:
        path = scope["path"].removesuffix("/")
        return {**scope, "path": path, "raw_path": path.encode()}

    driver.app = around(driver.app, refuse=refuse, scope_of=without)


def _headers_in_a_dict(driver: ReferenceDriver) -> None:
    driver.app = around(
        driver.app, scope_of=lambda scope: {**scope, "headers": list(dict(scope["headers"]).items())}
    )


MUTANTS = [
    # kestra-io/kestra#7846: values Yes and No of inputs arrive as booleans.
    mutant(
        "yaml-without-quotes",
        "Flows are kept as YAML, and texts are written without quotes.",
        changed(_plain_yaml),
        kills="EDIT-5",
        spares="EDIT-1 EAGER-3",
        message="the config of a node changed: config.looksLike",
    ),
    # n8n-io/n8n#3136, jstanden/cerb#1878: a database that keeps three bytes of a character cannot keep an emoji.
    mutant(
        "three-bytes",
        "Texts are kept in an encoding without emoji.",
        changed(_three_bytes),
        kills="EDIT-5",
        spares="EDIT-1 EAGER-3",
        message="the config of a node changed: config.Ünknown-Kéy",
    ),
    # FlowiseAI/Flowise#2159: what is longer than 65,535 characters is cut without an error.
    mutant(
        "cut-at-a-column",
        "Texts are cut at the width of their column.",
        changed(_cut),
        kills="EDIT-5",
        spares="EDIT-1 EAGER-3",
        message="the config of a node changed: config.long",
    ),
    # node-red/node-red#4672: ${NAME} in a node's properties is replaced, and by nothing when the variable is empty.
    mutant(
        "variables-expanded",
        "Variables of the environment are put into configs.",
        changed(_variables_expanded),
        kills="EDIT-5",
        spares="EDIT-1 EAGER-2",
        message="the config of a node changed: config.looksLike",
    ),
    # kubeflow/pipelines#1605: parameters lose blanks at their begin and end.
    mutant(
        "configs-trimmed",
        "Texts of configs are trimmed.",
        changed(_texts_trimmed),
        kills="EDIT-5",
        spares="EDIT-1 EAGER-3",
        message="the config of a node changed: config.padded",
    ),
    # galaxyproject/galaxy#256: what an author has written is escaped for HTML where it is none.
    mutant(
        "configs-escaped",
        "Texts of configs are escaped for HTML.",
        changed(_texts_escaped),
        kills="EDIT-5",
        spares="EDIT-1 EAGER-3",
        message="the config of a node changed: config.Ünknown-Kéy",
    ),
    # apache/airflow#18072: with the collation that was recommended, ids that differ in case were one.
    mutant(
        "ids-without-case",
        "A node is looked up without regard to upper and lower case.",
        changed(_ids_without_case),
        kills="EAGER-6",
        spares="EAGER-2 EAGER-7",
        message="only, TWIN is not signed with its own secret",
    ),
    # Kludex/starlette#495: a middleware that reads the body leaves none for the app behind it.
    mutant(
        "body-read-before",
        "A middleware that logs requests reads their bodies.",
        changed(_body_read_before),
        kills="HTTP-3 HTTP-7",
        spares="HTTP-4 EAGER-1",
        message="a body with bytes that are no UTF-8 reached the plugin changed",
    ),
    # NousResearch/hermes-agent#27707: a path of a plugin that nobody has answers 200 with the editor's page.
    mutant(
        "page-for-everything",
        "What was not found is answered with the editor's page.",
        changed(_page_for_everything),
        kills="HTTP-5 HTTP-6",
        spares="HTTP-1 HTTP-3",
        message="an answer with status 404 got another one",
    ),
    # cheshire-cat-ai/core#732: a request without the slash at its end is redirected.
    mutant(
        "slash-appended",
        "Each path gets a slash at its end, by a redirect.",
        changed(_slash_appended),
        kills="HTTP-1 HTTP-3",
        spares="EDIT-1 EAGER-1",
        message="307",
    ),
    # opsmill/infrahub#8641: headers go through a dictionary, and the last of a name wins.
    mutant(
        "headers-in-a-dict",
        "The headers of a request are kept in a dictionary.",
        changed(_headers_in_a_dict),
        kills="HTTP-3",
        spares="HTTP-1 HTTP-4",
        message="a header that was sent twice reached the plugin with one of its values",
    ),
]
