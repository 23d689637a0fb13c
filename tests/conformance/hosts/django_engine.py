"""A flow engine in Django, which has no lifespan: integer ids, people known by a session cookie, tables of its own.

Its tables are kept by Django's ORM in a SQLite file; the plugin keeps its own where its settings say.
"""

# ruff: noqa: DJ008  nobody reads these models' names

from __future__ import annotations

import json
import secrets
from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import msgspec
from django.conf import settings as django_settings
from django.db import connections, models
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.urls import path
from django.views.decorators.csrf import ensure_csrf_cookie

from flowactions_hookspecs import (
    Agent,
    ApiPrincipal,
    AuthEvent,
    DashboardPrincipal,
    Deferred,
    FlowActions,
    Host,
    LogicAction,
    LogicActionRef,
    Node,
    NodeTriggerRef,
    QuestionRequired,
    Request,
    ScopeRequest,
    Walk,
)
from tests.django_sites import configure

configure()


class _Row(models.Model):  # type: ignore[misc]  # Django has no types
    class Meta:
        abstract = True
        app_label = "flows"


class KitId(_Row):
    """Every id of this host is an integer: the key of the row that has the kit's id."""

    name: Any = models.CharField(max_length=200, unique=True)


class Person(_Row):
    kit: Any = models.CharField(max_length=200, unique=True)
    organization: Any = models.BigIntegerField()
    may_change: Any = models.BooleanField()


class Backend(_Row):
    token: Any = models.CharField(max_length=200, unique=True)
    organization: Any = models.BigIntegerField()
    agents: Any = models.JSONField(null=True)


class AgentRow(_Row):
    name: Any = models.CharField(max_length=200)
    organization: Any = models.BigIntegerField()


class FlowRow(_Row):
    organization: Any = models.BigIntegerField()
    agent: Any = models.BigIntegerField()
    paced: Any = models.BooleanField()
    items: Any = models.JSONField()


class Run(_Row):
    """``shown`` counts the content steps; -1 is before the first one, and as many as there are is the end."""

    session: Any = models.CharField(max_length=64, unique=True)
    flow: Any = models.JSONField()
    user: Any = models.TextField()
    content: Any = models.TextField()
    shown: Any = models.IntegerField()
    ended: Any = models.BooleanField()
    halted: Any = models.BooleanField(default=False)


class Experience(_Row):
    organization: Any = models.BigIntegerField()
    agent: Any = models.BigIntegerField()
    triggers: Any = models.JSONField()


class Event(_Row):
    name: Any = models.CharField(max_length=200, unique=True)


MODELS = [KitId, Person, Backend, AgentRow, FlowRow, Run, Experience, Event]


def open_database(file: Path) -> str:
    """Makes a host's tables, and returns the name by which Django knows the database."""
    alias = secrets.token_hex(8)
    options = {"timeout": 60, "transaction_mode": "IMMEDIATE", "init_command": "PRAGMA journal_mode=WAL"}
    given = {"ENGINE": "django.db.backends.sqlite3", "NAME": str(file), "OPTIONS": options}
    connections.settings[alias] = connections.configure_settings({"default": {}, alias: given})[alias]
    connection = connections[alias]
    there = connection.introspection.table_names()
    with connection.schema_editor() as editor:
        for model in MODELS:
            if model._meta.db_table not in there:
                editor.create_model(model)
    return alias


def close_database(alias: str) -> None:
    """Closes the connection of the thread that calls this."""
    connections[alias].close()


class DjangoHost(Host):
    """What the plugin asks of this host.

    Args:
        settings: handed to the plugin as they are.
        alias: Django's name of the host's database.
    """

    def __init__(self, settings: Mapping[str, str], alias: str) -> None:
        self.settings = settings
        self._alias = alias
        self._failing_events: set[str] = set()

    def _rows(self, model: Any) -> Any:
        return model.objects.using(self._alias)

    async def dashboard_principal(self, request: Request) -> DashboardPrincipal | None:
        """The session, by its cookie: Django's middleware does not run for the plugins' routes."""
        session = session_store()(request.cookies.get("sessionid"))
        person = await self._rows(Person).filter(kit=await session.aget("person")).afirst()
        return person and DashboardPrincipal(
            organization_id=str(person.organization),
            user_id=str(person.pk),
            user_name=person.kit,
            may_change=person.may_change,
        )

    async def api_principal(self, request: Request) -> ApiPrincipal | None:
        """A customer's backend, by its token."""
        scheme, _, token = request.headers.get("authorization", "").partition(" ")
        backend = await self._rows(Backend).filter(token=token).afirst() if scheme == "Bearer" else None
        return backend and ApiPrincipal(
            organization_id=str(backend.organization),
            agent_ids=frozenset(backend.agents or ()),
            all_agents=backend.agents is None,
        )

    async def agent(self, agent_id: str) -> Agent | None:
        """An agent; no text but that of an integer is an id."""
        row = await self._rows(AgentRow).filter(pk=agent_id).afirst() if agent_id.isdecimal() else None
        return row and _agent(row)

    async def agents_using(self, organization_id: str, node_type: str) -> Sequence[Agent]:
        """The agents whose flows hold such a node."""
        own = [flow async for flow in self._rows(FlowRow).filter(organization=organization_id)]
        used = {flow.agent for flow in own for item in flow.items if item.get("type") == node_type}
        return [_agent(row) async for row in self._rows(AgentRow).filter(pk__in=used).order_by("pk")]

    async def node(self, organization_id: str, flow_id: str, node_id: str) -> Node | None:
        """The node as it is now."""
        flow = await self._rows(FlowRow).filter(pk=flow_id, organization=organization_id).afirst()
        items = flow.items if flow else []
        return next((_node(item) for item in items if item["id"] == node_id and "type" in item), None)

    async def logic_action(self, ref: LogicActionRef) -> LogicAction | None:
        """The action of the trigger that ``ref`` names."""
        key = {"pk": ref.experience_id, "agent": ref.agent_id, "organization": ref.organization_id}
        known = all(value.isdecimal() for value in key.values())
        experience = await self._rows(Experience).filter(**key).afirst() if known else None
        wanted: tuple[str, str | None]
        if isinstance(ref, NodeTriggerRef):
            wanted, question = (ref.node_trigger_group_id, ref.node_id), ref.question_id
        else:
            wanted, question = (ref.trigger_row_id, None), None
        for trigger in experience.triggers if experience else []:
            if (trigger["id"], trigger["node"]) == wanted:
                if trigger["question"] and question is None:
                    raise QuestionRequired
                if trigger["question"] == question and ref.action_index < len(trigger["actions"]):
                    return msgspec.convert(trigger["actions"][ref.action_index], LogicAction)
        return None

    async def auth_event(self, event: AuthEvent) -> None:
        """Noted once, also when it comes again: this host's tables are in no transaction of the plugin's."""
        if event.event_id in self._failing_events:
            self._failing_events.remove(event.event_id)
            raise RuntimeError("the event cannot be handled now, as the kit has asked")
        await self._rows(Event).aget_or_create(name=event.event_id)


class Views:
    """The host's own routes, all behind Django's sessions and its protection from cross-site requests."""

    def __init__(self, host: DjangoHost, actions: FlowActions) -> None:
        self._host = host
        self._actions = actions
        self.patterns = [
            path("login", ensure_csrf_cookie(self.login)),
            path("palette", self.palette),
            path("flows/<int:flow>/open", self.open),
            path("runs/<str:session>/next", self.next),
        ]

    async def login(self, request: Any) -> HttpResponse:
        """GET sets the CSRF cookie, POST signs in."""
        if request.method == "POST":
            person = await self._host._rows(Person).filter(kit=request.POST.get("person")).afirst()
            if person is None:
                return HttpResponse(status=403)
            await request.session.aset("person", person.kit)
        return HttpResponse(status=204)

    async def palette(self, request: Any) -> HttpResponse:
        """What the editor offers."""
        if await self._host.dashboard_principal(ScopeRequest(request.scope)) is None:
            return HttpResponse(status=401)
        described = [node_type.describe() for node_type in self._actions.node_types.values()]
        return JsonResponse({"nodeTypes": described})

    async def open(self, request: HttpRequest, flow: int) -> HttpResponse:
        """Opens a flow as an end user."""
        row = await self._host._rows(FlowRow).filter(pk=flow).afirst()
        if row is None:
            return HttpResponse(status=404)
        given = json.loads(request.body)
        run = await self._host._rows(Run).acreate(
            session=secrets.token_urlsafe(24),
            flow={"id": row.pk, "organization": row.organization, "agent": row.agent, "items": row.items},
            user=given["user"],
            content=given["content"],
            shown=0 if row.items and "type" not in row.items[0] else -1,
            ended=not row.paced,
        )
        for index, item in enumerate(row.items):
            if "type" not in item:
                continue
            walk = _walk(run)
            if row.paced:
                step = next((each["id"] for each in row.items[index:] if "type" not in each), None)
                walk = msgspec.structs.replace(walk, pacing=Deferred(step))
            if (await self._actions.reach(walk, _node(item))).halt:
                run.ended = run.halted = True
                await run.asave(using=self._host._alias)
                break
        return _turn(run)

    async def next(self, request: HttpRequest, session: str) -> HttpResponse:
        """Goes on from the step that the browser shows."""
        rows = self._host._rows(Run)
        run = await rows.filter(session=session).afirst()
        if run is None:
            return HttpResponse(status=404)
        if run.ended or json.loads(request.body)["at"] != _step(run):
            return _turn(run)
        steps = _steps(run)
        step = steps[run.shown + 1] if run.shown + 1 < len(steps) else None
        advanced = await self._actions.advance(_walk(run), step)
        if advanced.state == "running":
            return _turn(run)
        if advanced.state == "halted":
            await rows.filter(pk=run.pk).aupdate(ended=True, halted=True)
        else:
            here = rows.filter(pk=run.pk, shown=run.shown, ended=False)
            await here.aupdate(shown=run.shown + 1, ended=step is None)
        return _turn(await rows.aget(pk=run.pk))


def session_store() -> Any:
    return import_module(django_settings.SESSION_ENGINE).SessionStore


def _agent(row: Any) -> Agent:
    return Agent(id=str(row.pk), name=row.name, organization_id=str(row.organization))


def _node(item: dict[str, Any]) -> Node:
    return Node(id=item["id"], type=item["type"], config=item["config"])


def _walk(run: Any) -> Walk:
    return Walk(
        organization_id=str(run.flow["organization"]),
        agent_id=str(run.flow["agent"]),
        flow_id=str(run.flow["id"]),
        run_id=f"run-{run.session}",
        user_id=run.user,
        content=run.content,
    )


def _steps(run: Any) -> list[str]:
    return [item["id"] for item in run.flow["items"] if "type" not in item]


def _step(run: Any) -> str | None:
    steps = _steps(run)
    return steps[run.shown] if not run.ended and 0 <= run.shown < len(steps) else None


def _turn(run: Any) -> HttpResponse:
    return JsonResponse({"session": run.session, "step": _step(run), "ended": run.ended})
