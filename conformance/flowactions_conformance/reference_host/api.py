"""The host's own routes: the dashboard's API, the end user's, and the pages."""

from __future__ import annotations

import re
from copy import copy
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any, Literal
from uuid import uuid4

import msgspec
from litestar import Request, Response, Router, delete, get, post, put
from litestar.datastructures import Cookie
from litestar.di import NamedDependency, Provide
from litestar.exceptions import (
    ClientException,
    HTTPException,
    NotAuthorizedException,
    NotFoundException,
    PermissionDeniedException,
)
from litestar.handlers import HTTPRouteHandler
from litestar.params import FromPath, FromQuery, HeaderParameter, JSONBody
from litestar.response import File, Redirect
from litestar.static_files import create_static_files_router
from msgspec import Meta

from flowactions_conformance.reference_host import store as tables
from flowactions_conformance.reference_host.host import SESSION_COOKIE, ReferenceHost
from flowactions_conformance.reference_host.refusals import FIELDS, HANDLERS
from flowactions_conformance.reference_host.store import Flow, Store
from flowactions_conformance.reference_host.walker import Turn, Walker
from flowactions_hookspecs import (
    DashboardPrincipal,
    ExperienceTriggerRef,
    FlowActions,
    Node,
    NodeDraft,
    Receipt,
    ScopeRequest,
)

PAGES = Path(__file__).parent / "pages"
CHAT_PAGES = Path(__file__).parents[1] / "chat_provider" / "pages"
"""Have what shows a message as the workspace does."""

Person = NamedDependency[DashboardPrincipal]
Data = dict[str, Any]


class SignIn(msgspec.Struct, rename="camel"):
    """Who signs in. The reference host has no passwords."""

    user_id: str


IfMatch = Annotated[
    str | None, HeaderParameter(name="If-Match", description="The ETag of the flow that was changed.")
]
IfNoneMatch = Annotated[str | None, HeaderParameter(name="If-None-Match", description="`*`: the flow is new.")]


class FlowChange(msgspec.Struct, rename="camel", forbid_unknown_fields=True):
    """A flow as the editor saves it."""

    name: Annotated[str, Meta(max_length=200, pattern=r"^[^\x00]*[^\s\x00][^\x00]*$")]
    agent_id: str
    kind: Literal["single_shot", "client_paced"]
    items: Annotated[list[dict[str, Any]], Meta(max_length=200)] = []


@get("/people")
async def list_people(store: NamedDependency[Store]) -> Data:
    """List who can sign in."""
    names = {row["id"]: row["name"] for row in await store.find(tables.organizations)}
    people = await store.find(tables.people)
    operators = {row["id"] for row in await store.find(tables.operators)}
    return _data(
        [
            {
                "userId": row["id"],
                "userName": row["name"],
                "organizationName": names[row["organization_id"]],
                "operator": row["id"] in operators,
            }
            for row in people
        ]
    )


@post("/login", status_code=204)
async def sign_in(store: NamedDependency[Store], data: JSONBody[SignIn]) -> Response[None]:
    """Start a session."""
    person = await store.one(tables.people, id=data.user_id)
    if person is None:
        raise NotFoundException("Nobody has this id.")
    token = await store.issue_token("dashboard", person["organization_id"], person_id=person["id"])
    cookie = Cookie(key=SESSION_COOKIE, value=token, httponly=True, samesite="lax", path="/")
    return Response(None, status_code=204, cookies=[cookie])


@post("/logout", status_code=204)
async def sign_out() -> Response[None]:
    """End the session."""
    response = Response(None, status_code=204)
    response.delete_cookie(SESSION_COOKIE)
    return response


@get("/me")
async def me(person: Person, store: NamedDependency[Store]) -> Data:
    """Tell who is signed in."""
    organization = await store.one(tables.organizations, id=person.organization_id)
    return _data({**msgspec.to_builtins(person), "organizationName": organization and organization["name"]})


@get("/node-types")
async def node_types(person: Person, actions: NamedDependency[FlowActions]) -> Data:  # noqa: ARG001  guards
    """Give the palette: what every node type says of itself."""
    return _data([node_type.describe() for node_type in actions.node_types.values()])


@get("/agents")
async def list_agents(person: Person, store: NamedDependency[Store]) -> Data:
    """List the organization's agents."""
    rows = await store.find(tables.agents, organization_id=person.organization_id)
    return _data([{"id": row["id"], "name": row["name"]} for row in rows])


@get("/flows")
async def list_flows(person: Person, store: NamedDependency[Store]) -> Data:
    """List the organization's flows."""
    rows = await store.find(tables.flows, organization_id=person.organization_id)
    names = {"id": "id", "name": "name", "agentId": "agent_id", "kind": "kind"}
    return _data([{wire: row[name] for wire, name in names.items()} for row in rows])


@get("/flows/{flow_id:str}", raises=[NotFoundException])
async def show_flow(person: Person, store: NamedDependency[Store], flow_id: FromPath[str]) -> Response[Data]:
    """Show a flow; its ETag names the version."""
    flow = await _own_flow(store, person, flow_id)
    return Response(_data(_shown(flow)), headers={"ETag": _etag(flow)})


@put("/flows/{flow_id:str}", raises=[NotFoundException])
async def save_flow(
    author: Person,
    store: NamedDependency[Store],
    actions: NamedDependency[FlowActions],
    flow_id: FromPath[str],
    data: JSONBody[FlowChange],
    if_match: IfMatch = None,
    if_none_match: IfNoneMatch = None,
) -> Response[Data]:
    """Save a flow, and tell what is wrong with the configs of its nodes.

    A change of somebody else is never replaced unseen: `If-Match` names the version that was changed, `If-None-Match: *` says
    that the flow is new. If another version is there, the answer is 412 with that version.
    """
    over = None if if_none_match == "*" else await _matching(store, author, flow_id, if_match)
    if over is None and not re.fullmatch(r"[A-Za-z0-9_-]{1,64}", flow_id):
        raise ClientException("The id of a flow has 1 to 64 letters, digits, - and _.")
    own_agents = await store.find(tables.agents, organization_id=author.organization_id)
    if data.agent_id not in {row["id"] for row in own_agents}:
        raise ClientException(FIELDS["agentId"])
    for number, item in enumerate(data.items, start=1):
        wrong = _wrong(item)
        if wrong:
            raise ClientException(f"Item {number} of the flow: {wrong}")
    if len({item["id"] for item in data.items}) != len(data.items):
        raise ClientException("Two items have the same id. Give one of them another.")
    flow = Flow(
        id=flow_id,
        organization_id=author.organization_id,
        agent_id=data.agent_id,
        name=data.name,
        kind=data.kind,
        items=data.items,
        saved_by=author.user_id,
    )
    if not await store.save_flow(flow, over=over):
        raise await _changed(store, author, flow_id)
    # A flow may be saved with problems, as authors do before they are done. The editor says that it is a draft then, and
    # what will not run.
    answer = {**_data(_shown(flow)), "problems": await _problems(actions, flow)}
    return Response(answer, status_code=201 if over is None else 200, headers={"ETag": _etag(flow)})


@delete("/flows/{flow_id:str}", raises=[NotFoundException])
async def delete_flow(
    author: Person, store: NamedDependency[Store], flow_id: FromPath[str], if_match: IfMatch = None
) -> None:
    """Delete a flow. What its nodes have queued has no signing secret any more, and ends as dead."""
    version = await _matching(store, author, flow_id, if_match)
    if not await store.delete_flow(flow_id, version):
        raise await _changed(store, author, flow_id)


@get("/flows/{flow_id:str}/runs", raises=[NotFoundException])
async def list_runs(
    person: Person, store: NamedDependency[Store], flow_id: FromPath[str], session: FromQuery[str] = ""
) -> Data:
    """Show a flow's author the results of the newest runs, or of the run with this session."""
    await _own_flow(store, person, flow_id)
    return _data(
        [
            {
                "runId": run.id,
                "userId": run.user_id,
                "content": run.content,
                "openedAt": run.opened_at,
                "kind": run.flow.kind,
                "position": run.position,
                "items": [
                    {name: item[name] for name in ("id", "kind", "type", "name", "title") if name in item}
                    for item in run.flow.items
                ],
                "results": results,
            }
            for run, results in await store.recent_runs(flow_id, session)
        ]
    )


@post(
    "/experiences/{experience_id:str}/triggers/{row_id:str}/actions/{index:int}/fire",
    raises=[NotFoundException],
)
async def fire(
    author: Person,
    store: NamedDependency[Store],
    actions: NamedDependency[FlowActions],
    experience_id: FromPath[str],
    row_id: FromPath[str],
    index: FromPath[int],
) -> Receipt:
    """Let a trigger fire on the server: its webhook action is dispatched."""
    organization_id = author.organization_id
    experience = await store.one(tables.experiences, id=experience_id, organization_id=organization_id)
    if experience is None:
        raise NotFoundException("No experience of this organization has this id.")
    ref = ExperienceTriggerRef(
        organization_id=organization_id,
        agent_id=experience["agent_id"],
        experience_id=experience_id,
        trigger_row_id=row_id,
        action_index=index,
    )
    # New at each click. A host whose triggers fire by themselves takes the id of what fired them.
    return await actions.dispatch(ref, firing_id=uuid4().hex, occurred_at=datetime.now(UTC))


@get("/")
async def home() -> Redirect:
    """Begin with the editor."""
    return Redirect("/editor")


@get(["/editor", "/connections", "/login", "/run/{flow_id:str}"])
async def page(request: Request[Any, Any, Any]) -> File:
    """Give a page: of the dashboard, or the end user's, which reads the flow from its address."""
    name = request.url.path.split("/")[1]
    return File(PAGES / f"{name}.html", content_disposition_type="inline", media_type="text/html")


class Opening(msgspec.Struct, rename="camel"):
    """The end user opens a flow."""

    user_id: Annotated[str, Meta(max_length=200)] = ""
    content: Annotated[str, Meta(max_length=20_000)] = ""


class Onward(msgspec.Struct):
    """The end user asks for the step that follows the one in the browser."""

    from_step: str | None = msgspec.field(name="from", default=None)


@post("/flows/{flow_id:str}/open", status_code=200, raises=[NotFoundException])
async def open_flow(
    store: NamedDependency[Store],
    walker: NamedDependency[Walker],
    flow_id: FromPath[str],
    data: JSONBody[Opening],
) -> dict[str, Turn]:
    """Open a flow in the end user's widget."""
    flow = await store.flow(flow_id)
    if flow is None:
        raise NotFoundException("No flow has this id.")
    return {"data": await walker.open(flow, data.user_id, data.content)}


@post("/sessions/{session:str}/next", status_code=200, raises=[NotFoundException])
async def next_step(
    store: NamedDependency[Store],
    walker: NamedDependency[Walker],
    session: FromPath[str],
    data: JSONBody[Onward],
) -> dict[str, Turn]:
    """Go to the next step: ``flow.next``."""
    run = await store.run(session)
    if run is None:
        raise NotFoundException("No session has this id.")
    return {"data": await walker.next(run, data.from_step)}


def own_routes(host: ReferenceHost, actions: FlowActions, walker: Walker) -> list[Router]:
    """Make the host's own routers."""

    async def person(request: Request[Any, Any, Any]) -> DashboardPrincipal:
        principal = await host.dashboard_principal(ScopeRequest(request.scope))
        if principal is None:
            raise NotAuthorizedException("Sign in first.")
        return principal

    async def author(request: Request[Any, Any, Any]) -> DashboardPrincipal:
        principal = await person(request)
        if not principal.may_change:
            raise PermissionDeniedException("You may look at this, and not change it.")
        return principal

    def own(*handlers: HTTPRouteHandler) -> list[HTTPRouteHandler]:
        # Litestar notes a handler's router on the handler: an app that is made in another thread needs another copy.
        return [copy(handler) for handler in handlers]

    def given(value: object) -> Provide:
        return Provide(lambda: value, sync_to_thread=False)

    shared = {"store": given(host.store), "actions": given(actions), "walker": given(walker)}
    dashboard = [list_people, me, node_types, list_agents, list_flows]
    dashboard += [show_flow, save_flow, delete_flow, list_runs, fire]
    signed_in = {"person": Provide(person), "author": Provide(author)}
    routers = [
        Router("/api", route_handlers=own(*dashboard), dependencies=signed_in),
        Router("/run", route_handlers=own(open_flow, next_step)),
        Router("/", route_handlers=own(home, page, sign_in, sign_out), include_in_schema=False),
    ]
    return [
        Router("/", route_handlers=routers, dependencies=shared, exception_handlers=HANDLERS),
        create_static_files_router("/static", [PAGES, CHAT_PAGES], include_in_schema=False),
    ]


def _data(value: object) -> Data:
    return {"data": value}


async def _own_flow(store: Store, person: DashboardPrincipal, flow_id: str) -> Flow:
    flow = await store.flow(flow_id)
    if flow is None or flow.organization_id != person.organization_id:
        raise NotFoundException("No flow of this organization has this id.")
    return flow


def _shown(flow: Flow) -> Data:
    shown: Data = msgspec.to_builtins(flow)
    return {name: value for name, value in shown.items() if name not in {"version", "savedBy"}}


def _etag(flow: Flow) -> str:
    return f'"{flow.version}"'


async def _matching(store: Store, author: DashboardPrincipal, flow_id: str, if_match: str | None) -> str:
    """Give the version of a flow, if it is the one that the author has seen.

    Raises:
        HTTPException: 404, there is no such flow; 428, the request names no version; 412, it names another one.
    """
    flow = await _own_flow(store, author, flow_id)
    if if_match is None:
        raise HTTPException(
            "Say which version you have changed: send the ETag of the flow as If-Match; for a new flow, If-None-Match: *.",
            status_code=428,
        )
    # A proxy that compresses answers makes a weak tag of the ETag. The version behind it is the same.
    given = {tag.strip().removeprefix("W/") for tag in if_match.split(",")}
    if given.isdisjoint({"*", _etag(flow)}):
        raise await _changed(store, author, flow_id)
    return flow.version


async def _changed(store: Store, author: DashboardPrincipal, flow_id: str) -> HTTPException:
    """Refuse to replace what somebody else has saved, and show it with who that was."""
    flow = await _own_flow(store, author, flow_id)
    person = await store.one(tables.people, id=flow.saved_by)
    saved_by = person and {"userId": person["id"], "userName": person["name"]}
    return HTTPException(
        "Somebody else has saved this flow since you opened it.",
        status_code=412,
        headers={"ETag": _etag(flow)},
        extra={"flow": _shown(flow), "savedBy": saved_by},
    )


async def _problems(actions: FlowActions, flow: Flow) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    for item in flow.items:
        if item["kind"] == "action":
            node = Node(id=item["id"], type=item["type"], config=item["config"])
            draft = NodeDraft(organization_id=flow.organization_id, agent_id=flow.agent_id, node=node)
            problems = await actions.check(draft)
            found += [{"nodeId": node.id, **msgspec.to_builtins(problem)} for problem in problems]
    return found


def _wrong(item: dict[str, Any]) -> str | None:
    """Say what an item lacks; ``None``: nothing."""
    name = item.get("name", "")
    if not isinstance(item.get("id"), str) or not item["id"]:
        return "give it an id, a text that no other item has."
    if item.get("kind") not in {"step", "action"}:
        return 'its kind is "step" or "action".'
    if not isinstance(name, str) or len(name) > 200:
        return "its name is a text of at most 200 characters."
    if item["kind"] == "action" and not isinstance(item.get("type"), str):
        return "an action has a type, the name of a node type."
    if item["kind"] == "action" and not isinstance(item.get("config"), dict):
        return "an action has a config, an object."
    return None
