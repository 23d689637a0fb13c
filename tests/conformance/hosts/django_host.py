"""The driver of the Django host: what is in its tables is written by Django's ORM, all else goes over HTTP."""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import Any

import httpx
from asgiref.sync import sync_to_async

from flowactions_conformance import (
    Action,
    Env,
    Flow,
    HostDriver,
    Login,
    Step,
    TriggerAction,
    TriggerRef,
    Turn,
    World,
)
from flowactions_hookspecs import ExperienceTriggerRef, FlowActions
from tests.conformance.hosts.django_engine import (
    AgentRow,
    Backend,
    DjangoHost,
    Event,
    Experience,
    FlowRow,
    KitId,
    Person,
    Views,
    close_database,
    open_database,
    session_store,
)
from tests.django_sites import site

CSRF = "0123456789abcdefghijklmnopqrstuv"


class DjangoDriver(HostDriver):
    """How the kit uses this host."""

    claims = frozenset({"inbound", "logic", "pacing", "scale", "tenancy"})

    def __init__(self, env: Env, alias: str) -> None:
        self._host = DjangoHost(env.settings, alias)
        self._actions = actions = FlowActions.load(self._host)
        middleware = [
            "django.middleware.security.SecurityMiddleware",
            "django.contrib.sessions.middleware.SessionMiddleware",
            "django.middleware.common.CommonMiddleware",
            "django.middleware.csrf.CsrfViewMiddleware",
        ]
        self.app = actions.wrap(site(Views(self._host, actions).patterns, middleware))
        self._client = httpx.AsyncClient(
            base_url=env.base_url,
            trust_env=False,
            timeout=60,
            cookies={"csrftoken": CSRF},
            headers={"x-csrftoken": CSRF},
        )

    async def seed(self, world: World) -> Mapping[str, str]:
        """Every thing gets an integer, which it keeps."""
        ids: dict[str, str] = {}

        async def number(kit: str) -> str:
            if kit not in ids:
                ids[kit] = await self._number(kit)
            return ids[kit]

        async def put(model: Any, key: dict[str, Any], **values: Any) -> str:
            row, _ = await self._host._rows(model).aupdate_or_create(**key, defaults=values)
            return str(row.pk)

        for organization in world.organizations:
            await number(organization.id)
        for agent in world.agents:
            organization_id = await number(agent.organization)
            await put(AgentRow, {"pk": await number(agent.id)}, name=agent.name, organization=organization_id)
        for who in world.logins:
            organization_id = await number(who.organization)
            if who.kind == "dashboard":
                person = {"organization": organization_id, "may_change": who.may_change}
                ids[who.id] = await put(Person, {"kit": who.id}, **person)
            else:
                agents = None if who.all_agents else [await number(each) for each in who.agents]
                await put(Backend, {"token": _token(who)}, organization=organization_id, agents=agents)
        for flow in world.flows:
            values = {
                "organization": await number(flow.organization),
                "agent": await number(flow.agent),
                "paced": flow.pacing == "deferred",
                "items": [_item(item, await number(item.id)) for item in _plain(flow)],
            }
            await put(FlowRow, {"pk": await number(flow.id)}, **values)
        for experience in world.experiences:
            triggers = [
                {
                    "id": await number(trigger.id),
                    "node": trigger.node and await number(trigger.node),
                    "question": trigger.question and await number(trigger.question),
                    "actions": [_action(action) for action in trigger.actions],
                }
                for trigger in experience.triggers
            ]
            owner = {
                "organization": await number(experience.organization),
                "agent": await number(experience.agent),
            }
            await put(Experience, {"pk": await number(experience.id)}, triggers=triggers, **owner)
        return ids

    async def _number(self, kit: str) -> str:
        return str((await self._host._rows(KitId).aget_or_create(name=kit))[0].pk)

    def headers(self, who: Login) -> Mapping[str, str]:
        """A person's session cookie, which is what `Views.login` sets; a backend's token."""
        if who.kind == "api":
            return {"authorization": f"Bearer {_token(who)}"}
        session = session_store()()
        session["person"] = who.id
        return {"cookie": f"sessionid={session._get_session_key()}"}

    async def palette(self, who: Login) -> Sequence[Mapping[str, Any]]:
        """Signs in with the form, and asks as the editor does."""
        async with httpx.AsyncClient(base_url=self._client.base_url, trust_env=False, timeout=60) as browser:
            (await browser.get("/login")).raise_for_status()
            token = {"x-csrftoken": browser.cookies["csrftoken"]}
            (await browser.post("/login", data={"person": who.id}, headers=token)).raise_for_status()
            answer = (await browser.get("/palette")).raise_for_status()
        described: list[dict[str, Any]] = answer.json()["nodeTypes"]
        return described

    async def open(self, flow: str, user: str, content: str) -> Turn:
        """What the end user's browser does first."""
        return await self._turn(f"/flows/{flow}/open", {"user": user, "content": content})

    async def next(self, session: str, step: str | None = None) -> Turn:
        """What it does when the user presses Next."""
        return await self._turn(f"/runs/{session}/next", {"at": step})

    async def trigger(self, ref: TriggerRef) -> None:
        """Fires it as this host's own code does."""
        found = ExperienceTriggerRef(
            organization_id=await self._number(ref.organization),
            agent_id=await self._number(ref.agent),
            experience_id=await self._number(ref.experience),
            trigger_row_id=await self._number(ref.trigger),
            action_index=ref.action_index,
        )
        await self._actions.dispatch(found, firing_id=secrets.token_hex(8), occurred_at=datetime.now(UTC))

    async def handled(self, event_id: str) -> int:
        """Counts the event among those that were noted."""
        count: int = await self._host._rows(Event).filter(name=event_id).acount()
        return count

    async def fail_auth_event(self, event_id: str) -> None:
        """Has the host fail with the event once."""
        self._host._failing_events.add(event_id)

    async def _turn(self, url: str, body: dict[str, Any]) -> Turn:
        answer = (await self._client.post(url, json=body)).raise_for_status()
        told = answer.json()
        return Turn(session=told["session"], step_id=told["step"], done=told["ended"], raw=answer.text)


def _token(who: Login) -> str:
    return f"token-of-{who.id}"


def _action(action: TriggerAction) -> dict[str, Any]:
    headers = [{"key": key, "value": value} for key, value in action.headers.items()]
    return {"url": action.url, "secret": action.secret, "headers": headers}


def _plain(flow: Flow) -> list[Step | Action]:
    return [item for item in flow.items if isinstance(item, Step | Action)]


def _item(item: Step | Action, number: str) -> dict[str, Any]:
    if isinstance(item, Step):
        return {"id": number, "text": item.text}
    return {"id": number, "type": item.type, "config": item.config}


@asynccontextmanager
async def make_host(env: Env) -> AsyncIterator[DjangoDriver]:
    """Makes the host."""
    alias = await sync_to_async(open_database)(env.state_dir / "django.db")
    yield DjangoDriver(env, alias)
    await sync_to_async(close_database)(alias)
