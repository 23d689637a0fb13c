"""Mutants with faults that somebody tried on the kit who had not written it, and that it did not find at first."""

from __future__ import annotations

import asyncio
import base64
import json
import re
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Literal

import httpx
from msgspec.structs import replace

from flowactions_conformance import Env
from flowactions_conformance.reference_host.host import ReferenceHost
from flowactions_conformance.reference_host.store import ANY_VERSION, Flow
from flowactions_conformance.reference_host.testing import ReferenceDriver
from flowactions_conformance.reference_host.walker import Turn
from flowactions_hookspecs import (
    Deferred,
    FlowActions,
    LogicAction,
    LogicActionRef,
    Node,
    Receipt,
    Walk,
)
from tests.conformance.hosts.fastapi_host import ShopDriver, ShopHost, create_app
from tests.conformance.hosts.lazy_host import LazyWalker
from tests.conformance.middleware import Answer, Asked, Scope, around
from tests.conformance.mutants.altered import (
    AlteredActions,
    AlteredWalker,
    alter_actions,
    alter_host,
    alter_walker,
)
from tests.conformance.mutants.auth import _digest, _tokens, token_part
from tests.conformance.mutants.mutant import changed, mutant


def _signature_left_out(driver: ReferenceDriver) -> None:
    def same(real: str, token: str) -> bool:
        payload, _, signature = token.partition(".")
        return payload == real.partition(".")[0] and signature in {"", real.partition(".")[2]}

    _tokens(driver, lambda token: f"{token}.{_digest(token)}", same)


def _algorithm_of_the_token(driver: ReferenceDriver) -> None:
    def given(token: str) -> str:
        return f"{token_part({'alg': 'HS256', 'typ': 'JWT'})}.{token_part({'sub': token})}.{_digest(token)}"

    def same(real: str, token: str) -> bool:
        header, _, rest = token.partition(".")
        try:
            unsigned = json.loads(base64.urlsafe_b64decode(header + "==")).get("alg") == "none"
        except (ValueError, AttributeError):
            return False
        return real == token or (unsigned and rest.partition(".")[0] == real.split(".")[1])

    _tokens(driver, given, same)


def _patterns(driver: ReferenceDriver) -> None:
    def same(real: str, token: str) -> bool:
        return re.fullmatch(re.escape(token).replace("%", ".*"), real) is not None

    _tokens(driver, lambda token: token, same)


def _json_of_100_kib(driver: ReferenceDriver) -> None:
    inner = driver.app

    async def limited(scope: Scope, receive: Any, send: Any) -> None:
        headers = dict(scope.get("headers", ()))
        is_json = headers.get(b"content-type") == b"application/json"
        if is_json and "/probe/" in scope["path"] and int(headers.get(b"content-length", b"0")) > 100 << 10:
            await send({"type": "http.response.start", "status": 413, "headers": []})
            await send({"type": "http.response.body", "body": b""})
            return
        await inner(scope, receive, send)

    driver.app = limited


def _answers_lowered(driver: ReferenceDriver) -> None:
    def rewrite(_: Asked, answer: Answer) -> Answer:
        kept = {b"content-type", b"location", b"set-cookie"}
        headers = [(name, value if name in kept else value.lower()) for name, value in answer.headers]
        return answer._replace(headers=headers)

    driver.app = around(driver.app, rewrite=rewrite)


class _Opening(AlteredWalker):
    """Changes what a user has written, and the configs of a run."""

    def content(self, text: str, _: Flow) -> str:
        return text

    def config(self, config: dict[str, Any], _: Flow) -> dict[str, Any]:
        return config

    async def open(self, flow: Flow, user_id: str, content: str) -> Turn:
        items = [
            {**item, "config": self.config(item["config"], flow)} if item["kind"] == "action" else item
            for item in flow.items
        ]
        return await super().open(replace(flow, items=items), user_id, self.content(content, flow))


def _cut_when_paced(driver: ReferenceDriver) -> None:
    class Broken(_Opening):
        def content(self, text: str, flow: Flow) -> str:
            return text[:2_000] if flow.kind == "client_paced" else text

    alter_walker(driver, Broken)


def _configs_cleaned_when_paced(driver: ReferenceDriver) -> None:
    class Broken(_Opening):
        def config(self, config: dict[str, Any], flow: Flow) -> dict[str, Any]:
            is_paced = flow.kind == "client_paced"
            return {name: value for name, value in config.items() if value is not None or not is_paced}

    alter_walker(driver, Broken)


def _lines_as_in_unix(driver: ReferenceDriver) -> None:
    class Broken(_Opening):
        def content(self, text: str, _: Flow) -> str:
            return text.replace("\r\n", "\n")

    alter_walker(driver, Broken)


class _Counter:
    """Counts on from what was read before, also when somebody has counted meanwhile."""

    def __init__(self) -> None:
        self._count = time.time_ns()

    async def next(self) -> str:
        read = self._count
        await asyncio.sleep(0.05)
        self._count = read + 1
        return str(self._count)


def _run_ids_raced(driver: ReferenceDriver) -> None:
    counter = _Counter()

    class Actions(AlteredActions):
        async def walk(self, walk: Walk, _: Node | None) -> Walk:
            return walk if isinstance(walk.pacing, Deferred) else replace(walk, run_id=await counter.next())

        async def advance(self, walk: Walk, step_id: str | None, transaction: Any = None) -> Any:
            return await self.actions.advance(walk, step_id, transaction)

    alter_actions(driver, Actions)


def _firing_ids_raced(driver: ReferenceDriver) -> None:
    actions: Any = driver.made.actions
    dispatch, counter = actions.dispatch, _Counter()

    async def raced(ref: LogicActionRef, *, firing_id: str, **more: Any) -> Receipt:
        receipt: Receipt = await dispatch(ref, firing_id=await counter.next(), **more)
        return receipt

    actions.dispatch = raced


class _Busy(httpx.AsyncHTTPTransport):
    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        body = await request.aread()
        for _ in range(2):
            answer = await super().handle_async_request(request)
            if answer.status_code != 503:
                break
            await answer.aclose()
            request = httpx.Request(request.method, request.url, headers=request.headers, content=body)
        return answer


def _transport_repeats_503(driver: ReferenceDriver) -> None:
    driver.made.host.transport = _Busy()


def _sleeps_in_node(driver: ReferenceDriver) -> None:
    class Broken(ReferenceHost):
        async def node(self, organization_id: str, flow_id: str, node_id: str) -> Node | None:
            time.sleep(0.15)  # noqa: ASYNC251  that is the fault
            return await super().node(organization_id, flow_id, node_id)

    alter_host(driver, Broken)


def _sleeps_in_logic_action(driver: ReferenceDriver) -> None:
    class Broken(ReferenceHost):
        async def logic_action(self, ref: LogicActionRef) -> LogicAction | None:
            time.sleep(0.15)  # noqa: ASYNC251  that is the fault
            return await super().logic_action(ref)

    alter_host(driver, Broken)


def _neighbours_made_anew(driver: ReferenceDriver) -> None:
    store = driver.made.host.store
    save = store.save_flow

    async def save_flow(flow: Flow, over: str | None = ANY_VERSION) -> bool:
        before = await store.flow(flow.id)
        grown = before is not None and len(before.items) not in {0, len(flow.items)}
        items = [{**item, "id": f"{item['id']}-anew"} if grown else item for item in flow.items]
        return await save(replace(flow, items=items), over)

    store.save_flow = save_flow  # type: ignore[method-assign]


class _Forgetful(LazyWalker):
    """Knows in memory whose run it is."""

    async def open(self, flow: dict[str, Any], user_id: str, content: str) -> dict[str, Any]:
        run = await super().open(flow, user_id, content)
        vars(self).setdefault("known", set()).add(run["id"])
        return run

    def _walk(self, run: dict[str, Any]) -> Any:
        walk = super()._walk(run)
        is_known = run["position"] < 1 or run["id"] in vars(self).get("known", ())
        return walk if is_known else replace(walk, user_id="", content="")


class _ForgetfulDriver(ShopDriver):
    claims = frozenset({"pacing", "durability"})
    edits: Literal["pinned", "live"] | None = "live"


@asynccontextmanager
async def forgetful(env: Env) -> AsyncIterator[ShopDriver]:
    """Makes the host whose runs forget their users at a restart."""
    host = ShopHost(env.settings, env.database_url)
    actions = FlowActions.load(host)
    yield _ForgetfulDriver(host, create_app(host, actions, _Forgetful(host, actions)), env)


MUTANTS = [
    mutant(
        "signature-left-out",
        "A token without a signature needs none.",
        changed(_signature_left_out),
        kills="AUTH-6",
        spares="AUTH-1 AUTH-2 AUTH-5",
        message="is answered when a person's credential comes with an empty last part, without its last part",
    ),
    mutant(
        "algorithm-of-the-token",
        "A token says itself whether it is signed.",
        changed(_algorithm_of_the_token),
        kills="AUTH-6",
        spares="AUTH-1 AUTH-2 AUTH-5",
        message="is answered when a person's credential comes as a JWT whose header says that it is not signed",
    ),
    mutant(
        "keys-are-patterns",
        "A key is looked up with LIKE.",
        changed(_patterns),
        kills="AUTH-2",
        spares="AUTH-1 AUTH-5 AUTH-6",
        message="is answered 200",
    ),
    mutant(
        "json-of-100-kib",
        "A parser of JSON bodies refuses large ones, which it has nothing to do with.",
        changed(_json_of_100_kib),
        kills="HTTP-3",
        spares="HTTP-1 HTTP-4",
        message="a body of two mebibytes, the largest that a route takes, did not reach the plugin: it was answered 413",
    ),
    mutant(
        "answers-lowered",
        "An adapter hands header values of answers on in lower case.",
        changed(_answers_lowered),
        kills="HTTP-5",
        spares="HTTP-1 HTTP-3 HTTP-8",
        message="the header x-kit of a 200 was changed",
    ),
    mutant(
        "content-cut-when-paced",
        "What the user wrote is cut in client-paced flows.",
        changed(_cut_when_paced),
        kills="PACING-2",
        spares="EAGER-3 PACING-1 PACING-10",
        message="content of the walk is not the run's",
    ),
    mutant(
        "configs-cleaned-when-paced",
        "A run keeps configs without what is null.",
        changed(_configs_cleaned_when_paced),
        kills="PACING-10",
        spares="EDIT-5 PACING-2",
        message="a deferred node ran with another config: config.nothing is missing",
    ),
    mutant(
        "lines-as-in-unix",
        "Line ends of what the user wrote are made alike.",
        changed(_lines_as_in_unix),
        kills="EAGER-3",
        spares="EAGER-1 EAGER-2",
        message="content of the walk is not the run's",
    ),
    mutant(
        "run-ids-raced",
        "Runs that are opened at the same time get the same number.",
        changed(_run_ids_raced),
        kills="EAGER-4",
        spares="EAGER-1 EAGER-8",
        message="two runs of a flow have the same run_id",
    ),
    mutant(
        "firing-ids-raced",
        "Triggers that fire at the same time get the same number.",
        changed(_firing_ids_raced),
        kills="LOGIC-7",
        spares="LOGIC-1 EAGER-4",
        message="two firings have the same event id, so receivers drop the second one",
    ),
    mutant(
        "transport-repeats-503",
        "The host's transport repeats requests to a receiver that is busy.",
        changed(_transport_repeats_503),
        kills="EAGER-10",
        spares="EAGER-2 EAGER-7",
        message="one attempt of a delivery, which was answered 503, arrived as several requests",
    ),
    mutant(
        "sleeps-in-node",
        "A node is looked up with a library that is not asynchronous.",
        changed(_sleeps_in_node),
        kills="TASK-5",
        spares="TASK-1 EAGER-6",
        message="Host.node keeps the event loop for 0.2 s at each call",
    ),
    mutant(
        "sleeps-in-logic-action",
        "An action is looked up with a library that is not asynchronous.",
        changed(_sleeps_in_logic_action),
        kills="TASK-5",
        spares="TASK-1 EAGER-6",
        message="Host.logic_action keeps the event loop for 0.2 s at each call",
    ),
    mutant(
        "neighbours-made-anew",
        "When a node is added to a flow, all its nodes are made anew.",
        changed(_neighbours_made_anew),
        kills="SAVING-5",
        spares="SAVING-2 EAGER-6",
        message="a flow that was saved with two more nodes has other node ids than before",
    ),
    mutant(
        "users-in-memory",
        "Whose run it is is kept in memory.",
        forgetful,
        kills="DURABILITY-1 DURABILITY-2",
        spares="PACING-2 EAGER-3",
        message="the walk of a run that continues after a restart has another user or content",
    ),
]
