"""A flow engine in Quart that keeps documents in SQLite with the standard library's module, in threads, and its driver.

It shares no database with the plugin: a run is written before its nodes are reached, and moved after they have run.
"""

from __future__ import annotations

import asyncio
import json
import secrets
import sqlite3
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, closing
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal, TypeVar

import httpx
import msgspec
from quart import Quart, abort, request

from flowactions_conformance import Action, Env, Flow, HostDriver, Login, TriggerRef, Turn, World
from flowactions_hookspecs import (
    Agent,
    ApiPrincipal,
    DashboardPrincipal,
    Deferred,
    FlowActions,
    Host,
    LogicAction,
    LogicActionRef,
    Node,
    NodeDraft,
    NodeTriggerRef,
    QuestionRequired,
    Request,
    ScopeRequest,
    Walk,
)
from tests.conformance.hosts.worlds import preview_body, trigger_of

Data = dict[str, Any]
Principal = TypeVar("Principal", DashboardPrincipal, ApiPrincipal)


class Documents:
    """Documents of several kinds in one table; each call is a transaction, in a thread and with a connection of its own."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self.fails: set[str] = set()
        """What fails as the kit has asked: ``put run`` once, ``read`` until it is taken out."""

    async def get(self, kind: str, key: str) -> Data | None:
        """One document."""
        rows = await self._run("SELECT data FROM document WHERE kind = ? AND key = ?", kind, key)
        data: Data | None = json.loads(rows[0][0]) if rows else None
        return data

    async def all(self, kind: str) -> list[Data]:
        """The documents of a kind."""
        return [
            json.loads(data) for (data,) in await self._run("SELECT data FROM document WHERE kind = ?", kind)
        ]

    async def put(self, kind: str, key: str, data: Data) -> None:
        """Writes a document, or another in its place."""
        is_kept = f"put {kind}" not in self.fails
        self.fails.discard(f"put {kind}")
        sql = "INSERT OR REPLACE INTO document VALUES (?, ?, ?)"
        await self._run(sql, kind, key, json.dumps(data), is_kept=is_kept)

    async def change(self, kind: str, key: str, old: Data, new: Data) -> bool:
        """Writes the new document if the old one is still there."""
        sql = "UPDATE document SET data = ? WHERE kind = ? AND key = ? AND data = ? RETURNING 1"
        return bool(await self._run(sql, json.dumps(new), kind, key, json.dumps(old)))

    async def make(self) -> None:
        """Makes the table."""
        await self._run("PRAGMA journal_mode = WAL")
        await self._run(
            "CREATE TABLE IF NOT EXISTS document (kind TEXT, key TEXT, data TEXT, PRIMARY KEY (kind, key))"
        )

    async def _run(self, sql: str, *values: str, is_kept: bool = True) -> list[Any]:
        if "read" in self.fails and sql.startswith("SELECT"):
            raise sqlite3.OperationalError("the database is away, as the kit has asked")

        def run() -> list[Any]:
            with closing(sqlite3.connect(self._file, timeout=60)) as connection, connection:
                rows = connection.execute(sql, values).fetchall()
                if not is_kept:
                    raise sqlite3.OperationalError("the commit fails, as the kit has asked")
                return rows

        return await asyncio.to_thread(run)


class QuartHost(Host):
    """What the plugin asks of this host."""

    def __init__(self, settings: Mapping[str, str], documents: Documents) -> None:
        self.settings = settings
        self.documents = documents

    async def dashboard_principal(self, request: Request) -> DashboardPrincipal | None:
        """A person, by the cookie that signs in."""
        return await self._principal("dashboard", request.cookies.get("person"), DashboardPrincipal)

    async def api_principal(self, request: Request) -> ApiPrincipal | None:
        """A customer's backend, by its key."""
        return await self._principal("api", request.headers.get("x-api-key"), ApiPrincipal)

    async def _principal(self, kind: str, token: str | None, of: type[Principal]) -> Principal | None:
        login = await self.documents.get(kind, token or "")
        return None if login is None else msgspec.convert(login, of)

    async def agent(self, agent_id: str) -> Agent | None:
        """The agent, whoever's it is."""
        found = await self.documents.get("agent", agent_id)
        return None if found is None else Agent(**found)

    async def agents_using(self, organization_id: str, node_type: str) -> Sequence[Agent]:
        """The agents whose flows hold such a node."""
        flows = await self.documents.all("flow")
        used = {flow["agent"] for flow in flows if any(item.get("type") == node_type for item in flow["items"])}
        agents = [Agent(**each) for each in await self.documents.all("agent") if each["id"] in used]
        return [agent for agent in agents if agent.organization_id == organization_id]

    async def node(self, organization_id: str, flow_id: str, node_id: str) -> Node | None:
        """The node as it is now."""
        flow = await self.documents.get("flow", flow_id)
        items = flow["items"] if flow is not None and flow["organization"] == organization_id else []
        return next((_node(each) for each in items if each["id"] == node_id and each["kind"] == "action"), None)

    async def logic_action(self, ref: LogicActionRef) -> LogicAction | None:
        """The action of the trigger that ``ref`` names."""
        found = await self.documents.get("experience", ref.experience_id)
        if found is None or (found["organization"], found["agent"]) != (ref.organization_id, ref.agent_id):
            return None
        wanted: tuple[str | None, str] = (None, getattr(ref, "trigger_row_id", ""))
        if isinstance(ref, NodeTriggerRef):
            wanted = (ref.node_id, ref.node_trigger_group_id)
        trigger = next((each for each in found["triggers"] if (each["node"], each["id"]) == wanted), None)
        question = getattr(ref, "question_id", None)
        if trigger is not None and trigger["question"] and question is None:
            raise QuestionRequired
        if trigger is None or trigger["question"] != question or ref.action_index >= len(trigger["actions"]):
            return None
        action = trigger["actions"][ref.action_index]
        headers = [{"key": key, "value": value} for key, value in action["headers"].items()]
        return msgspec.convert({**action, "headers": headers}, LogicAction)


class Engine:
    """Walks flows."""

    def __init__(self, host: QuartHost, actions: FlowActions) -> None:
        self._documents = host.documents
        self._actions = actions

    async def open(self, flow: Data, user: str, content: str) -> Data:
        """Opens a run: what is not kept is not walked."""
        items, paced = flow["items"], flow["pacing"] == "deferred"
        steps = [item["id"] for item in items if item["kind"] == "step"]
        of = {"organizationId": flow["organization"], "agentId": flow["agent"], "flowId": flow["id"]}
        walk = {**of, "runId": secrets.token_urlsafe(24), "userId": user, "content": content}
        at = 0 if items and items[0]["kind"] == "step" else -1
        run = {"id": walk["runId"], "walk": walk, "steps": steps, "at": at, "done": not paced}
        await self._documents.put("run", run["id"], run)
        for index, item in enumerate(items):
            if item["kind"] == "action":
                reached = _walk(run)
                if paced:
                    behind = next((each["id"] for each in items[index:] if each["kind"] == "step"), None)
                    reached = msgspec.structs.replace(reached, pacing=Deferred(behind))
                if (await self._actions.reach(reached, _node(item))).halt:
                    break
        return run

    async def next(self, run: Data, step: str | None) -> Data:
        """Goes on from the step that the client shows: its nodes first, then the run."""
        if run["done"] or step != _shown(run):
            return run
        to = run["at"] + 1
        behind = run["steps"][to] if to < len(run["steps"]) else None
        advanced = await self._actions.advance(_walk(run), behind)
        if advanced.state == "running":
            return run
        moved = {**run, "at": to, "done": behind is None or advanced.state == "halted"}
        if await self._documents.change("run", run["id"], run, moved):
            return moved
        return await self._documents.get("run", run["id"]) or run  # another request has moved it


def create_app(host: QuartHost, actions: FlowActions, engine: Engine) -> Quart:
    """Makes the app."""
    app = Quart(__name__)

    @app.before_serving
    async def begin() -> None:
        await host.documents.make()

    async def author() -> DashboardPrincipal:
        return await host.dashboard_principal(ScopeRequest(request.scope)) or abort(401)

    @app.get("/palette")
    async def palette() -> Any:
        await author()
        return [node_type.describe() for node_type in actions.node_types.values()]

    @app.put("/flows/<flow_id>")
    async def save(flow_id: str) -> Any:
        organization, flow = (await author()).organization_id, await request.get_json()
        for key, kind in ((flow_id, "flow"), (flow["agent"], "agent")):
            found = await host.documents.get(kind, key) or {}
            if organization not in {found.get("organization"), found.get("organization_id")}:
                abort(404)
        await host.documents.put("flow", flow_id, {**flow, "id": flow_id, "organization": organization})
        nodes = [_node(item) for item in flow["items"] if item["kind"] == "action"]
        drafts = [NodeDraft(organization_id=organization, agent_id=flow["agent"], node=node) for node in nodes]
        return [msgspec.to_builtins(problem) for draft in drafts for problem in await actions.check(draft)]

    @app.post("/flows/<flow_id>/runs")
    async def open_flow(flow_id: str) -> Any:
        flow = await host.documents.get("flow", flow_id)
        return _turn(await engine.open(flow or abort(404), **await request.get_json()))

    @app.post("/runs/<run_id>")
    async def next_step(run_id: str) -> Any:
        run = await host.documents.get("run", run_id)
        return _turn(await engine.next(run or abort(404), (await request.get_json())["step"]))

    typed_otherwise: Any = app
    typed_otherwise.asgi_app = actions.wrap(typed_otherwise.asgi_app)
    return app


def _node(item: Data) -> Node:
    return Node(id=item["id"], type=item["type"], config=item["config"])


def _walk(run: Data) -> Walk:
    return msgspec.convert(run["walk"], Walk)


def _shown(run: Data) -> str | None:
    return run["steps"][run["at"]] if not run["done"] and run["at"] >= 0 else None


def _turn(run: Data) -> Data:
    return {"run": run["id"], "step": _shown(run), "done": run["done"]}


class QuartDriver(HostDriver):
    """How the kit uses this host."""

    claims = frozenset({"durability", "editing", "logic", "pacing", "scale", "tenancy"})
    edits: Literal["pinned", "live"] | None = "pinned"

    def __init__(self, env: Env) -> None:
        self._documents = Documents(env.state_dir / "documents.db")
        self._host = QuartHost(env.settings, self._documents)
        self._actions = FlowActions.load(self._host)
        self.app = create_app(self._host, self._actions, Engine(self._host, self._actions))
        self._client = httpx.AsyncClient(base_url=env.base_url, trust_env=False, timeout=60)

    async def seed(self, world: World) -> Mapping[str, str]:
        """The kit's ids are the host's."""
        put = self._documents.put
        for agent in world.agents:
            row = {"id": agent.id, "name": agent.name, "organization_id": agent.organization}
            await put("agent", agent.id, row)
        for who in world.logins:
            person = {"userId": who.id, "userName": who.id, "mayChange": who.may_change}
            await put(
                who.kind,
                who.id,
                {
                    "organizationId": who.organization,
                    "agentIds": who.agents,
                    "allAgents": who.all_agents,
                    **person,
                },
            )
        for flow in world.flows:
            await put("flow", flow.id, msgspec.to_builtins(flow))
        for experience in world.experiences:
            await put("experience", experience.id, msgspec.to_builtins(experience))
        return {}

    def headers(self, who: Login) -> Mapping[str, str]:
        """A person's cookie, or a backend's key."""
        return {"x-api-key": who.id} if who.kind == "api" else {"cookie": f"person={who.id}"}

    async def palette(self, who: Login) -> Sequence[Mapping[str, Any]]:
        """What the editor asks for."""
        described: list[Data] = await self._ask("GET", "/palette", who)
        return described

    async def open(self, flow: str, user: str, content: str) -> Turn:
        """What the end user's client does first."""
        return await self._turn(f"/flows/{flow}/runs", {"user": user, "content": content})

    async def next(self, session: str, step: str | None = None) -> Turn:
        """What it does when the user goes on."""
        return await self._turn(f"/runs/{session}", {"step": step})

    async def save(self, who: Login, flow: Flow) -> Sequence[Mapping[str, Any]]:
        """What the editor sends."""
        problems: list[Data] = await self._ask("PUT", f"/flows/{flow.id}", who, msgspec.to_builtins(flow))
        return problems

    async def preview(self, who: Login, flow: str, node: Action) -> Mapping[str, Any]:
        """The plugin's own route, as the editor asks it."""
        agent = (await self._documents.get("flow", flow) or {})["agent"]
        body = preview_body(agent, flow, node)
        data: Data = (await self._ask("POST", "/integrations/nodes/preview", who, body))["data"]
        return data

    async def trigger(self, ref: TriggerRef) -> None:
        """Fires it as the host's own code does."""
        firing_id, now = secrets.token_hex(8), datetime.now(UTC)
        await self._actions.dispatch(trigger_of(ref), firing_id=firing_id, occurred_at=now)

    async def fail_commit(self) -> None:
        """The next run is not kept."""
        self._documents.fails.add("put run")

    async def fail_database(self, fails: bool) -> None:
        """Nothing can be read."""
        (self._documents.fails.add if fails else self._documents.fails.discard)("read")

    async def _ask(self, method: str, path: str, who: Login, body: Any = None) -> Any:
        answer = await self._client.request(method, path, json=body, headers=self.headers(who))
        return answer.raise_for_status().json()

    async def _turn(self, path: str, body: Data) -> Turn:
        answer = (await self._client.post(path, json=body)).raise_for_status()
        told = answer.json()
        return Turn(session=told["run"], step_id=told["step"], done=told["done"], raw=answer.text)


@asynccontextmanager
async def make_host(env: Env) -> AsyncIterator[QuartDriver]:
    """``python -m flowactions_conformance run tests.conformance.hosts.quart_host:make_host``."""
    yield QuartDriver(env)
