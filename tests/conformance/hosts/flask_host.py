"""A flow engine in Flask, below ``/api``: its views run in threads, and its driver of the database is sync.

It has loops, branches and sub-flows, records what waits a step ahead of the user, and signs people in with cookies.
"""

from __future__ import annotations

import asyncio
import json
import secrets
import sqlite3
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, closing, contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Literal

import httpx
import msgspec
from a2wsgi import WSGIMiddleware
from flask import Flask, abort, request

from flowactions_conformance import Action, Env, HostDriver, Login, Turn, World
from flowactions_conformance import Flow as KitFlow
from flowactions_hookspecs import (
    Agent,
    ApiPrincipal,
    DashboardPrincipal,
    Deferred,
    Eager,
    FlowActions,
    Host,
    Node,
    NodeDraft,
    Operator,
    Request,
    Walk,
)

Data = dict[str, Any]
PREFIX = "/api"


class Store:
    """Documents in SQLite, by kind and id. Each call has a connection of its own."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.fails = self.next_run_fails = False
        with self.transaction() as connection:
            connection.execute("PRAGMA journal_mode = WAL")
            connection.execute("CREATE TABLE IF NOT EXISTS things (kind, id, data, PRIMARY KEY (kind, id))")

    @contextmanager
    def transaction(self) -> Iterator[sqlite3.Connection]:
        """Commit at the end of the block."""
        if self.fails:
            raise sqlite3.OperationalError("the database is away, as the kit has asked")
        with closing(sqlite3.connect(self._path, timeout=60)) as connection:
            yield connection
            connection.commit()

    def get(self, kind: str, id_: str | None) -> Data | None:
        """Find one document."""
        with self.transaction() as connection:
            found = connection.execute(
                "SELECT data FROM things WHERE kind = ? AND id = ?", (kind, id_)
            ).fetchone()
        return json.loads(found[0]) if found else None

    def all(self, kind: str) -> list[Data]:
        """Find all documents of a kind."""
        with self.transaction() as connection:
            rows = connection.execute("SELECT data FROM things WHERE kind = ?", (kind,)).fetchall()
        return [json.loads(row[0]) for row in rows]

    def put(self, kind: str, data: Data) -> None:
        """Write a document over the one that is there."""
        with self.transaction() as connection:
            connection.execute("REPLACE INTO things VALUES (?, ?, ?)", (kind, data["id"], json.dumps(data)))

    def start(self, run: Data) -> None:
        """Write a new run."""
        with self.transaction() as connection:
            connection.execute("INSERT INTO things VALUES ('run', ?, ?)", (run["id"], json.dumps(run)))
            if self.next_run_fails:
                self.next_run_fails = False
                raise sqlite3.OperationalError("the commit fails, as the kit has asked")

    def move(self, run: Data, moved: Data) -> Data:
        """Write a run, unless another request has moved it; return what is there then."""
        with self.transaction() as connection:
            new, old = json.dumps(moved), json.dumps(run)
            unmoved = "UPDATE things SET data = ? WHERE kind = 'run' AND id = ? AND data = ?"
            connection.execute(unmoved, (new, run["id"], old))
        return self.get("run", run["id"]) or run


class ShopHost(Host):
    """What the plugin asks of this host. Its queries run in threads, beside the event loop."""

    def __init__(self, settings: Mapping[str, str], store: Store) -> None:
        self.settings = settings
        self._store = store

    async def dashboard_principal(self, request: Request) -> DashboardPrincipal | None:
        """Return who is signed in to the dashboard."""
        return person(await self._get("dashboard", request.cookies.get("sid", "")))

    async def operator(self, request: Request) -> Operator | None:
        """Return who is signed in and is an operator."""
        who = await self._get("dashboard", request.cookies.get("sid", ""))
        if who is None or await self._get("operator", who["id"]) is None:
            return None
        return Operator(user_id=who["id"], user_name=who["id"], may_change=who["mayChange"])

    async def api_principal(self, request: Request) -> ApiPrincipal | None:
        """Return which customer's backend calls, and which agents it may address."""
        who = await self._get("api", request.headers.get("x-api-key", ""))
        if who is None:
            return None
        return ApiPrincipal(
            organization_id=who["organization"], agent_ids=frozenset(who["agents"]), all_agents=who["allAgents"]
        )

    async def agent(self, agent_id: str) -> Agent | None:
        """Return the agent, whoever's it is."""
        found = await self._get("agent", agent_id)
        return None if found is None else _agent(found)

    async def agents_using(self, organization_id: str, node_type: str) -> Sequence[Agent]:
        """Return the agents whose flows hold such a node."""
        flows = await asyncio.to_thread(self._store.all, "flow")
        used = {
            flow["agent"]
            for flow in flows
            if flow["organization"] == organization_id
            and any(item.get("type") == node_type for item in every(flow["items"]))
        }
        return [
            _agent(each) for each in await asyncio.to_thread(self._store.all, "agent") if each["id"] in used
        ]

    async def node(self, organization_id: str, flow_id: str, node_id: str) -> Node | None:
        """Return the node as it is now, in the flow or in one of its sub-flows."""
        return await asyncio.to_thread(self._node, organization_id, flow_id, node_id)

    def _node(self, organization_id: str, flow_id: str, node_id: str) -> Node | None:
        flow = self._store.get("flow", flow_id)
        if flow is None or flow["organization"] != organization_id:
            return None
        for item in every(flow["items"]):
            if item["kind"] == "action" and item["id"] == node_id:
                return _node(item)
            if item["kind"] == "subflow":
                found = self._node(organization_id, item["flow"], node_id)
                if found is not None:
                    return found
        return None

    async def _get(self, kind: str, id_: str) -> Data | None:
        return await asyncio.to_thread(self._store.get, kind, id_)


def create_app(store: Store, actions: FlowActions) -> Flask:  # noqa: C901, PLR0915  views are closures in Flask
    """Make the app, with the engine that walks its flows."""
    app = Flask(__name__)

    def author(id_: str | None = None, *, changes: bool = True) -> tuple[DashboardPrincipal, Data]:
        """Return who is signed in, and what of their organization has this id."""
        who = person(store.get("dashboard", request.cookies.get("sid")))
        if who is None:
            abort(401)
        found = store.get("flow", id_) if id_ else {"organization": who.organization_id}
        if found is None or found["organization"] != who.organization_id:
            abort(404)
        if changes and not who.may_change:
            abort(403)
        return who, found

    @app.get("/palette")
    def palette() -> list[Data]:
        author(changes=False)
        return [each.describe() for each in actions.node_types.values()]

    def reach(run: Data, place: Sequence[Any], pacing: Eager | Deferred) -> bool:
        item, visit, _ = place
        walk = msgspec.structs.replace(_walk(run), visit=visit, pacing=pacing)
        return actions.call(actions.reach(walk, _node(item))).halt

    def record(run: Data, begin: int) -> None:
        """Record the action nodes up to the next step: what comes behind it may not be known yet."""
        places = run["places"]
        end = _next(places, begin)
        for place in places[begin:end]:
            reach(run, place, Deferred(places[end][2] if end < len(places) else None))

    @app.post("/open")
    def open_flow() -> Data:
        told = request.get_json()
        flow = store.get("flow", told["flow"]) or abort(404)
        walk = Walk(
            organization_id=flow["organization"],
            agent_id=flow["agent"],
            flow_id=flow["id"],
            run_id=secrets.token_urlsafe(24),
            user_id=told["user"],
            content=told["content"],
        )
        seq = list(places(partial(store.get, "flow"), flow["items"]))
        paced = flow["pacing"] == "deferred"
        run = {
            "id": walk.run_id,
            "walk": msgspec.to_builtins(walk),
            "places": seq,
            "at": -1,
            "done": not paced,
        }
        if paced:
            # Recorded first: what waits in a run that is not kept then is never asked for.
            record(run, 0)
        store.start(run)
        for place in seq if not paced else ():
            if place[2] is None and reach(run, place, Eager()):
                break
        return _turn(run)

    @app.post("/next")
    def next_step() -> Data:
        told = request.get_json()
        run: Data = store.get("run", told["run"]) or abort(404)
        if run["done"] or told["at"] != _shown(run):
            return _turn(run)
        at = _next(run["places"], run["at"] + 1)
        step = run["places"][at][2] if at < len(run["places"]) else None
        advanced = actions.call(actions.advance(_walk(run), step))
        if advanced.state == "running":
            return _turn(run)
        done = step is None or advanced.state == "halted"
        if not done:
            record(run, at + 1)
        return _turn(store.move(run, {**run, "at": at, "done": done}))

    @app.post("/save")
    def save() -> list[Data]:
        told = request.get_json()
        _, flow = author(told["id"])
        store.put("flow", {**flow, "items": told["items"]})
        problems = []
        for item in every(told["items"]):
            if item["kind"] == "action":
                draft = NodeDraft(
                    organization_id=flow["organization"], agent_id=flow["agent"], node=_node(item)
                )
                found = actions.call(actions.check(draft))
                problems += [{"nodeId": item["id"], **msgspec.to_builtins(each)} for each in found]
        return problems

    @app.post("/preview")
    def preview() -> Data:
        told = request.get_json()
        who, flow = author(told["flow"], changes=False)
        ids = {"organization_id": flow["organization"], "agent_id": flow["agent"]}
        walk = Walk(**ids, flow_id=flow["id"], run_id="preview", user_id=who.user_id, content="Hello")
        draft = NodeDraft(**ids, node=_node(told["node"]))
        made: Data = msgspec.to_builtins(actions.call(actions.preview(draft, walk)))
        return made

    return app


def every(items: Sequence[Data]) -> Iterator[Data]:
    """Yield items with those of loops and branches."""
    for item in items:
        yield item
        for name in ("items", "taken", "other"):
            yield from every(item.get(name, ()))


def places(
    find: Callable[[str], Data | None], items: Sequence[Data], passage: str = ""
) -> Iterator[tuple[Data, str, str | None]]:
    """Yield what a run comes by: the item, its visit, and the step's id in this passage."""
    for item in items:
        if item["kind"] == "branch":
            yield from places(find, item["taken"], passage)
        elif item["kind"] == "loop":
            for number in range(1, item["times"] + 1):
                yield from places(find, item["items"], f"{passage}{item['id']}:{number}/")
        elif item["kind"] == "subflow":
            sub = find(item["flow"])
            yield from places(find, sub["items"] if sub else [], f"{passage}{item['id']}/")
        else:
            visit = passage.rstrip("/") or "1"
            yield item, visit, f"{passage}{item['id']}" if item["kind"] == "step" else None


def person(who: Data | None) -> DashboardPrincipal | None:
    """Make the principal of a login."""
    if who is None:
        return None
    return DashboardPrincipal(
        organization_id=who["organization"], user_id=who["id"], user_name=who["id"], may_change=who["mayChange"]
    )


def _agent(found: Data) -> Agent:
    return Agent(id=found["id"], name=found["name"], organization_id=found["organization"])


def _node(item: Data) -> Node:
    return Node(id=item["id"], type=item["type"], config=item["config"])


def _walk(run: Data) -> Walk:
    return msgspec.convert(run["walk"], Walk)


def _next(places: Sequence[Any], begin: int) -> int:
    """Return the index of the next step; with none, the end's."""
    return next((number for number in range(begin, len(places)) if places[number][2]), len(places))


def _shown(run: Data) -> str | None:
    return None if run["done"] or run["at"] < 0 else run["places"][run["at"]][2]


def _turn(run: Data) -> Data:
    return {"run": run["id"], "step": _shown(run), "done": run["done"]}


class ShopDriver(HostDriver):
    """Writes the kit's data into the store; all else goes over HTTP."""

    claims = frozenset({"pacing", "loops", "editing", "tenancy", "durability"})
    edits: Literal["pinned", "live"] | None = "pinned"
    prefix = PREFIX

    def __init__(self, store: Store, actions: FlowActions, env: Env) -> None:
        core: Any = create_app(store, actions)
        self.app = actions.wrap(WSGIMiddleware(core, workers=40))
        self._store = store
        self._origin = env.base_url
        self._client = httpx.AsyncClient(base_url=env.base_url, trust_env=False, timeout=300)

    async def seed(self, world: World) -> Mapping[str, str]:
        """The kit's ids are the host's."""
        told = msgspec.to_builtins(world)
        for kind in ("agent", "flow"):
            for thing in told[f"{kind}s"]:
                self._store.put(kind, thing)
        for who in told["logins"]:
            self._store.put(who["kind"], who)
        return {}

    def headers(self, who: Login) -> Mapping[str, str]:
        """Sign in: with a session's cookie, as a browser sends it, or a backend's key."""
        if who.kind == "api":
            return {"x-api-key": who.id}
        return {"cookie": f"theme=dark; sid={who.id}", "origin": self._origin}

    async def palette(self, who: Login) -> Sequence[Mapping[str, Any]]:
        """What the editor asks for."""
        answer = await self._client.get("/palette", headers=self.headers(who))
        described: list[Data] = answer.raise_for_status().json()
        return described

    async def open(self, flow: str, user: str, content: str) -> Turn:
        """What the end user's browser does first."""
        return _told(await self._client.post("/open", json={"flow": flow, "user": user, "content": content}))

    async def next(self, session: str, step: str | None = None) -> Turn:
        """What it does when the user presses Next."""
        return _told(await self._client.post("/next", json={"run": session, "at": step}))

    async def save(self, who: Login, flow: KitFlow) -> Sequence[Mapping[str, Any]]:
        """What the editor does."""
        problems: list[Data] = await self._post("/save", who, id=flow.id, items=msgspec.to_builtins(flow.items))
        return problems

    async def preview(self, who: Login, flow: str, node: Action) -> Mapping[str, Any]:
        """What the editor shows."""
        shown: Data = await self._post("/preview", who, flow=flow, node=msgspec.to_builtins(node))
        return shown

    async def fail_commit(self) -> None:
        """The next run is not kept."""
        self._store.next_run_fails = True

    async def fail_database(self, fails: bool) -> None:
        """No query is answered."""
        self._store.fails = fails

    async def _post(self, path: str, who: Login, **body: Any) -> Any:
        answer = await self._client.post(path, json=body, headers=self.headers(who))
        return answer.raise_for_status().json()


def _told(answer: httpx.Response) -> Turn:
    told = answer.raise_for_status().json()
    return Turn(session=told["run"], step_id=told["step"], done=told["done"], raw=answer.text)


@asynccontextmanager
async def make_host(env: Env) -> AsyncIterator[ShopDriver]:
    """Make the host."""
    store = Store(env.state_dir / "shop.db")
    yield ShopDriver(store, FlowActions.load(ShopHost(env.settings, store), prefix=PREFIX), env)
