"""What the plugin asks of a host: the methods of `Host`, over the host's own data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from flowactions_conformance.reference_host import store as tables
from flowactions_conformance.reference_host.store import Store
from flowactions_hookspecs import (
    Agent,
    ApiPrincipal,
    AuthEvent,
    DashboardPrincipal,
    ExperienceTriggerRef,
    Host,
    LogicAction,
    LogicActionRef,
    Node,
    Operator,
    QuestionRequired,
    Request,
)

SESSION_COOKIE = "session"


class ReferenceHost(Host):
    """The reference host.

    Args:
        settings: handed to the plugin as they are.
        store: the host's data; the plugin shares its engine.
    """

    def __init__(self, settings: Mapping[str, str], store: Store) -> None:
        self.settings = settings
        self.store = store
        self.database = store.engine

    async def dashboard_principal(self, request: Request) -> DashboardPrincipal | None:
        """Return the person who is signed in, by session cookie or bearer token."""
        person = await self._person(request)
        if person is None:
            return None
        return DashboardPrincipal(
            organization_id=person["organization_id"],
            user_id=person["id"],
            user_name=person["name"],
            may_change=person["may_change"],
        )

    async def operator(self, request: Request) -> Operator | None:
        """Return the person who is signed in, if they are an operator of this host."""
        person = await self._person(request)
        if person is None or await self.store.one(tables.operators, id=person["id"]) is None:
            return None
        return Operator(user_id=person["id"], user_name=person["name"], may_change=person["may_change"])

    async def _person(self, request: Request) -> Mapping[str, Any] | None:
        token = _bearer(request) or request.cookies.get(SESSION_COOKIE)
        found = await self.store.token("dashboard", token)
        return await self.store.one(tables.people, id=found["person_id"]) if found else None

    async def api_principal(self, request: Request) -> ApiPrincipal | None:
        """Return the customer backend that calls, by bearer token."""
        found = await self.store.token("api", _bearer(request))
        if found is None:
            return None
        agent_ids = found["agent_ids"]
        return ApiPrincipal(
            organization_id=found["organization_id"],
            agent_ids=frozenset(agent_ids or ()),
            all_agents=agent_ids is None,
        )

    async def agent(self, agent_id: str) -> Agent | None:
        """Look an agent up."""
        row = await self.store.one(tables.agents, id=agent_id)
        return None if row is None else Agent(**row)

    async def agents_using(self, organization_id: str, node_type: str) -> Sequence[Agent]:
        """List the agents whose flows hold a node of this type."""
        used = {
            flow["agent_id"]
            for flow in await self.store.find(tables.flows, organization_id=organization_id)
            if any(item.get("type") == node_type for item in flow["items"])
        }
        own = await self.store.find(tables.agents, organization_id=organization_id)
        return [Agent(**row) for row in own if row["id"] in used]

    async def logic_action(self, ref: LogicActionRef) -> LogicAction | None:
        """Find the action in the experience's triggers, or in a node's trigger group."""
        experience = await self.store.one(
            tables.experiences,
            id=ref.experience_id,
            agent_id=ref.agent_id,
            organization_id=ref.organization_id,
        )
        if experience is None:
            return None
        if isinstance(ref, ExperienceTriggerRef):
            group = experience["triggers"].get(ref.trigger_row_id)
        else:
            group = experience["node_triggers"].get(f"{ref.node_id}/{ref.node_trigger_group_id}")
            question = group and group.get("questionId")
            if question and ref.question_id is None:
                raise QuestionRequired
            if question != ref.question_id:
                return None
        actions = group["actions"] if group else []
        return (
            msgspec.convert(actions[ref.action_index], LogicAction) if ref.action_index < len(actions) else None
        )

    async def node(self, organization_id: str, flow_id: str, node_id: str) -> Node | None:
        """Find the node in the flow as it is now."""
        flow = await self.store.flow(flow_id)
        if flow is None or flow.organization_id != organization_id:
            return None
        for item in flow.items:
            if item["id"] == node_id and item["kind"] == "action":
                return Node(id=node_id, type=item["type"], config=item["config"])
        return None

    async def auth_event(self, event: AuthEvent) -> None:
        """Remember the event, in the transaction that notes it as seen."""
        told = {"kind": event.kind, "action": event.action, "data": dict(event.data)}
        await self.store.put(
            tables.auth_events, event.transaction, id=f"{event.provider}/{event.event_id}", event=told
        )


def _bearer(request: Request) -> str | None:
    scheme, _, token = request.headers.get("authorization", "").partition(" ")
    return token.strip() if scheme.lower() == "bearer" else None
