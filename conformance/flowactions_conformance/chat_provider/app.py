"""The fake provider's ASGI app: Web API, consent page, and a page that shows what was posted."""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict, deque
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl

import msgspec
from litestar import HttpMethod, Litestar, Request, Response, get, post, route
from litestar.exceptions import NotFoundException
from litestar.params import FromPath
from litestar.response import File, Stream
from litestar.static_files import create_static_files_router

from flowactions_conformance.chat_provider import oauth
from flowactions_conformance.chat_provider.events import send_event
from flowactions_conformance.chat_provider.faults import RATE_LIMITED, Fault, fault_of, refusal
from flowactions_conformance.chat_provider.methods import METHODS, Method, missing_scope
from flowactions_conformance.chat_provider.state import (
    Message,
    State,
    Token,
    Workspace,
    sample_workspace,
)

PAGES = Path(__file__).parent / "pages"
JSON_TYPE = "application/json;charset=utf-8"
SIGNING_SECRET = "fake-signing-secret"  # noqa: S105  guards nothing


def settings_of(url: str) -> dict[str, str]:
    """Return the settings of a host that uses the provider at this URL."""
    return {
        "CHAT_CLIENT_ID": oauth.CLIENT_ID,
        "CHAT_CLIENT_SECRET": oauth.CLIENT_SECRET,
        "CHAT_SIGNING_SECRET": SIGNING_SECRET,
        "CHAT_API_URL": f"{url}/api/",
        "CHAT_AUTHORIZE_URL": f"{url}/oauth/v2/authorize",
    }


class FakeChatProvider:
    """A chat provider with its workspaces.

    Args:
        workspaces: a small sample workspace by default.
        events_url: the URL that receives lifecycle events; ``None``: none are sent.
        clock: Unix seconds.

    Attributes:
        app: the ASGI app.
        state: workspaces, tokens and messages.
        faults: method name → the answers to its next calls.
        calls: the name of each method that was called, in order.
    """

    def __init__(
        self,
        workspaces: Sequence[Workspace] | None = None,
        *,
        events_url: str | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.state = State(workspaces or [sample_workspace()], clock)
        self.events_url = events_url
        self.faults: defaultdict[str, deque[Fault]] = defaultdict(deque)
        self.calls: list[str] = []
        self.app = self._app()

    @property
    def messages(self) -> Sequence[Message]:
        """The posted messages, oldest first."""
        return self.state.messages

    async def uninstall(self, workspace: Workspace) -> None:
        """Remove the app from a workspace: its tokens are revoked, and the events are sent."""
        for token in self.state.tokens_of(workspace):
            token.dead = "account_inactive"
        await self._send(workspace, {"type": "app_uninstalled"})
        await self._send(
            workspace, {"type": "tokens_revoked", "tokens": {"oauth": [], "bot": [workspace.bot_user_id]}}
        )

    async def revoke(self, token: Token) -> None:
        """Revoke one token, and send the event."""
        token.dead = "token_revoked"
        bots = [token.workspace.bot_user_id]
        await self._send(token.workspace, {"type": "tokens_revoked", "tokens": {"oauth": [], "bot": bots}})

    async def _send(self, workspace: Workspace, event: dict[str, Any]) -> None:
        if self.events_url is not None:
            await send_event(self.events_url, SIGNING_SECRET, self.state.now(), workspace.id, event)

    async def _call(self, request: Request[Any, Any, Any], method_name: str) -> Any:
        """Answer one call of the Web API."""
        self.calls.append(method_name)
        authorization = request.headers.get("authorization", "")
        value = authorization.removeprefix("Bearer ").strip() if authorization.startswith("Bearer ") else ""
        queued = self.faults[method_name]
        fault = queued.popleft() if queued else fault_of(value)
        if fault is not None and fault.gate is not None:
            await fault.gate.passed()
        if fault is not None and fault.passes:
            await asyncio.sleep(fault.delay)
        elif fault is not None:
            return await _faulty(fault)
        is_json = request.headers.get("content-type", "").startswith("application/json")
        if method_name == "oauth.v2.access":
            if is_json:
                return _json(refusal("invalid_arguments"))
            return _json(oauth.exchange(self.state, authorization, await _form(request)))
        token = self.state.token(value)
        method = METHODS.get(method_name)
        if method is None or token is None or token.dead is not None:
            return _json(_not_allowed(method, value, token))
        if method.scope is not None and method.scope not in token.scopes:
            body = missing_scope(method.scope, token)
        elif is_json and not method.takes_json:
            body = refusal("invalid_arguments")
        else:
            arguments = await (_json_body(request) if is_json else _form(request))
            if wait := self._seconds_to_wait(method_name, method, token, arguments):
                return await _faulty(
                    RATE_LIMITED._replace(headers=(("retry-after", str(wait)), RATE_LIMITED.headers[1]))
                )
            body = method.run(self.state, token, arguments)
        return _json(body, {"x-oauth-scopes": ",".join(token.scopes)})

    def _seconds_to_wait(self, name: str, method: Method, token: Token, arguments: Mapping[str, Any]) -> int:
        workspace = token.workspace
        if not workspace.limited:
            return 0
        if name == "chat.postMessage":
            return self.state.seconds_to_post(workspace, str(arguments.get("channel")))
        return 0 if method.limit is None else self.state.seconds_to_wait(workspace, name, *method.limit)

    def _app(self) -> Litestar:
        @route("/api/{method_name:str}", http_method=[HttpMethod.GET, HttpMethod.POST])
        async def call(request: Request[Any, Any, Any], method_name: FromPath[str]) -> Any:
            return await self._call(request, method_name)

        @get("/oauth/v2/authorize")
        async def consent(request: Request[Any, Any, Any]) -> Response[Any]:
            return oauth.consent(self.state, dict(request.query_params.items()))

        @post("/oauth/v2/authorize")
        async def decide(request: Request[Any, Any, Any]) -> Response[Any]:
            return oauth.decide(self.state, await _form(request))

        @get("/inspect/messages")
        async def inspect() -> dict[str, list[Message]]:
            return {"data": self.state.messages}

        @get("/inspect/workspaces")
        async def workspaces() -> dict[str, list[dict[str, Any]]]:
            return {
                "data": [
                    {"id": each.id, "name": each.name, "installed": self.state.is_installed(each)}
                    for each in self.state.workspaces
                ]
            }

        @post("/inspect/workspaces/{workspace_id:str}/uninstall", status_code=200)
        async def uninstall(workspace_id: FromPath[str]) -> dict[str, bool]:
            found = next((each for each in self.state.workspaces if each.id == workspace_id), None)
            if found is None:
                raise NotFoundException("No workspace has this id.")
            await self.uninstall(found)
            return {"ok": True}

        @get("/")
        async def page() -> File:
            return File(PAGES / "chat.html", content_disposition_type="inline", media_type="text/html")

        static = create_static_files_router("/static", [PAGES], include_in_schema=False)
        return Litestar(
            [call, consent, decide, inspect, workspaces, uninstall, page, static],
            openapi_config=None,
            logging_config=None,
        )


def _json(body: dict[str, Any], headers: dict[str, str] | None = None) -> Response[bytes]:
    return Response(
        msgspec.json.encode(body), status_code=200, headers={"content-type": JSON_TYPE, **(headers or {})}
    )


async def _faulty(fault: Fault) -> Any:
    await asyncio.sleep(fault.delay)
    if fault.status == 0:
        return Stream(_nothing, status_code=503, headers={"content-length": "1"})
    return Response(fault.body, status_code=fault.status, headers=dict(fault.headers))


async def _nothing() -> AsyncIterator[bytes]:
    """End a body before its announced length, so that the server closes the connection."""
    return
    yield b""


def _not_allowed(method: Method | None, value: str, token: Token | None) -> dict[str, Any]:
    if method is None:
        return refusal("unknown_method")
    if not value:
        return refusal("not_authed")
    return refusal(token.dead if token is not None and token.dead else "invalid_auth")


async def _json_body(request: Request[Any, Any, Any]) -> Mapping[str, Any]:
    try:
        body = msgspec.json.decode(await request.body())
    except msgspec.DecodeError:
        return {}
    return body if isinstance(body, dict) else {}


async def _form(request: Request[Any, Any, Any]) -> dict[str, str]:
    """Return form fields and query parameters; as at the provider, the body takes precedence."""
    fields = dict(request.query_params.items())
    return fields | dict(parse_qsl((await request.body()).decode("utf-8", "replace"), keep_blank_values=True))
