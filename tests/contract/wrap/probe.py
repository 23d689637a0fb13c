"""A host that reads what its own middleware left in the scope, and a plugin that tells what it was given."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path as FilePath
from typing import Any, TypeAlias

from litestar import Request, Router, delete, get, head, post, route
from litestar.params import FromPath

from flowactions_hookspecs import DashboardPrincipal, FlowActions, hookimpl
from tests.support import SmallHost, development

Wrap: TypeAlias = Callable[[Any], Any]


class SessionHost(SmallHost):
    """Knows people by the session that its framework's middleware puts into the scope, or by its user."""

    def __init__(self, settings: dict[str, str]) -> None:
        super().__init__(settings)
        self.scopes: list[Any] = []

    async def dashboard_principal(self, connection: Any) -> DashboardPrincipal | None:
        self.scopes.append(connection.scope)
        name = connection.scope.get("session", {}).get("name") or connection.headers.get("x-user")
        if not name:
            return None
        return DashboardPrincipal(organization_id="acme", user_id=name, user_name=name, may_change=True)


class Probe:
    """Its routes answer with what they saw; its lifespan notes when it starts and stops."""

    def __init__(self, events: list[str] | None = None, *, fails: str = "") -> None:
        self.events = events if events is not None else []
        self.fails = fails
        self.scopes: list[Any] = []

    @hookimpl
    def flowactions_lifespan(self) -> Any:
        return lambda: _Lifespan(self)

    @hookimpl
    def flowactions_route_handlers(self) -> list[Router]:
        @get("/seen/{number:int}")
        async def seen(request: Request[Any, Any, Any], number: FromPath[int]) -> dict[str, Any]:
            self.scopes.append(request.scope)
            return {"number": number, "url": str(request.url), "path": request.scope["path"]}

        @post("/echo")
        async def echo(request: Request[Any, Any, Any]) -> dict[str, Any]:
            return {"length": len(await request.body())}

        @get("/broken")
        async def broken() -> None:
            raise RuntimeError("the plugin's route is broken")

        @get("/files/{rest:path}")
        async def files(rest: FromPath[FilePath]) -> str:
            return str(rest)

        @head("/both")
        async def head_of_both() -> None:
            return None

        @get("/both")
        async def get_of_both() -> str:
            return "both"

        @delete("/removed/{name:str}", status_code=204)
        async def removed(name: FromPath[str]) -> None:
            return None

        @route("/options", http_method=["OPTIONS"], status_code=200)
        async def own_options() -> str:
            return "the plugin's own"

        handlers = [seen, echo, broken, files, head_of_both, get_of_both, removed, own_options]
        return [Router("/integrations/probe", route_handlers=handlers)]


class _Lifespan:
    def __init__(self, probe: Probe) -> None:
        self._probe = probe

    async def __aenter__(self) -> None:
        if self._probe.fails == "start":
            raise ValueError("the probe cannot start")
        self._probe.events.append("plugin started")

    async def __aexit__(self, *_exc: object) -> None:
        self._probe.events.append("plugin stopped")
        if self._probe.fails == "stop":
            raise ValueError("the probe cannot stop")


def loaded(directory: FilePath, probe: Probe | None = None, **settings: str) -> FlowActions:
    """Load every plugin, and the probe, for a `SessionHost` with a database in a directory."""
    host = SessionHost(development(f"sqlite:///{directory / 'flowactions.db'}", **settings))
    return FlowActions.load(host, plugins=[probe or Probe()])


@asynccontextmanager
async def noted(events: list[str], fails: str = "") -> AsyncIterator[None]:
    """A host's own lifespan."""
    if fails == "start":
        raise ValueError("the host cannot start")
    events.append("host started")
    yield
    events.append("host stopped")
    if fails == "stop":
        raise ValueError("the host cannot stop")
