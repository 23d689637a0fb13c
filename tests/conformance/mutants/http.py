"""Mutants of how requests and answers pass through the host."""

from __future__ import annotations

import json
from typing import Any
from urllib.parse import unquote

from flowactions_conformance.reference_host.testing import ReferenceDriver
from flowactions_hookspecs import DashboardPrincipal, Request
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


def _methods_of_browsers(driver: ReferenceDriver) -> None:
    def refuse(asked: Asked) -> Answer | None:
        return json_answer(405, b"{}") if asked.method in {"PUT", "PATCH"} else None

    driver.app = around(driver.app, refuse=refuse)


def _bodies_again(driver: ReferenceDriver) -> None:
    def again(body: bytes) -> bytes:
        try:
            return json.dumps(json.loads(body)).encode()
        except ValueError:
            return body

    driver.app = around(driver.app, body_of=again)


def _query_decoded(driver: ReferenceDriver) -> None:
    def decoded(scope: Scope) -> Scope:
        query = unquote(scope["query_string"].decode("latin-1"), "latin-1")
        return {**scope, "query_string": query.encode("latin-1")}

    driver.app = around(driver.app, scope_of=decoded)


def _errors_again(driver: ReferenceDriver) -> None:
    def rewrite(_: Asked, answer: Answer) -> Answer:
        return json_answer(answer.status, b'{"error": "Oops"}') if answer.status >= 400 else answer

    driver.app = around(driver.app, rewrite=rewrite)


def _session_everywhere(driver: ReferenceDriver) -> None:
    def refuse(asked: Asked) -> Answer | None:
        guarded = asked.path.startswith(("/integrations/chat", "/webhooks"))
        if guarded and "authorization" not in asked.headers:
            return json_answer(401, b'{"error": "Sign in first."}')
        return None

    driver.app = around(driver.app, refuse=refuse)


def _forms_need_a_token(driver: ReferenceDriver) -> None:
    def refuse(asked: Asked) -> Answer | None:
        form = asked.headers.get("content-type", "").startswith("application/x-www-form-urlencoded")
        return (
            json_answer(403, b'{"error": "No CSRF token."}')
            if form and "x-csrf-token" not in asked.headers
            else None
        )

    driver.app = around(driver.app, refuse=refuse)


def _cookies_merged(driver: ReferenceDriver) -> None:
    def rewrite(_: Asked, answer: Answer) -> Answer:
        merged: dict[bytes, bytes] = {}
        for name, value in answer.headers:
            merged[name] = merged[name] + b", " + value if name in merged else value
        return Answer(answer.status, list(merged.items()), answer.body)

    driver.app = around(driver.app, rewrite=rewrite)


def _fails_at_unknown_paths(driver: ReferenceDriver) -> None:
    titles = {"chat": "Chat", "health": "Health", "nodes": "Nodes", "probe": "Probe", "webhooks": "Webhooks"}

    def refuse(asked: Asked) -> Answer | None:
        parts = asked.path.split("/")
        known = parts[1] != "integrations" or (len(parts) > 2 and parts[2] in titles)
        return None if known else json_answer(500, b"KeyError")

    driver.app = around(driver.app, refuse=refuse)


def _everybody_is_support(driver: ReferenceDriver) -> None:
    host = driver.made.host
    ask = host.dashboard_principal

    async def dashboard_principal(request: Request) -> DashboardPrincipal | None:
        found = await ask(request)
        return found and DashboardPrincipal(
            organization_id=found.organization_id,
            user_id="support",
            user_name="Support",
            may_change=found.may_change,
        )

    host.dashboard_principal = dashboard_principal  # type: ignore[method-assign]


def _bodies_of_16_kib(driver: ReferenceDriver) -> None:
    inner = driver.app

    async def limited(scope: Scope, receive: Any, send: Any) -> None:
        length = next((value for name, value in scope.get("headers", ()) if name == b"content-length"), b"0")
        if scope["type"] == "http" and int(length) > 1 << 14:
            await send({"type": "http.response.start", "status": 413, "headers": []})
            await send({"type": "http.response.body", "body": b""})
            return
        await inner(scope, receive, send)

    driver.app = limited


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


def _header_values_lowered(driver: ReferenceDriver) -> None:
    def lowered(scope: Scope) -> Scope:
        kept = {b"authorization", b"cookie"}
        headers = [(name, value if name in kept else value.lower()) for name, value in scope["headers"]]
        return {**scope, "headers": headers}

    driver.app = around(driver.app, scope_of=lowered)


MUTANTS = [
    mutant(
        "unknown-prefix",
        "The routes are mounted below a path of which FlowActions.load was not told.",
        changed(_unknown_prefix),
        kills="HTTP-2 HTTP-10 TENANCY-2 TENANCY-3 TENANCY-5",
        spares="HTTP-1 HTTP-3 HTTP-7 EDIT-4 AUTH-1",
        message="where the palette has it",
    ),
    mutant(
        "methods-of-browsers",
        "A list of allowed methods holds GET, POST and DELETE only.",
        changed(_methods_of_browsers),
        kills="HTTP-1 HTTP-4 HTTP-7 AUTH-1 AUTH-3 SAVING-4",
        spares="HTTP-3 HTTP-5 HTTP-6",
        message="PUT /integrations/chat/connection/default-channel answered 405, not 400",
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
        "query-decoded",
        "A middleware decodes the query.",
        changed(_query_decoded),
        kills="HTTP-4",
        spares="HTTP-1 HTTP-3 HTTP-10",
        message="the query of a GET reached the plugin changed",
    ),
    mutant(
        "errors-again",
        "An error handler for the whole app writes every error in its own form.",
        changed(_errors_again),
        kills="HTTP-5 HTTP-6 HTTP-7",
        spares="HTTP-1 HTTP-3 HTTP-9 AUTH-1 SAVING-4",
        message="the problem that the plugin answers to GET /v1/webhooks/outbox?unknown=1 was rewritten",
    ),
    mutant(
        "session-everywhere",
        "The host asks for a session on all routes below /integrations/chat and /webhooks.",
        changed(_session_everywhere),
        kills="HTTP-6 HTTP-7",
        spares="HTTP-1 HTTP-10 AUTH-1 AUTH-5",
        message="as the chat provider sends it, did not get the plugin's answer",
    ),
    mutant(
        "forms-need-a-token",
        "The host's CSRF protection refuses forms without its token, the plugin's routes included.",
        changed(_forms_need_a_token),
        kills="HTTP-3 HTTP-7",
        spares="HTTP-1 HTTP-4 HTTP-6 HTTP-10",
        message="as application/x-www-form-urlencoded, which asks for no credential, did not get the plugin's answer",
    ),
    mutant(
        "cookies-merged",
        "Headers of answers are kept in a dictionary.",
        changed(_cookies_merged),
        kills="HTTP-8",
        spares="HTTP-5 HTTP-10",
        message="did not reach the client each in a header of its own",
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
        "everybody-is-support",
        "The principal names one technical user for everybody.",
        changed(_everybody_is_support),
        kills="HTTP-10",
        spares="HTTP-1 AUTH-5 TENANCY-2",
        message="by another person than the one who is signed in",
    ),
    mutant(
        "bodies-of-16-kib",
        "A proxy or middleware refuses bodies above 16 KiB.",
        changed(_bodies_of_16_kib),
        kills="HTTP-3 SAVING-2",
        spares="HTTP-1 HTTP-4 HTTP-5 HTTP-7",
        message="a body of two mebibytes, the largest that a route takes, did not reach the plugin: it was answered 413",
    ),
    mutant(
        "errors-asked-again",
        "A proxy or middleware asks once more when the answer is that of a host that fails.",
        changed(_errors_asked_again),
        kills="HTTP-11",
        spares="HTTP-1 HTTP-5 HTTP-8",
        message="a POST that the plugin answered with 502 did not reach it once",
    ),
    mutant(
        "header-values-lowered",
        "An adapter hands header values on in lower case.",
        changed(_header_values_lowered),
        kills="HTTP-3",
        spares="HTTP-1 HTTP-4 HTTP-5",
        message="the header idempotency-key reached the plugin changed",
    ),
]
