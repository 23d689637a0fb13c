"""The engine as a host: what the plugin asks of it, and its own routes, in Starlette."""

from __future__ import annotations

import hmac
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import Any, NamedTuple
from uuid import uuid4

from starlette.applications import Starlette
from starlette.requests import Request as HttpRequest
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from flowactions_hookspecs import (
    Agent,
    ApiPrincipal,
    DashboardPrincipal,
    ExperienceTriggerRef,
    FlowActions,
    Header,
    Host,
    LogicAction,
    LogicActionRef,
    Node,
    QuestionRequired,
    Request,
    ScopeRequest,
)
from tests.conformance.hosts.engine.store import Found, Store
from tests.conformance.hosts.engine.walks import Engine

PREFIX = "/api"
CSRF = "csrf"


class EngineHost(Host):
    """What the plugin asks. Numbers are unique within a tenant; ids that come without one have it in front."""

    def __init__(self, settings: Mapping[str, str], store: Store) -> None:
        self.settings = settings
        self.store = store

    async def dashboard_principal(self, request: Request) -> DashboardPrincipal | None:
        """Reads the session's cookie."""
        person = await self._login("dashboard", request.cookies.get("sid", ""))
        if person is None:
            return None
        return DashboardPrincipal(
            organization_id=str(person.tenant),
            user_id=str(person.id),
            user_name=person.name,
            may_change=person.data["may_change"],
        )

    async def api_principal(self, request: Request) -> ApiPrincipal | None:
        """Reads the backend's key."""
        backend = await self._login("api", request.headers.get("x-api-key", ""))
        if backend is None:
            return None
        agents = backend.data["agents"]
        return ApiPrincipal(
            organization_id=str(backend.tenant), agent_ids=frozenset(agents or ()), all_agents=agents is None
        )

    async def agent(self, agent_id: str) -> Agent | None:
        """Finds an agent."""
        tenant, number = split(agent_id)
        found = await self.store.one("agent", tenant=tenant, id=number)
        return found and Agent(id=agent_id, name=found.data["name"], organization_id=str(tenant))

    async def agents_using(self, organization_id: str, node_type: str) -> Sequence[Agent]:
        """Finds the agents in whose flows a node type is."""
        flows = await self.store.find("flow", tenant=number_of(organization_id))
        ids = {
            flow.data["agent"]
            for flow in flows
            if any(item.get("type") == node_type for item in every_item(flow.data["items"]))
        }
        return [agent for each in sorted(ids) if (agent := await self.agent(each))]

    async def logic_action(self, ref: LogicActionRef) -> LogicAction | None:
        """Finds the action of a trigger."""
        tenant, number = number_of(ref.organization_id), number_of(ref.experience_id)
        experience = await self.store.one("experience", tenant=tenant, id=number)
        if experience is None or experience.data["agent"] != ref.agent_id:
            return None
        if isinstance(ref, ExperienceTriggerRef):
            place, question = [None, ref.trigger_row_id], None
        else:
            place, question = [ref.node_id, ref.node_trigger_group_id], ref.question_id
        for trigger in experience.data["triggers"]:
            if [trigger["node"], trigger["id"]] != place:
                continue
            if trigger["question"] is not None and question is None:
                raise QuestionRequired
            if trigger["question"] == question and ref.action_index < len(trigger["actions"]):
                action = trigger["actions"][ref.action_index]
                headers = [Header(key=key, value=value) for key, value in action["headers"].items()]
                return LogicAction(url=action["url"], secret=action["secret"], headers=headers)
        return None

    async def node(self, organization_id: str, flow_id: str, node_id: str) -> Node | None:
        """Finds a node in a flow or one of its sub-flows."""
        tenant, number = split(flow_id)
        pending, seen = [number], set()
        while pending and str(tenant) == organization_id:
            flow = await self.store.one("flow", tenant=tenant, id=pending.pop())
            for item in every_item(flow.data["items"] if flow else []):
                if item["kind"] == "action" and str(item["id"]) == node_id:
                    return Node(id=node_id, type=item["type"], config=item["config"])
                if item["kind"] == "subflow" and item["flow"] not in seen:
                    seen.add(item["flow"])
                    pending.append(item["flow"])
        return None

    async def _login(self, kind: str, key: str) -> Found | None:
        # PostgreSQL's text holds no NUL, and no login has one.
        found = await self.store.one("login", name=key) if key.isprintable() else None
        return found if found is not None and found.data["kind"] == kind else None


def every_item(items: Sequence[Mapping[str, Any]]) -> Iterator[Any]:
    """Yields the items of a flow, as JSON, with those of its loops and branches."""
    for item in items:
        yield item
        for name in ("items", "taken", "other"):
            yield from every_item(item.get(name, ()))


class EngineApp(NamedTuple):
    """The app, and what it is made of."""

    app: Any
    host: EngineHost
    engine: Engine


def create_app(settings: Mapping[str, str], database_url: str) -> EngineApp:
    """Makes the host."""
    store = Store(database_url)
    host = EngineHost(settings, store)
    actions = FlowActions.load(host, prefix=PREFIX)
    engine = Engine(store, actions)

    @asynccontextmanager
    async def lifespan(_: object) -> AsyncIterator[None]:
        async with store.open():
            yield

    async def palette(request: HttpRequest) -> Response:
        if await host.dashboard_principal(ScopeRequest(request.scope)) is None:
            return JSONResponse({"error": "sign in"}, 403)
        return JSONResponse([node_type.describe() for node_type in actions.node_types.values()])

    async def fire(request: HttpRequest) -> Response:
        person = await host.dashboard_principal(ScopeRequest(request.scope))
        # The page's script sends the cookie's value in a header, which no page of another site can read.
        sent = request.headers.get("x-csrf", "")
        if person is None or not hmac.compare_digest(sent, request.cookies.get(CSRF, "none")):
            return JSONResponse({"error": "sign in"}, 403)
        where = request.path_params
        tenant = number_of(person.organization_id)
        experience = await store.one("experience", tenant=tenant, id=number_of(where["experience"]))
        if experience is None:
            return JSONResponse({"error": "no such experience"}, 404)
        ref = ExperienceTriggerRef(
            organization_id=person.organization_id,
            agent_id=experience.data["agent"],
            experience_id=str(experience.id),
            trigger_row_id=where["trigger"],
            action_index=where["index"],
        )
        receipt = await actions.dispatch(ref, firing_id=uuid4().hex, occurred_at=datetime.now(UTC))
        return JSONResponse({"status": receipt.status})

    async def open_flow(request: HttpRequest) -> Response:
        tenant, number = split(request.path_params["flow"])
        flow = await store.one("flow", tenant=tenant, id=number)
        sent = await request.json()
        if flow is None:
            return JSONResponse({"error": "no such flow"}, 404)
        return JSONResponse(await engine.open(flow, sent["user"], sent["content"]))

    async def next_step(request: HttpRequest) -> Response:
        turn = await engine.next(request.path_params["session"])
        return JSONResponse(turn or {"error": "no such session"}, 200 if turn else 404)

    routes = [
        Route("/dashboard/palette", palette),
        Route("/dashboard/experiences/{experience}/{trigger}/{index:int}", fire, methods=["POST"]),
        Route("/play/{flow}", open_flow, methods=["POST"]),
        Route("/play/{session}/next", next_step, methods=["POST"]),
    ]
    return EngineApp(actions.wrap(Starlette(routes=routes, lifespan=lifespan)), host, engine)


def number_of(text: str) -> int:
    """Reads a number; what is none is -1, which nothing has."""
    return int(text) if text.isascii() and text.isdigit() and len(text) < 16 else -1


def split(text: str) -> tuple[int, int]:
    """Reads tenant and number."""
    tenant, _, number = text.partition(".")
    return number_of(tenant), number_of(number)
