"""The reference host's driver for the conformance kit: the example that host authors copy."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, Literal
from urllib.parse import quote

import httpx
import msgspec
from sqlalchemy import Table
from sqlalchemy.ext.asyncio import AsyncConnection

from flowactions_conformance.kit.under_test import (
    Action,
    Env,
    Flow,
    HostDriver,
    Login,
    Trigger,
    TriggerRef,
    Turn,
    World,
)
from flowactions_conformance.reference_host import store as tables
from flowactions_conformance.reference_host.app import ReferenceApp, create_app
from flowactions_conformance.reference_host.store import Flow as StoredFlow
from flowactions_conformance.reference_host.store import Store
from flowactions_conformance.serving import NO_TLS


class ServedDriver(HostDriver):
    """Uses the reference host as its own pages do: over HTTP. Only what it seeds and counts goes to the database."""

    claims = frozenset({"durability", "editing", "inbound", "logic", "pacing", "scale", "tenancy"})
    edits: Literal["pinned", "live"] | None = "pinned"

    def __init__(self, store: Store, env: Env) -> None:
        self._store = store
        self._client = httpx.AsyncClient(base_url=env.base_url, trust_env=False, verify=NO_TLS, timeout=60)
        self._authors: dict[str, Login] = {}

    async def seed(self, world: World) -> Mapping[str, str]:
        """Write into the host's tables; kit ids are the host's."""
        for organization in world.organizations:
            await self._store.put(tables.organizations, id=organization.id, name=organization.name)
        for agent in world.agents:
            await self._store.put(
                tables.agents, id=agent.id, name=agent.name, organization_id=agent.organization
            )
        for who in world.logins:
            if who.kind == "dashboard":
                await self._store.put(
                    tables.people,
                    id=who.id,
                    name=who.id,
                    organization_id=who.organization,
                    may_change=who.may_change,
                )
                self._authors.setdefault(who.organization, who)
            await self._store.issue_token(
                who.kind,
                who.organization,
                token=_token(who),
                person_id=who.id,
                agent_ids=None if who.all_agents else list(who.agents),
            )
        for flow in world.flows:
            await self._store.save_flow(_stored(flow))
        for experience in world.experiences:
            await self._store.put(
                tables.experiences,
                id=experience.id,
                organization_id=experience.organization,
                agent_id=experience.agent,
                triggers={each.id: _group(each) for each in experience.triggers if each.node is None},
                node_triggers={
                    f"{each.node}/{each.id}": _group(each)
                    for each in experience.triggers
                    if each.node is not None
                },
            )
        return {}

    async def palette(self, who: Login) -> Sequence[Mapping[str, Any]]:
        """Request the editor's route."""
        answer = await self._client.get("/api/node-types", headers=self.headers(who))
        data: list[dict[str, Any]] = answer.raise_for_status().json()["data"]
        return data

    async def open(self, flow: str, user: str, content: str) -> Turn:
        """Open the flow as the widget does."""
        return await self._turn(f"/run/flows/{_in_path(flow)}/open", {"userId": user, "content": content})

    async def next(self, session: str, step: str | None = None) -> Turn:
        """Presses Next in the widget."""
        return await self._turn(f"/run/sessions/{session}/next", {"from": step})

    def headers(self, who: Login) -> Mapping[str, str]:
        """Return a bearer token, as the dashboard's API takes it."""
        return {"authorization": f"Bearer {_token(who)}"}

    async def save(self, who: Login, flow: Flow) -> Sequence[Mapping[str, Any]]:
        """Save the flow over the version that is there, as the editor does, which shows the problems of the answer."""
        stored = msgspec.to_builtins(_stored(flow))
        body = {name: stored[name] for name in ("name", "agentId", "kind", "items")}
        path, headers = f"/api/flows/{_in_path(flow.id)}", self.headers(who)
        opened = (await self._client.get(path, headers=headers)).raise_for_status()
        headers = {**headers, "if-match": opened.headers["etag"]}
        answer = await self._client.put(path, json=body, headers=headers)
        problems: list[dict[str, Any]] = answer.raise_for_status().json()["problems"]
        return problems

    async def preview(self, who: Login, flow: str, node: Action) -> Mapping[str, Any]:
        """Request the plugin's ready route, as the editor does, for the agent whose flow is edited."""
        headers = self.headers(who)
        edited = await self._client.get(f"/api/flows/{_in_path(flow)}", headers=headers)
        body = {
            "agentId": edited.raise_for_status().json()["data"]["agentId"],
            "node": {"id": node.id, "type": node.type, "config": node.config},
            "walk": {"flowId": flow},
        }
        answer = await self._client.post(
            f"{self.prefix}/integrations/nodes/preview", json=body, headers=headers
        )
        data: dict[str, Any] = answer.raise_for_status().json()["data"]
        return data

    async def handled(self, event_id: str) -> int:
        """Count the event in the host's own table."""
        rows = await self._store.find(tables.auth_events)
        return sum(row["id"].endswith(f"/{event_id}") for row in rows)

    async def trigger(self, ref: TriggerRef) -> None:
        """Fire a trigger like a person at the dashboard."""
        experience, trigger = map(_in_path, (ref.experience, ref.trigger))
        path = f"/api/experiences/{experience}/triggers/{trigger}/actions/{ref.action_index}/fire"
        author = self._authors[ref.organization]
        (await self._client.post(path, headers=self.headers(author))).raise_for_status()

    async def _turn(self, path: str, body: dict[str, Any]) -> Turn:
        answer = await self._client.post(path, json=body)
        data = answer.raise_for_status().json()["data"]
        step = data["step"] and data["step"]["id"]
        return Turn(session=data["session"], step_id=step, done=data["done"], raw=answer.text)


class ReferenceDriver(ServedDriver):
    """Has the kit serve the app, and reaches into it where something of the host's has to fail."""

    def __init__(self, made: ReferenceApp, env: Env) -> None:
        super().__init__(made.host.store, env)
        self.made = made
        self.app = made.app
        self._failed_commits = 0

    async def fail_commit(self) -> None:
        """Has the transaction in which the next run is written roll back."""
        begin = self._store.transaction

        @asynccontextmanager
        async def failing() -> AsyncIterator[AsyncConnection]:
            self._store.transaction = begin  # type: ignore[method-assign]
            async with begin() as connection:
                yield connection
                self._failed_commits += 1
                raise RuntimeError("the commit fails, because the kit has asked for it")

        self._store.transaction = failing  # type: ignore[method-assign]

    async def failed_commits(self) -> int:
        """Count them."""
        return self._failed_commits

    async def fail_database(self, fails: bool) -> None:
        """Has every query that reads one row raise."""
        find = type(self._store).one

        async def failing(*_: Any, **__: Any) -> Any:
            raise RuntimeError("the database is away, because the kit has asked for it")

        self._store.one = failing if fails else partial(find, self._store)  # type: ignore[method-assign]

    async def fail_auth_event(self, event_id: str) -> None:
        """Has the database fail once it has been told of the event, before it commits."""
        put, to_fail = self._store.put, [event_id]

        async def failing(table: Table, connection: AsyncConnection | None = None, **values: Any) -> None:
            await put(table, connection, **values)
            if to_fail and table is tables.auth_events and values["id"].endswith(f"/{event_id}"):
                to_fail.clear()
                raise RuntimeError("the database fails, because the kit has asked for it")

        self._store.put = failing  # type: ignore[method-assign]


def _in_path(id_: str) -> str:
    return quote(id_, safe="")


def _token(who: Login) -> str:
    return f"token-of-{who.id}"


def _group(trigger: Trigger) -> dict[str, Any]:
    actions = [
        {
            "url": action.url,
            "secret": action.secret,
            "headers": [{"key": key, "value": value} for key, value in action.headers.items()],
        }
        for action in trigger.actions
    ]
    return {"questionId": trigger.question, "actions": actions}


def _stored(flow: Flow) -> StoredFlow:
    return StoredFlow(
        id=flow.id,
        organization_id=flow.organization,
        agent_id=flow.agent,
        name=flow.name,
        kind="single_shot" if flow.pacing == "eager" else "client_paced",
        items=msgspec.to_builtins(flow.items),
    )


@asynccontextmanager
async def make_host(env: Env) -> AsyncIterator[ReferenceDriver]:
    """Make the reference host."""
    yield ReferenceDriver(create_app(env.settings, env.database_url), env)
