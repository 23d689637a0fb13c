"""The FastAPI host with all that a host has beside its engine: an editor, triggers, events of the auth provider.

Hosts whose flows an engine runs derive from it. Flows hold loops, branches and sub-flows; who walks them is the engine.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import msgspec
import sqlalchemy as sa
from fastapi import FastAPI, HTTPException
from fastapi import Request as HttpRequest

from flowactions_conformance import Action, Env, Flow, Login, TriggerRef, World
from flowactions_hookspecs import (
    Agent,
    AuthEvent,
    DashboardPrincipal,
    FlowActions,
    LogicAction,
    LogicActionRef,
    Node,
    NodeDraft,
    NodeTriggerRef,
    QuestionRequired,
    ScopeRequest,
)
from tests.conformance.hosts.fastapi_host import (
    Data,
    ShopDriver,
    ShopHost,
    Walker,
    _table,
    agents,
    create_app,
    flows,
)
from tests.conformance.hosts.worlds import every_item, preview_body, trigger_of

experiences = _table("experiences", "organization_id agent_id", triggers=sa.JSON)
events = _table("auth_events", "")


class FullHost(ShopHost):
    """What the plugin asks of this host."""

    def __init__(self, settings: Mapping[str, str], database_url: str) -> None:
        super().__init__(settings, database_url)
        self._failing_events: set[str] = set()

    async def agents_using(self, organization_id: str, node_type: str) -> Sequence[Agent]:
        """The agents whose flows hold such a node, also in a loop."""
        own = await self._find(flows, organization_id=organization_id)
        used = {flow["agent_id"] for flow in own if any(each["type"] == node_type for each in _actions(flow))}
        rows = await self._find(agents, organization_id=organization_id)
        return [Agent(**row) for row in rows if row["id"] in used]

    async def node(self, organization_id: str, flow_id: str, node_id: str) -> Node | None:
        """The node as it is now, in the flow or one of its sub-flows."""
        waiting, seen = [flow_id], {flow_id}
        while waiting:
            flow = await self._get(flows, id=waiting.pop(), organization_id=organization_id)
            for item in every_item(flow["items"] if flow else []):
                if item["kind"] == "action" and item["id"] == node_id:
                    return Node(id=node_id, type=item["type"], config=item["config"])
                if item["kind"] == "subflow" and item["flow"] not in seen:
                    seen.add(item["flow"])
                    waiting.append(item["flow"])
        return None

    async def logic_action(self, ref: LogicActionRef) -> LogicAction | None:
        """The action of the trigger that ``ref`` names."""
        owner = {"organization_id": ref.organization_id, "agent_id": ref.agent_id}
        experience = await self._get(experiences, id=ref.experience_id, **owner)
        place: tuple[str | None, str] = (None, getattr(ref, "trigger_row_id", ""))
        question: str | None = None
        if isinstance(ref, NodeTriggerRef):
            place, question = (ref.node_id, ref.node_trigger_group_id), ref.question_id
        for trigger in experience["triggers"] if experience else []:
            if (trigger["node"], trigger["id"]) != place:
                continue
            if trigger["question"] and question is None:
                raise QuestionRequired
            if trigger["question"] == question and ref.action_index < len(trigger["actions"]):
                action = trigger["actions"][ref.action_index]
                headers = [{"key": key, "value": value} for key, value in action["headers"].items()]
                return msgspec.convert({**action, "headers": headers}, LogicAction)
        return None

    async def auth_event(self, event: AuthEvent) -> None:
        """Noted in the plugin's transaction: it is in this host's database."""
        assert event.transaction is not None
        await event.transaction.execute(sa.insert(events).values(id=event.event_id))
        if event.event_id in self._failing_events:
            self._failing_events.remove(event.event_id)
            raise RuntimeError("the event cannot be handled now, as the kit has asked")


def create_full_app(host: FullHost, actions: FlowActions, walker: Walker) -> FastAPI:
    """Makes the app."""
    api = create_app(host, actions, walker)

    async def author(request: HttpRequest) -> DashboardPrincipal:
        who = await host.dashboard_principal(ScopeRequest(request.scope))
        if who is None or not who.may_change:
            raise HTTPException(403)
        return who

    @api.put("/flows/{flow_id}")
    async def save(flow_id: str, request: HttpRequest) -> list[Data]:
        who, given = await author(request), await request.json()
        owner = {"organization_id": who.organization_id, "agent_id": given["agent"]}
        if await host._get(flows, id=flow_id, organization_id=who.organization_id) is None:
            raise HTTPException(404)
        await host._put(flows, id=flow_id, pacing=given["pacing"], items=given["items"], **owner)
        nodes = [Node(id=each["id"], type=each["type"], config=each["config"]) for each in _actions(given)]
        drafts = [NodeDraft(**owner, node=node) for node in nodes]
        return [msgspec.to_builtins(problem) for draft in drafts for problem in await actions.check(draft)]

    return api


class FullDriver(ShopDriver):
    """How the conformance kit uses this host."""

    claims = frozenset({"pacing", "loops", "editing", "logic", "tenancy", "durability", "inbound", "scale"})

    def __init__(self, host: FullHost, actions: FlowActions, walker: Walker, env: Env) -> None:
        super().__init__(host, create_full_app(host, actions, walker), env)
        self._full_host = host
        self._actions = actions

    async def seed(self, world: World) -> Mapping[str, str]:
        """The kit's ids are the host's, so there are none to return."""
        for each in world.experiences:
            owner = {"organization_id": each.organization, "agent_id": each.agent}
            triggers = msgspec.to_builtins(each.triggers)
            await self._host._put(experiences, id=each.id, triggers=triggers, **owner)
        return await super().seed(world)

    async def save(self, who: Login, flow: Flow) -> Sequence[Mapping[str, Any]]:
        """What the editor sends."""
        body = msgspec.to_builtins(flow)
        answer = await self._client.put(f"/flows/{flow.id}", json=body, headers=self.headers(who))
        problems: list[Data] = answer.raise_for_status().json()
        return problems

    async def preview(self, who: Login, flow: str, node: Action) -> Mapping[str, Any]:
        """The plugin's own route, as the editor asks it."""
        agent = (await self._host._get(flows, id=flow) or {})["agent_id"]
        body = preview_body(agent, flow, node)
        path = "/integrations/nodes/preview"
        answer = await self._client.post(path, json=body, headers=self.headers(who))
        data: Data = answer.raise_for_status().json()["data"]
        return data

    async def trigger(self, ref: TriggerRef) -> None:
        """Fires it as the host's own code does."""
        firing_id, now = secrets.token_hex(8), datetime.now(UTC)
        await self._actions.dispatch(trigger_of(ref), firing_id=firing_id, occurred_at=now)

    async def handled(self, event_id: str) -> int:
        """Counts the event among those that were noted."""
        return len(await self._host._find(events, id=event_id))

    async def fail_auth_event(self, event_id: str) -> None:
        """Has the host fail with the event once."""
        self._full_host._failing_events.add(event_id)


def _actions(flow: Data) -> list[Data]:
    return [item for item in every_item(flow["items"]) if item["kind"] == "action"]
