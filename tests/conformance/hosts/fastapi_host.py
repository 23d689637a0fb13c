"""A flow engine in FastAPI that has the plugin's nodes, and its driver for the conformance kit."""

from __future__ import annotations

import logging
import secrets
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Annotated, Any, Literal, TypeVar

import httpx
import msgspec
import sqlalchemy as sa
from fastapi import Body, FastAPI, HTTPException
from fastapi import Request as HttpRequest
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine

from flowactions_conformance import Env, HostDriver, Login, Turn, World, one_host_per_process
from flowactions_hookspecs import (
    Agent,
    ApiPrincipal,
    DashboardPrincipal,
    Deferred,
    FlowActions,
    Host,
    Node,
    Request,
    ScopeRequest,
    Walk,
)

Data = dict[str, Any]
Principal = TypeVar("Principal", DashboardPrincipal, ApiPrincipal)
log = logging.getLogger(__name__)
metadata = sa.MetaData()


def _table(name: str, texts: str, **others: Any) -> sa.Table:
    types = {"id": sa.String, **dict.fromkeys(texts.split(), sa.String), **others}
    columns = [sa.Column(column, kind, primary_key=column == "id") for column, kind in types.items()]
    return sa.Table(name, metadata, *columns)


agents = _table("agents", "name organization_id")
# Bearer tokens; `principal` is what the plugin is told of whoever has one.
tokens = _table("tokens", "kind", principal=sa.JSON)
# Items: {"kind": "step", "id", "text"} or {"kind": "action", "id", "type", "config"}.
flows = _table("flows", "organization_id agent_id pacing", items=sa.JSON)
# A run keeps the items as they were when it was opened. `position` is the step that is shown, -1 before the first one.
runs = _table("runs", "state", walk=sa.JSON, items=sa.JSON, position=sa.Integer)


class ShopHost(Host):
    """What the plugin asks of this host."""

    database: AsyncEngine

    def __init__(self, settings: Mapping[str, str], database_url: str) -> None:
        self.settings = settings
        self._url = database_url

    async def dashboard_principal(self, request: Request) -> DashboardPrincipal | None:
        """Who is signed in to the dashboard?"""
        return await self._principal("dashboard", request, DashboardPrincipal)

    async def api_principal(self, request: Request) -> ApiPrincipal | None:
        """Which customer's backend calls, and which agents may it address?"""
        return await self._principal("api", request, ApiPrincipal)

    async def agent(self, agent_id: str) -> Agent | None:
        """The agent, whoever's it is: the plugin compares its organization with the caller's."""
        row = await self._get(agents, id=agent_id)
        return Agent(**row) if row else None

    async def agents_using(self, organization_id: str, node_type: str) -> Sequence[Agent]:
        """The agents whose flows hold such a node, for the card of the chat connection."""
        own = await self._find(flows, organization_id=organization_id)
        used = {flow["agent_id"] for flow in own for item in flow["items"] if item.get("type") == node_type}
        rows = await self._find(agents, organization_id=organization_id)
        return [Agent(**row) for row in rows if row["id"] in used]

    async def node(self, organization_id: str, flow_id: str, node_id: str) -> Node | None:
        """The node as it is now, for secrets: they are not stored with a node that waits for its step."""
        flow = await self._get(flows, id=flow_id, organization_id=organization_id)
        items = flow["items"] if flow else []
        return next((_node(each) for each in items if each["id"] == node_id and each["kind"] == "action"), None)

    async def _principal(self, kind: str, request: Request, of: type[Principal]) -> Principal | None:
        scheme, _, token = request.headers.get("authorization", "").partition(" ")
        row = await self._get(tokens, id=token, kind=kind) if scheme.lower() == "bearer" else None
        return msgspec.convert(row["principal"], of) if row else None

    @asynccontextmanager
    async def _open(self) -> AsyncIterator[None]:
        # The plugins start after the app, and read `database` then: so the engine can be of the app's event loop.
        self.database = create_async_engine(self._url, pool_pre_ping=True)
        if self.database.dialect.name == "sqlite":
            sa.event.listen(self.database.sync_engine, "connect", _let_writers_wait)
        async with self.database.begin() as connection:
            await connection.run_sync(metadata.create_all)
        try:
            yield
        finally:
            await self.database.dispose()

    async def _find(self, table: sa.Table, **equal: Any) -> list[Data]:
        async with self.database.connect() as connection:
            found = await connection.execute(sa.select(table).filter_by(**equal))
            return [dict(row) for row in found.mappings()]

    async def _get(self, table: sa.Table, **equal: Any) -> Data | None:
        return next(iter(await self._find(table, **equal)), None)

    async def _put(self, table: sa.Table, **row: Any) -> None:
        async with self.database.begin() as connection:
            await connection.execute(sa.delete(table).where(table.c.id == row["id"]))
            await connection.execute(sa.insert(table).values(row))


class Walker:
    """The flow engine: `reach` at each action node, `advance` when the user goes on."""

    def __init__(self, host: ShopHost, actions: FlowActions) -> None:
        self.host = host
        self.actions = actions

    async def open(self, flow: Data, user_id: str, content: str) -> Data:
        """A run of its own: `run_id`, here its id, is never used twice."""
        items, walk = flow["items"], new_walk(flow, user_id, content)
        paced = flow["pacing"] == "deferred"
        run = {"id": walk.run_id, "walk": msgspec.to_builtins(walk), "items": items}
        run["state"] = "open" if paced else "done"
        run["position"] = 0 if items and items[0]["kind"] == "step" else -1
        if paced:
            # Recording is nothing but SQL, so the run and what waits in it are one transaction.
            async with self.host.database.begin() as transaction:
                await transaction.execute(sa.insert(runs).values(run))
                for index, item in enumerate(items):
                    if item["kind"] == "action":
                        # Recorded against the step that follows; None is the flow's end.
                        step = next((each["id"] for each in items[index:] if each["kind"] == "step"), None)
                        waiting = msgspec.structs.replace(walk, pacing=Deferred(step))
                        await self.actions.reach(waiting, _node(item), transaction)
            return run
        await self.host._put(runs, **run)
        for item in items:
            if item["kind"] == "action" and (await self.actions.reach(walk, _node(item))).halt:
                return await self._move(run, run["position"], "halted")
        return run

    async def next(self, run: Data, at: str | None) -> Data:
        """First advance, then move: after a crash in between, the user presses Next again, and nothing runs twice."""
        if run["state"] != "open" or at != _shown(run):
            return run  # a doubled click, or a step that the client made up
        position = run["position"] + 1
        step = dict(enumerate(_steps(run))).get(position)
        advanced = await self.actions.advance(_walk(run), step)
        if advanced.state == "running":
            return run  # another request runs the nodes, and one of them may halt: the client asks again
        state = "halted" if advanced.state == "halted" else "done" if step is None else "open"
        return await self._move(run, position, state)

    async def _move(self, run: Data, position: int, state: str) -> Data:
        moved = sa.update(runs).where(runs.c.id == run["id"])
        if state != "halted":  # a halt ends the run in any case; else the first of two requests moves it
            moved = moved.where(runs.c.position == run["position"], runs.c.state == "open")
        async with self.host.database.begin() as connection:
            await connection.execute(moved.values(position=position, state=state))
        return await self.host._get(runs, id=run["id"]) or run


def create_app(host: ShopHost, actions: FlowActions, walker: Walker) -> FastAPI:
    """Makes the app."""

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        async with host._open():
            yield

    api = FastAPI(lifespan=lifespan)
    # The plugins' routes beside the app's, their lifespan inside the app's.
    api.add_middleware(actions.wrap)

    @api.get("/palette")
    async def palette(request: HttpRequest) -> list[Data]:
        if await host.dashboard_principal(ScopeRequest(request.scope)) is None:
            raise HTTPException(401)
        return [node_type.describe() for node_type in actions.node_types.values()]

    @api.post("/flows/{flow_id}/open")
    async def open_flow(flow_id: str, user: Annotated[str, Body()], content: Annotated[str, Body()]) -> Data:
        flow = await host._get(flows, id=flow_id)
        if flow is None:
            raise HTTPException(404)
        return _turn(await walker.open(flow, user, content))

    @api.post("/runs/{run_id}/next")
    async def next_step(run_id: str, at: Annotated[str | None, Body(embed=True)]) -> Data:
        run = await host._get(runs, id=run_id)
        if run is None:
            raise HTTPException(404)
        return _turn(await walker.next(run, at))

    return api


def new_walk(flow: Data, user_id: str, content: str) -> Walk:
    """Make the walk of a new run."""
    return Walk(
        organization_id=flow["organization_id"],
        agent_id=flow["agent_id"],
        flow_id=flow["id"],
        run_id=secrets.token_urlsafe(24),
        user_id=user_id,
        content=content,
    )


def _walk(run: Data) -> Walk:
    return msgspec.convert(run["walk"], Walk)


def _node(item: Data) -> Node:
    return Node(id=item["id"], type=item["type"], config=item["config"])


def _steps(run: Data) -> list[str]:
    return [item["id"] for item in run["items"] if item["kind"] == "step"]


def _shown(run: Data) -> str | None:
    return dict(enumerate(_steps(run))).get(run["position"]) if run["state"] == "open" else None


def _turn(run: Data) -> Data:
    """Return what the end user's browser gets. It has no results of action nodes."""
    return {"run": run["id"], "step": _shown(run), "done": run["state"] != "open"}


def _let_writers_wait(connection: Any, _: object) -> None:
    for pragma in ("busy_timeout = 60000", "journal_mode = WAL"):
        connection.execute(f"PRAGMA {pragma}")


def _no_flows(_connection: Any, _cursor: Any, statement: str, *_: Any) -> None:
    if "FROM flows" in statement:
        raise ConnectionError("the database is away, as the kit has asked")


def _no_more(*listener: Any) -> None:
    if sa.event.contains(*listener):
        sa.event.remove(*listener)


class ShopDriver(HostDriver):
    """How the conformance kit uses this host: its data is written into the tables, all else goes over HTTP."""

    claims = frozenset({"pacing", "tenancy", "durability", "scale"})
    edits: Literal["pinned", "live"] | None = "pinned"

    def __init__(self, host: ShopHost, app: FastAPI, env: Env) -> None:
        self.app = app
        self._host = host
        self._client = httpx.AsyncClient(base_url=env.base_url, trust_env=False, timeout=300)

    async def seed(self, world: World) -> Mapping[str, str]:
        """The kit's ids are the host's, so there are none to return."""
        put = self._host._put
        for agent in world.agents:
            await put(agents, id=agent.id, name=agent.name, organization_id=agent.organization)
        for who in world.logins:
            person = {"userId": who.id, "userName": who.id, "mayChange": who.may_change}
            principal = {
                "organizationId": who.organization,
                "agentIds": who.agents,
                "allAgents": who.all_agents,
                **person,
            }
            await put(tokens, id=f"token-of-{who.id}", kind=who.kind, principal=principal)
        for flow in world.flows:
            row = {"organization_id": flow.organization, "agent_id": flow.agent, "pacing": flow.pacing}
            await put(flows, id=flow.id, items=msgspec.to_builtins(flow.items), **row)
        return {}

    def headers(self, who: Login) -> Mapping[str, str]:
        """Signs in."""
        return {"authorization": f"Bearer token-of-{who.id}"}

    async def palette(self, who: Login) -> Sequence[Mapping[str, Any]]:
        """What the editor asks for."""
        answer = await self._client.get("/palette", headers=self.headers(who))
        described: list[Data] = answer.raise_for_status().json()
        return described

    async def open(self, flow: str, user: str, content: str) -> Turn:
        """What the end user's browser does first."""
        return await self._turn(f"/flows/{flow}/open", {"user": user, "content": content})

    async def next(self, session: str, step: str | None = None) -> Turn:
        """What it does when the user presses Next."""
        return await self._turn(f"/runs/{session}/next", {"at": step})

    async def fail_commit(self) -> None:
        """The next transaction that writes a run is rolled back when it should be committed."""
        engine, to_fail = self._host.database.sync_engine, [True]

        @sa.event.listens_for(engine, "before_cursor_execute")
        def before(connection: Any, _cursor: Any, statement: str, *_: Any) -> None:
            if statement.startswith("INSERT INTO runs") and to_fail:
                connection.info["fails"] = to_fail.pop()

        @sa.event.listens_for(engine, "commit")
        def commit(connection: Any) -> None:
            if connection.info.pop("fails", False):
                raise RuntimeError("the commit fails, as the kit has asked")

    async def fail_database(self, fails: bool) -> None:
        """Flows, with the secrets of their nodes, cannot be read."""
        engine = self._host.database.sync_engine
        (sa.event.listen if fails else _no_more)(engine, "before_cursor_execute", _no_flows)

    async def _turn(self, path: str, body: Data) -> Turn:
        answer = await self._client.post(path, json=body)
        told = answer.raise_for_status().json()
        return Turn(session=told["run"], step_id=told["step"], done=told["done"], raw=answer.text)


@asynccontextmanager
async def make_host(env: Env) -> AsyncIterator[ShopDriver]:
    """``python -m flowactions_conformance run tests.conformance.hosts.fastapi_host:make_host``."""
    host = ShopHost(env.settings, env.database_url)
    actions = FlowActions.load(host)
    yield ShopDriver(host, create_app(host, actions, Walker(host, actions)), env)


make_host_of_its_own = one_host_per_process(partial(make_host))
"""The same, but each host is a process of its own."""
