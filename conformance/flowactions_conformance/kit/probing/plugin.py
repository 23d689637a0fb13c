"""The probe: a plugin that the host under test loads like any other, and that reports what reaches it.

For hosts that the kit starts, it writes a folder with an entry point that names a `Probe` and puts it on the path of the
process in which the host runs. In a host that is already served it is `flowactions_conformance.probe`.
"""

from __future__ import annotations

import asyncio
import base64
import hmac
import json
import os
import re
import secrets
import ssl
import traceback
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Annotated, Any, Final
from urllib.parse import quote, urlsplit

import httpx
import msgspec
from litestar import HttpMethod, Request, Response, Router, get, post, route
from litestar.connection import ASGIConnection
from litestar.exceptions import NotFoundException
from litestar.handlers import BaseRouteHandler
from litestar.params import Body
from litestar.types import Guard
from msgspec import Meta, Struct

from flowactions_conformance.kit.probing.host_calls import OPTIONAL, HostCalls
from flowactions_conformance.kit.tested import running_on
from flowactions_hookspecs import (
    BackgroundTask,
    ConfigProblem,
    FlowActions,
    FlowNodeOrigin,
    Host,
    InTransaction,
    LogicActionRef,
    Node,
    NodeDraft,
    NodeResult,
    NodeType,
    Origin,
    OutboundWebhook,
    PluginOrigin,
    Preview,
    ScopeRequest,
    Walk,
    config_schema,
    hookimpl,
    provides,
)

NODE: Final = "probe"
UNAVAILABLE: Final = "probe_unavailable"
UNAVAILABLE_REASON: Final = "The probe's second node type is never available."
PROBLEM: Final = "The probe says that this config is wrong."
HOST_SETTING: Final = "PROBE_HOST"
ROUTES: Final = "/integrations/probe"
TOKEN: Final = "flowactions-conformance-token"  # noqa: S105  a header's name
"""Carries the run's token: without it no route of the probe answers, and no report is taken."""
NAME: Final = "flowactions-probe"
"""Of the entry point in the folder."""
NO_TLS: Final = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
"""As `serving` has it, which needs a server that a served host may not have."""
ICON: Final = '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 8 8"><path d="M1 1h6v6H1z" fill="currentColor"/></svg>'
REPORT_SECONDS: Final = 60.0
STRUCTS: Final[Mapping[str, Any]] = {"logic_action": LogicActionRef, "signing_secret": Origin}
"""Arguments of the host's methods that are structs."""
TOLD_CHARACTERS: Final = 300
NOT_THE_HOSTS: Final = re.compile(r"[/\\\\](site-packages|asyncio|probing)[/\\\\]")
"""In the path of a file that is not the host's own."""
OF_REQUESTS: Final = frozenset({"dashboard_principal", "api_principal", "operator"})
ATTEMPTS: Final = 3
"""A connection is cut that `serve-env` has taken just before it hands over, and a new one waits for the run."""
COOKIE_SECONDS: Final = 3600
ASKED: Final = "x-kit-answer"
SHOWN_BYTES: Final = 100
"""Of a body that has arrived."""


class ProbeConfig(Struct, kw_only=True, rename="camel"):
    """What a probe node does when it is reached. Its schema has what re-serialising schemas loses."""

    text: Annotated[str, Meta(title="Text", description="Tëxt — “quoted” & <angled>", max_length=500)] = ""
    count: Annotated[int, Meta(ge=0, le=10)] = 0
    flag: bool = False
    rate: float = 0.0
    nothing: str | None = None
    items: list[str] = []
    probe_secret: str = ""


class Answering(Struct, kw_only=True):
    """What the probe's echo route answers, in place of the request, to one whose header `ASKED` asks for it."""

    status: int = 200
    body_base64: str = ""
    times: int = 1
    headers: list[tuple[str, str]] = []
    seconds: float = 0.0
    mark: str
    """Of the report of the request."""


class Enqueuing(Struct, kw_only=True):
    """What the probe's enqueue route enqueues: under the node's origin, if it names a flow and a node."""

    organization_id: str
    url: str
    entity: str
    agent_id: str | None = None
    key: str | None = None
    flow_id: str | None = None
    node_id: str | None = None


class Asking(Struct, kw_only=True):
    """What the probe's ask route asks the host."""

    method: str
    arguments: list[Any] = []
    path: str | None = None
    cancel: int | None = None
    """The turns of the event loop after which the call is cancelled."""


class Probe:
    """The plugin.

    Args:
        control_url: where it reports.
        token: of the run.
        name: of its entry point.
    """

    def __init__(self, control_url: str, token: str, name: str = NAME) -> None:
        self._control_url = control_url
        self._token = token
        self._name = name

    @hookimpl(tryfirst=True)
    def flowactions_node_types(self, host: Host, actions: FlowActions) -> Sequence[NodeType]:
        """Two node types, of which one is not available. First: other plugins keep the host's methods when they are asked."""
        state = actions.plugin_state(self._make)
        state.host_calls.watch(host)
        # Digests: a host may hand on its whole environment, of which the kit needs to know its own settings only.
        digests = {name: digest(str(value)) for name, value in host.settings.items()}
        state.report_now("loaded", settings=digests, on=running_on())
        schema = config_schema(ProbeConfig)
        return [
            NodeType(
                name=NODE,
                title="Probe",
                description="Reports to the conformance kit when it is reached.",
                reach=state.reach,
                category="Conformance",
                icon=ICON,
                config_schema=schema,
                ui_schema={
                    "ui:order": ["text", "count", "flag", "rate", "nothing", "items", "probeSecret", "*"],
                    "text": {"ui:options": {"templates": True, "rows": 0, "hint": None, "empty": []}},
                },
                pickers={"text": f"{ROUTES}/choices"},
                template_variables={"userId": "the end user's id"},
                secret_fields=("probeSecret",),
                check=state.check,
                preview=state.preview,
            ),
            NodeType(
                name=UNAVAILABLE,
                title="Unavailable probe",
                description="Is never available.",
                reach=state.reach,
                available=False,
                unavailable_reason=UNAVAILABLE_REASON,
            ),
        ]

    @hookimpl
    def flowactions_route_handlers(self, actions: FlowActions) -> Sequence[Any]:
        """Routes that show what a request looks like when it arrives."""
        return [_routes(actions.plugin_state(self._make))]

    @hookimpl
    def flowactions_background_tasks(self, actions: FlowActions) -> Sequence[BackgroundTask]:
        """Return a task that lives as long as the lifespan, and one that crashes when it is asked to."""
        state = actions.plugin_state(self._make)
        return [
            BackgroundTask(name="probe-heartbeat", run=state.live),
            BackgroundTask(name="probe-crash", run=state.crash_when_told),
        ]

    @hookimpl
    def flowactions_lifespan(self, actions: FlowActions) -> Callable[[], AbstractAsyncContextManager[object]]:
        """Report when it is opened and closed."""
        return actions.plugin_state(self._make).lifespan

    @hookimpl
    def flowactions_signing_secrets(self) -> Mapping[str, Any]:
        """Return no secret: the probe's own webhooks are unsigned."""

        async def unsigned(_: PluginOrigin) -> None:
            return None

        return {"probe": unsigned}

    def _make(self, host: Host, actions: FlowActions) -> _State:
        return _State(self._control_url, self._token, self._name, host, actions)


def digest(value: str) -> str:
    """Return the digest by which the values of a setting are compared."""
    return sha256(value.encode("utf-8", "surrogatepass")).hexdigest()


@cache
def _unique(pid: int) -> str:
    return f"{pid}-{secrets.token_hex(3)}"


def process_id() -> str:
    """Return this process's id, which no other one has, in other containers neither; after a fork it is another one."""
    return _unique(os.getpid())


class _State:
    """The probe in one host."""

    def __init__(self, control_url: str, token: str, name: str, host: Host, actions: FlowActions) -> None:
        self._control_url = control_url
        self.token = token
        self.name = name
        self._host = host
        self.actions = actions
        self.host_calls = HostCalls(self.report)
        self._told_to_crash: asyncio.Event | None = None
        self._crashed: set[str] = set()

    def _event(self, kind: str, data: Mapping[str, Any]) -> dict[str, Any]:
        name = self._host.settings.get(HOST_SETTING) if self._host.settings else None
        return {"kind": kind, "host": name, "pid": process_id(), **data}

    def report_now(self, kind: str, **data: Any) -> None:
        """Report from a hook, which is sync."""
        event = msgspec.json.encode(self._event(kind, data), enc_hook=repr)
        with httpx.Client(trust_env=False, verify=NO_TLS, timeout=REPORT_SECONDS) as client:
            for _ in range(ATTEMPTS):
                with suppress(httpx.TransportError):
                    client.post(self._control_url, content=event, headers={TOKEN: self.token})
                    return

    async def report(self, kind: str, **data: Any) -> None:
        """Report, and wait at the gate that the report names."""
        event = msgspec.json.encode(self._event(kind, data), enc_hook=repr)
        for _ in range(ATTEMPTS):
            # The kit may be gone, and then nobody wants to know.
            with suppress(OSError):
                async with asyncio.timeout(REPORT_SECONDS):
                    await self._post(event)
                return

    async def _post(self, event: bytes) -> None:
        """Post on a connection of its own. There are thousands of reports, and to make a client takes longer than to use it."""
        url = urlsplit(self._control_url)
        head = f"POST {url.path or '/'} HTTP/1.1\r\nhost: {url.netloc}\r\n{TOKEN}: {self.token}\r\n"
        reader, writer = await asyncio.open_connection(url.hostname, url.port)
        try:
            writer.write(f"{head}content-length: {len(event)}\r\nconnection: close\r\n\r\n".encode() + event)
            if not await reader.read():
                raise ConnectionResetError
        finally:
            writer.close()
            with suppress(OSError):
                await writer.wait_closed()

    async def reach(self, walk: Walk, node: Node) -> NodeResult | InTransaction:
        """Report walk and node, and do what the config says."""
        config = node.config
        facts = {"walk": msgspec.to_builtins(walk), "node": msgspec.to_builtins(node)}
        await self.report("reach", **facts, gate=config.get("gate"))
        if config.get("crash") == "once":
            crashes = walk.run_id not in self._crashed
            self._crashed.add(walk.run_id)
        else:
            crashes = bool(config.get("crash"))
        if crashes:
            raise RuntimeError("the kit has asked the probe to crash")
        result = NodeResult(
            node_id=node.id,
            status=config.get("status", "sent"),
            reason=config.get("reason"),
            message=config.get("message"),
            halt=config.get("halt") in (True, walk.content),
        )
        await self.report("reached", **facts)
        if config.get("write_fails"):
            return InTransaction(_failing_write)
        return result

    async def check(self, draft: NodeDraft) -> Sequence[ConfigProblem]:
        """Find a problem in a config that says ``problem``."""
        severity = draft.node.config.get("problem")
        if not severity:
            return ()
        await self.report("checked", node=msgspec.to_builtins(draft.node), agent=draft.agent_id)
        return (ConfigProblem(path=("text",), code=f"probe_{severity}", message=PROBLEM, severity=severity),)

    async def preview(self, draft: NodeDraft, walk: Walk) -> Preview:
        """Show the config as it is given, secrets masked by the facade."""
        config = draft.node.config
        await self.report(
            "previewed",
            walk=msgspec.to_builtins(walk),
            node=msgspec.to_builtins(draft.node),
            agent=draft.agent_id,
        )
        text = f"{config.get('text', '')} for {walk.user_id}, secret {config.get('probeSecret', '')}"
        return Preview(target="probe", text=text)

    @asynccontextmanager
    async def lifespan(self) -> AsyncIterator[None]:
        """Report the palette at its start, and its end."""
        self.host_calls.watch_records(self.actions)
        palette = [node_type.describe() for node_type in self.actions.node_types.values()]
        await self.report(
            "opened",
            palette=palette,
            plugins=list(self.actions.plugin_names),
            prefix=self.actions.prefix,
            provides=[name for name in OPTIONAL if provides(self._host, name)],
        )
        try:
            yield
        finally:
            await self.report("closed")

    async def live(self) -> None:
        """Lives until it is cancelled."""
        try:
            # Also a process that is stopped while it reports this says that its task has ended.
            await self.report("task_started")
            await asyncio.Event().wait()
        finally:
            await self.report("task_stopped")

    async def crash_when_told(self) -> None:
        """Raise once it is told to."""
        self._told_to_crash = asyncio.Event()
        await self.report("crash_task_started")
        await self._told_to_crash.wait()
        await self.report("task_crashed")
        raise RuntimeError("the kit has asked the probe's task to crash")

    async def ask(self, scope: Mapping[str, Any], asking: Asking) -> dict[str, Any]:
        """Call a method of the host; return its answer, or what it raised."""
        arguments = [
            msgspec.convert(each, STRUCTS[asking.method]) if isinstance(each, dict) else each
            for each in asking.arguments
        ]
        if asking.method in OF_REQUESTS:
            path = asking.path or scope["path"]
            arguments = [ScopeRequest({**scope, "path": path, "raw_path": quote(path).encode()})]
        call = asyncio.ensure_future(getattr(self._host, asking.method)(*arguments))
        for _ in range(asking.cancel or 0):
            await asyncio.sleep(0)
        if asking.cancel is not None:
            call.cancel()
        await asyncio.wait({call})
        if call.cancelled() or call.exception() is not None:
            error: Any = asyncio.CancelledError() if call.cancelled() else call.exception()
            return {"raised": type(error).__name__, "told": _told(error), "value": None}
        return {"raised": "", "value": msgspec.to_builtins(call.result(), enc_hook=repr)}

    def crash(self) -> bool:
        """Make the task crash, and return whether this process has one."""
        if self._told_to_crash is not None:
            self._told_to_crash.set()
        return self._told_to_crash is not None


def _told(error: BaseException) -> str:
    """Return an error as text, with the last place that is neither the kit's nor a library's."""
    frames = [
        each for each in traceback.extract_tb(error.__traceback__) if not NOT_THE_HOSTS.search(each.filename)
    ]
    at = f", at {frames[-1].filename}:{frames[-1].lineno} in {frames[-1].name}" if frames else ""
    return f"{type(error).__name__}: {error}"[:TOLD_CHARACTERS] + at


def _only_with(token: str) -> Guard:
    """Return what answers a request without the run's token as if nothing were there."""

    def guard(request: ASGIConnection[Any, Any, Any, Any], _: BaseRouteHandler) -> None:
        if not hmac.compare_digest(request.headers.get(TOKEN, "").encode("latin-1", "replace"), token.encode()):
            raise NotFoundException

    return guard


async def _failing_write(transaction: Any) -> NodeResult:
    await transaction.exec_driver_sql("SELECT the_kit_has_asked_the_probe_to_fail")
    raise AssertionError("the statement before has failed")


def _answer(asked: Answering) -> Response[bytes]:
    """Make an answer, byte for byte."""
    response = Response(
        base64.b64decode(asked.body_base64) * asked.times, status_code=asked.status, media_type=None
    )
    for name, value in asked.headers:
        if name.lower() != "set-cookie":
            response.headers[name] = value
            continue
        cookie, _, rest = value.partition("=")
        # The date has a comma: cookies that were merged into one header cannot be told apart again.
        response.set_cookie(
            cookie, rest, expires=COOKIE_SECONDS, path="/", httponly=True, secure=True, samesite="strict"
        )
    return response


def _routes(state: _State) -> Router:
    @route(
        ["/echo", "/echo/{rest:path}"],
        http_method=[HttpMethod.GET, HttpMethod.POST, HttpMethod.PUT, HttpMethod.PATCH, HttpMethod.DELETE],
        status_code=200,
    )
    async def echo(request: Request[Any, Any, Any]) -> dict[str, Any] | Response[bytes]:
        """Answers with the request as it arrived, or reports that and answers what the request asks for."""
        body = await request.body()
        arrived = {
            "method": request.method,
            "path": request.scope["path"],
            "query": request.scope["query_string"].decode("latin-1"),
            "headers": [
                [name.decode("latin-1"), value.decode("latin-1")]
                for name, value in request.scope["headers"]
                if name != TOKEN.encode()  # what is answered is shown in reports
            ],
            "body": base64.b64encode(body[:SHOWN_BYTES]).decode(),
            "pid": process_id(),
        }
        if (asked := request.headers.get(ASKED)) is None:
            return arrived
        answer = msgspec.json.decode(base64.b64decode(asked), type=Answering)
        whole = {"length": len(body), "digest": sha256(body).hexdigest()}
        await state.report("answered", mark=answer.mark, request={**arrived, **whole})
        await asyncio.sleep(answer.seconds)
        return _answer(answer)

    @post("/enqueue", status_code=200)
    async def enqueue(data: Annotated[Enqueuing, Body()]) -> dict[str, Any]:
        """Enqueues a webhook of the probe's own."""
        origin: Origin = PluginOrigin(
            organization_id=data.organization_id, plugin=state.name, name="probe", id=data.entity
        )
        if data.agent_id and data.flow_id and data.node_id:
            origin = FlowNodeOrigin(
                organization_id=data.organization_id,
                agent_id=data.agent_id,
                flow_id=data.flow_id,
                node_id=data.node_id,
            )
        receipt = await state.actions.enqueue(
            OutboundWebhook(
                organization_id=data.organization_id,
                agent_id=data.agent_id,
                event_type="probe.sent",
                entity=data.entity,
                url=data.url,
                body=json.dumps({"entity": data.entity}).encode(),
                origin=origin,
                idempotency_key=data.key,
            )
        )
        built: dict[str, Any] = msgspec.to_builtins(receipt)
        return built

    @post("/ask", status_code=200)
    async def ask(request: Request[Any, Any, Any], data: Annotated[Asking, Body()]) -> dict[str, Any]:
        """Asks a method of the host, as the plugin does."""
        return await state.ask(request.scope, data)

    @post("/crash", status_code=200)
    async def crash() -> dict[str, bool]:
        """Crashes a background task."""
        return {"ok": state.crash()}

    @get("/choices")
    async def choices() -> dict[str, Any]:
        """Answers as a picker does."""
        return {"data": [{"id": "1", "label": "One", "note": None}], "nextCursor": None, "notice": None}

    return Router(
        ROUTES,
        route_handlers=[echo, enqueue, ask, crash, choices],
        guards=[_only_with(state.token)],
        include_in_schema=False,
    )


def write_probe(folder: Path, control_url: str, token: str, name: str) -> None:
    """Write the probe's module and entry point into a folder, to be put on ``sys.path``.

    Args:
        folder: new and empty.
        control_url: where the probe reports.
        token: with which it reports and answers.
        name: of the module; unique, because a process may run several sessions one after the other.
    """
    module = f"from {Probe.__module__} import Probe\n\nplugin = Probe({control_url!r}, {token!r})\n"
    (folder / f"{name}.py").write_text(module, encoding="utf-8")
    info = folder / f"{name}-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1\n", encoding="utf-8")
    (info / "entry_points.txt").write_text(f"[flowactions]\n{NAME} = {name}:plugin\n", encoding="utf-8")
