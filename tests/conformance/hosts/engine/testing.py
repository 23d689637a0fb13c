"""The engine's driver for the conformance kit."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

import httpx
import msgspec

from flowactions_conformance import Env, Experience, HostDriver, Login, TriggerRef, Turn, World
from tests.conformance.hosts.engine.app import CSRF, PREFIX, EngineApp, create_app
from tests.conformance.hosts.engine.walks import Item


class EngineDriver(HostDriver):
    """Uses the engine over HTTP; its numbers are not the kit's ids."""

    claims = frozenset({"pacing", "loops", "logic"})
    prefix = PREFIX

    def __init__(self, made: EngineApp, env: Env) -> None:
        self.made = made
        self.app = made.app
        self._store = made.host.store
        self._origin = env.base_url
        self._client = httpx.AsyncClient(base_url=env.base_url, trust_env=False, timeout=300)

    async def seed(self, world: World) -> Mapping[str, str]:
        """Writes into the engine's tables."""
        put, ids = self._store.put, dict[str, str]()
        tenants: dict[str, int] = {}

        async def tenant_of(organization: str) -> int:
            if organization not in tenants:
                found = await self._store.one("tenant", name=organization)
                tenants[organization] = found.id if found else await put("tenant", organization, 0)
            return tenants[organization]

        for organization in world.organizations:
            number = tenants[organization.id] = await put("tenant", organization.id, 0, organization.name)
            ids[organization.id] = str(number)
        for agent in world.agents:
            tenant = await tenant_of(agent.organization)
            ids[agent.id] = f"{tenant}.{await put('agent', agent.id, tenant, {'name': agent.name})}"
        for who in world.logins:
            agents = None if who.all_agents else [await self._agent(each) for each in who.agents]
            login = {"kind": who.kind, "may_change": who.may_change, "agents": agents}
            ids[who.id] = str(await put("login", who.id, await tenant_of(who.organization), login))
        for flow in world.flows:
            tenant = await tenant_of(flow.organization)
            items = [await self._item(each, tenant, ids) for each in msgspec.to_builtins(flow.items)]
            data = {"agent": await self._agent(flow.agent), "paced": flow.pacing == "deferred", "items": items}
            ids[flow.id] = f"{tenant}.{await put('flow', flow.id, tenant, data)}"
        for experience in world.experiences:
            ids |= await self._experience(experience, await tenant_of(experience.organization))
        return ids

    async def palette(self, who: Login) -> Sequence[Mapping[str, Any]]:
        """Asks the dashboard's route."""
        answer = await self._client.get("/dashboard/palette", headers=self.headers(who))
        palette: list[dict[str, Any]] = answer.raise_for_status().json()
        return palette

    async def open(self, flow: str, user: str, content: str) -> Turn:
        """Opens a flow."""
        return _turn(await self._client.post(f"/play/{flow}", json={"user": user, "content": content}))

    async def next(self, session: str, step: str | None = None) -> Turn:
        """Goes on. The engine's clients do not say where they are."""
        return _turn(await self._client.post(f"/play/{session}/next"))

    def headers(self, who: Login) -> Mapping[str, str]:
        """Returns a session's cookies, as a browser sends them, or a backend's key."""
        if who.kind == "api":
            return {"x-api-key": who.id}
        return {"cookie": f"sid={who.id}; {CSRF}=token-of-{who.id}", "origin": self._origin}

    async def trigger(self, ref: TriggerRef) -> None:
        """Fires a trigger as its author does."""
        tenant = await self._store.one("tenant", name=ref.organization)
        experience = await self._store.one("experience", name=ref.experience)
        row = await self._store.one("item", name=ref.trigger)
        assert tenant is not None
        assert experience is not None
        assert row is not None
        author = next(
            each
            for each in await self._store.find("login", tenant=tenant.id)
            if each.data["kind"] == "dashboard"
        )
        who = Login(kind="dashboard", organization=ref.organization, id=author.name)
        path = f"/dashboard/experiences/{experience.id}/{row.id}/{ref.action_index}"
        headers = {**self.headers(who), "x-csrf": f"token-of-{who.id}"}
        (await self._client.post(path, headers=headers)).raise_for_status()

    async def _agent(self, name: str) -> str:
        found = await self._store.one("agent", name=name)
        assert found is not None
        return f"{found.tenant}.{found.id}"

    async def _experience(self, experience: Experience, tenant: int) -> dict[str, str]:
        ids: dict[str, str] = {}
        triggers = msgspec.to_builtins(experience.triggers)
        for trigger in triggers:
            for name in ("id", "node", "question"):
                if trigger[name] is not None:
                    number = await self._store.put("item", trigger[name], tenant)
                    ids[trigger[name]] = trigger[name] = str(number)
        data = {"agent": await self._agent(experience.agent), "triggers": triggers}
        ids[experience.id] = str(await self._store.put("experience", experience.id, tenant, data))
        return ids

    async def _item(self, item: Item, tenant: int, ids: dict[str, str]) -> Item:
        number = await self._store.put("item", item["id"], tenant)
        ids[item["id"]] = str(number)
        changed = {**item, "id": number}
        for name in ("items", "taken", "other"):
            if name in item:
                changed[name] = [await self._item(each, tenant, ids) for each in item[name]]
        if item["kind"] == "subflow":
            found = await self._store.one("flow", name=item["flow"])
            changed["flow"] = found.id if found else -1
        return changed


def _turn(answer: httpx.Response) -> Turn:
    data = answer.raise_for_status().json()
    step = data["step"] and data["step"]["id"]
    return Turn(session=data["session"], step_id=step, done=data["done"], raw=answer.text)


@asynccontextmanager
async def make_host(env: Env) -> AsyncIterator[EngineDriver]:
    """Makes the engine."""
    yield EngineDriver(create_app(env.settings, env.database_url), env)
