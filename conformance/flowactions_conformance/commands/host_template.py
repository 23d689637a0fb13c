"""The conformance kit's view of my host: how to make it, and how to use it as its users do.

Prove the host: python -m flowactions_conformance run MODULE:make_host

As it is written, this proves `ExampleHost` and `Engine` below, a whole host that keeps everything in memory. Put yours in their
place, one method of the driver after the other, and run the command in between. What the driver's methods are given and return:
python -m pydoc flowactions_conformance.HostDriver.
"""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, Literal

import msgspec

from flowactions_conformance import Action, Env, Flow, HostDriver, Login, Step, Turn, World
from flowactions_hookspecs import (
    Agent,
    ApiPrincipal,
    DashboardPrincipal,
    Deferred,
    FlowActions,
    Host,
    Node,
    Request,
    Walk,
)

# The host: yours takes the place of all between here and the driver.


class Data:
    """What a real host has in its tables."""

    def __init__(self) -> None:
        self.logins: dict[str, Login] = {}
        self.agents: dict[str, Agent] = {}
        self.flows: dict[str, Flow] = {}


class ExampleHost(Host):
    """Answers what plugins ask of it."""

    def __init__(self, settings: Mapping[str, str], data: Data) -> None:
        self.settings = settings
        self._data = data

    async def dashboard_principal(self, request: Request) -> DashboardPrincipal | None:
        """Return who is signed in to the dashboard."""
        who = self._signed_in(request, "dashboard")
        if who is None:
            return None
        return DashboardPrincipal(
            organization_id=who.organization, user_id=who.id, user_name=who.id, may_change=who.may_change
        )

    async def api_principal(self, request: Request) -> ApiPrincipal | None:
        """Return which customer's backend calls, and which agents it may address."""
        who = self._signed_in(request, "api")
        if who is None:
            return None
        return ApiPrincipal(
            organization_id=who.organization, agent_ids=frozenset(who.agents), all_agents=who.all_agents
        )

    async def agent(self, agent_id: str) -> Agent | None:
        """Return the agent, whoever's it is: the plugin compares its organization with the caller's."""
        return self._data.agents.get(agent_id)

    async def node(self, organization_id: str, flow_id: str, node_id: str) -> Node | None:
        """Return the node as it is now: its secret signs, and is stored with no delivery."""
        flow = self._data.flows.get(flow_id)
        if flow is None or flow.organization != organization_id:
            return None
        return next(
            (_node(item) for item in flow.items if isinstance(item, Action) and item.id == node_id), None
        )

    def _signed_in(self, request: Request, kind: str) -> Login | None:
        who = self._data.logins.get(request.headers.get("authorization", ""))
        return who if who is not None and who.kind == kind else None


def new_walk(flow: Flow, user: str, content: str) -> Walk:
    """Make the walk of a new run of a flow."""
    return Walk(
        organization_id=flow.organization,
        agent_id=flow.agent,
        flow_id=flow.id,
        run_id=secrets.token_urlsafe(),
        user_id=user,
        content=content,
    )


class Engine:
    """Walks flows: `reach` at each action node, `advance` when the user goes on."""

    def __init__(self, actions: FlowActions) -> None:
        self._actions = actions
        self._runs: dict[str, Run] = {}

    async def open(self, flow: Flow, user: str, content: str) -> Run:
        """Open a flow: walk it to its end, or record its action nodes against the steps that follow them."""
        walk = new_walk(flow, user, content)
        run = self._runs[walk.run_id] = Run(walk, [item.id for item in flow.items if isinstance(item, Step)])
        run.done = flow.pacing == "eager"
        for index, item in enumerate(flow.items):
            if isinstance(item, Action):
                if flow.pacing == "deferred":
                    behind = (each.id for each in flow.items[index:] if isinstance(each, Step))
                    recorded = msgspec.structs.replace(walk, pacing=Deferred(next(behind, None)))
                    await self._actions.reach(recorded, _node(item))
                elif (await self._actions.reach(walk, _node(item))).halt:
                    break
        return run

    async def next(self, run_id: str, at: str | None) -> Run:
        """Go on to the next step: its nodes run first."""
        run = self._runs[run_id]
        before = run.position
        if run.done or at != run.shown:
            return run  # a doubled click, or a step that the client made up
        step = run.steps[before + 1] if before + 1 < len(run.steps) else None
        advanced = await self._actions.advance(run.walk, step)
        if advanced.state == "running" or run.position != before:
            return run  # another request runs the nodes, or has moved the run meanwhile
        run.position += 1
        run.done |= step is None or advanced.state == "halted"
        return run


class Run:
    """A run: where its user is."""

    def __init__(self, walk: Walk, steps: list[str]) -> None:
        self.walk = walk
        self.steps = steps
        self.position = -1
        self.done = False

    @property
    def shown(self) -> str | None:
        """The step that the user sees."""
        return self.steps[self.position] if self.position >= 0 and not self.done else None


def _node(item: Action) -> Node:
    return Node(id=item.id, type=item.type, config=item.config)


async def _not_found(scope: Any, receive: Any, send: Any) -> None:
    """Answer what no plugin has a route for: in a real host, the app."""
    if scope["type"] == "lifespan":
        for phase in ("startup", "shutdown"):
            await receive()
            await send({"type": f"lifespan.{phase}.complete"})
        return
    await send({"type": "http.response.start", "status": 404, "headers": []})
    await send({"type": "http.response.body", "body": b""})


# The driver, and the factory: what the kit needs.


class MyDriver(HostDriver):
    """Uses my host as its editor, its end users and its customers do: best over HTTP, at env.base_url."""

    # What the host does beyond "core". Add a profile when you want it tested; what is not claimed is not proved:
    # pacing, loops, editing, logic, tenancy, durability, inbound, scale.
    claims = frozenset({"pacing", "tenancy"})

    # With "pacing": which steps a user sees whose flow is edited during the run. "pinned": those of the version that was
    # opened; "live": those of the newest; None: you promise neither, and one check is not tried.
    edits: Literal["pinned", "live"] | None = "pinned"

    # With "loops": what the host does not have of it, {"branch", "subflow"}.
    lacks = frozenset()

    # The path below which the plugin's routes are, for example "/api".
    prefix = ""

    def __init__(self, data: Data, actions: FlowActions) -> None:
        # Any ASGI app. The kit serves it at env.base_url, and runs its lifespan.
        self.app = actions.wrap(_not_found)
        self._data = data
        self._actions = actions
        self._engine = Engine(actions)
        self._tokens: dict[tuple[str, str], str] = {}

    # Every host needs these five.

    async def seed(self, world: World) -> Mapping[str, str]:
        """Write what the world describes, or replace what is there under the same kit ids, and keep everything else.

        Return kit id → your id for everything that has another id in your host, {} if nothing has.
        """
        for agent in world.agents:
            self._data.agents[agent.id] = Agent(
                id=agent.id, name=agent.name, organization_id=agent.organization
            )
        for who in world.logins:
            token = self._tokens.setdefault((who.kind, who.id), f"Bearer {secrets.token_urlsafe()}")
            self._data.logins[token] = who
        for flow in world.flows:
            self._data.flows[flow.id] = flow
        return {}

    async def palette(self, who: Login) -> Sequence[Mapping[str, Any]]:
        """Return the node types as your editor gets them."""
        return [node_type.describe() for node_type in self._actions.node_types.values()]

    async def open(self, flow: str, user: str, content: str) -> Turn:
        """Open a flow (your id) as an end user, and return what the user's client has then."""
        return self._turn(await self._engine.open(self._data.flows[flow], user, content))

    async def next(self, session: str, step: str | None = None) -> Turn:
        """Go on to the next content step: flow.next. Ignore `step` if your clients do not say where they are."""
        return self._turn(await self._engine.next(session, step))

    def headers(self, who: Login) -> Mapping[str, str]:
        """Return the request headers that sign this person (who.kind "dashboard") or customer's backend ("api") in."""
        return {"authorization": self._tokens[who.kind, who.id]}

    def _turn(self, run: Run) -> Turn:
        # `raw` is all that the client got: the kit looks for secrets in it.
        raw = msgspec.json.encode({"step": run.shown, "done": run.done}).decode()
        return Turn(session=run.walk.run_id, step_id=run.shown, done=run.done, raw=raw)

    # A profile may need more methods: "logic" trigger; "editing" save and preview; "durability" fail_commit, and fail_database if
    # you can; "inbound" handled and fail_auth_event. The kit names those that are missing.


@asynccontextmanager
async def make_host(env: Env) -> AsyncIterator[MyDriver]:
    """Make the host. The kit calls this several times, sometimes for two hosts at once, and in child processes.

    Hand env.settings on to your `Host.settings`, unchanged: they hold the plugin's database, keys and URLs. Keep files
    in env.state_dir, and tables in env.database_url; both are the same ones again after a restart.
    """
    data = Data()
    yield MyDriver(data, FlowActions.load(ExampleHost(env.settings, data)))
    # Close here what you opened above.
