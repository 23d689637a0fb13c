"""Mutants of how requests and answers pass through the host."""

from __future__ import annotations

import json
from typing import Any

from flowactions_conformance.reference_host.testing import ReferenceDriver
from tests.conformance.middleware import (
    Answer,
    Asked,
    Scope,
    answer_of,
    around,
    json_answer,
    send_answer,
    whole,
)
from tests.conformance.mutants.mutant import changed, mutant

ELSEWHERE = "/plugins"


def _unknown_prefix(driver: ReferenceDriver) -> None:
    inner = driver.app

    async def mounted(scope: Scope, receive: Any, send: Any) -> None:
        if scope["type"] == "http" and scope["path"].startswith(ELSEWHERE):
            path = scope["path"].removeprefix(ELSEWHERE)
            scope = {**scope, "path": path, "raw_path": path.encode()}
        elif scope["type"] == "http" and scope["path"].startswith(("/integrations", "/v1/", "/webhooks")):
            scope = {**scope, "path": "/nothing", "raw_path": b"/nothing"}
        await inner(scope, receive, send)

    driver.app, driver.prefix = mounted, ELSEWHERE


def _bodies_again(driver: ReferenceDriver) -> None:
    def again(body: bytes) -> bytes:
        try:
            return json.dumps(json.loads(body)).encode()
        except ValueError:
            return body

    driver.app = around(driver.app, body_of=again)


def _errors_again(driver: ReferenceDriver) -> None:
    def rewrite(_: Asked, answer: Answer) -> Answer:
        return json_answer(answer.status, b'{"error": "Oops"}') if answer.status >= 400 else answer

    driver.app = around(driver.app, rewrite=rewrite)


def _fails_at_unknown_paths(driver: ReferenceDriver) -> None:
    titles = {"chat": "Chat", "health": "Health", "nodes": "Nodes", "probe": "Probe", "webhooks": "Webhooks"}

    def refuse(asked: Asked) -> Answer | None:
        parts = asked.path.split("/")
        known = parts[1] != "integrations" or (len(parts) > 2 and parts[2] in titles)
        return None if known else json_answer(500, b"KeyError")

    driver.app = around(driver.app, refuse=refuse)


def _errors_asked_again(driver: ReferenceDriver) -> None:
    inner = driver.app

    async def repeating(scope: Scope, receive: Any, send: Any) -> None:
        if scope["type"] != "http" or scope["method"] == "GET":
            await inner(scope, receive, send)
            return
        body = await whole(receive)
        answer = await answer_of(inner, scope, body)
        if answer.status in {502, 503, 504}:
            answer = await answer_of(inner, scope, body)
        await send_answer(send, answer)

    driver.app = repeating


MUTANTS = [
    mutant(
        "unknown-prefix",
        "The routes are mounted below a path of which FlowActions.load was not told.",
        changed(_unknown_prefix),
        kills="HTTP-2 HTTP-10 TENANCY-2 TENANCY-5",
        spares="HTTP-1 HTTP-3 HTTP-7 AUTH-1",
        message="where the palette has it",
    ),
    mutant(
        "bodies-again",
        "A middleware reads JSON bodies and hands on what it has read, written anew.",
        changed(_bodies_again),
        kills="HTTP-3 HTTP-7",
        spares="HTTP-1 HTTP-4 HTTP-5 HTTP-6",
        message="a body with JSON with spaces and a repeated name reached the plugin changed",
    ),
    mutant(
        "errors-again",
        "An error handler for the whole app writes every error in its own form.",
        changed(_errors_again),
        kills="HTTP-6 HTTP-7",
        spares="HTTP-1 HTTP-3 HTTP-9 AUTH-1",
        message="the problem that the plugin answers to GET /v1/webhooks/outbox?unknown=1 was rewritten",
    ),
    mutant(
        "fails-at-unknown-paths",
        "A middleware looks a plugin's title up by the path, and fails for one that it does not know.",
        changed(_fails_at_unknown_paths),
        kills="HTTP-9",
        spares="HTTP-1 HTTP-6",
        message="which nobody has, is a server error",
    ),
    mutant(
        "errors-asked-again",
        "A proxy or middleware asks once more when the answer is that of a host that fails.",
        changed(_errors_asked_again),
        kills="HTTP-11",
        spares="HTTP-1 HTTP-5 HTTP-8",
        message="a POST that the plugin answered with 502 did not reach it once",
    ),
]
