"""TENANCY: an organization sees, changes and triggers its own things only."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any, Final

import httpx
import msgspec

from flowactions_conformance.kit.outcomes import DriverFault, NotTestable
from flowactions_conformance.kit.registry import check
from flowactions_conformance.kit.support.chat import INSTALL, allow, connect, with_cookies
from flowactions_conformance.kit.support.evidence import provides
from flowactions_conformance.kit.trial import Trial
from flowactions_conformance.kit.under_test import (
    Action,
    Agent,
    Experience,
    Flow,
    Login,
    Organization,
    Trigger,
    TriggerAction,
    TriggerRef,
    World,
)

OUTBOX: Final = "/v1/webhooks/outbox"
PAGES: Final = "/integrations/webhooks"
CARD: Final = "/integrations/chat/connection"
HIDDEN: Final = frozenset({401, 403, 404})
"""The plugin says 404; a host that refuses such a request before may say otherwise."""

NAMED_BY: Final = ("x-organization", "x-organization-id", "x-org-id", "x-tenant", "x-tenant-id")
"""Request headers by which hosts let a person choose one of their organizations."""
AT_ONCE: Final = 10
"""Requests of each of two people at the same moment."""

OTHERS: Final = (
    "dashboard_principal names a fixed organization, or the first one that is found",
    "the organization is taken from the request instead of the session, without a look at who is its member",
    "operator() returns people who operate no host, for example everybody with may_change",
    "who calls is kept in a global or on the host object, so that requests at the same moment share it",
)


class Pair:
    """Two organizations, each with an agent, a person, a backend and a flow.

    Args:
        trial: its own organization is the first.
    """

    def __init__(self, trial: Trial) -> None:
        self.trial = trial
        self.other = trial.id("other-org")
        self.other_agent = trial.id("other-agent")
        self.stranger = Login(kind="dashboard", organization=self.other, id=trial.id("stranger"))

    def backend(self, organization: str) -> Login:
        """Return an organization's backend, which may address all of its agents."""
        return Login(kind="api", organization=organization, id=f"backend-of-{organization}", all_agents=True)

    def flow(self, node: Action, *, other: bool) -> Flow:
        """Return a flow of one of the two."""
        if other:
            return self.trial.flow(node, name="other-flow", organization=self.other, agent=self.other_agent)
        return self.trial.flow(node)

    def world(self, *flows: Flow, agents: tuple[Agent, ...] = (), logins: tuple[Login, ...] = ()) -> World:
        """Return both organizations with these flows."""
        return self.trial.world(
            *flows,
            organizations=(Organization(id=self.other, name="Other"),),
            agents=(Agent(id=self.other_agent, name="Other", organization=self.other), *agents),
            logins=(self.stranger, *logins),
        )


@check(
    "TENANCY-1",
    profile="tenancy",
    clause="contract: What a host does (Tenants); http: HTTP routes; spec 4.3",
    causes=OTHERS,
)
async def deliveries_are_their_organizations(trial: Trial) -> None:
    """A delivery is seen, and retried or cancelled, by its own organization only."""
    pair = Pair(trial)
    flows = {
        trial.author: pair.flow(trial.webhook("mine"), other=False),
        pair.stranger: pair.flow(trial.webhook("theirs"), other=True),
    }
    await trial.seed(world=pair.world(*flows.values()))
    for flow, name in zip(flows.values(), ("mine", "theirs"), strict=True):
        await trial.open(flow)
        await trial.until_arrived(name)
    shown = {}
    for who, flow in flows.items():
        answer = await trial.request("GET", OUTBOX, who=who)
        trial.answers(answer, 200, "a signed-in person is refused")
        rows = answer.json()["data"]
        trial.equal(
            [row["agentId"] for row in rows],
            [trial.of_host(flow.agent)],
            f"the person {who.id} does not see exactly the deliveries of the organization {who.organization}",
        )
        shown[who] = rows[0]["id"]
    for who, other in ((trial.author, pair.stranger), (pair.stranger, trial.author)):
        await _answers(trial, "GET", f"{OUTBOX}/{shown[who]}", who, {200}, "its own organization")
        for method, path in (("GET", ""), ("POST", "/retry"), ("POST", "/cancel")):
            await _answers(trial, method, f"{OUTBOX}/{shown[who]}{path}", other, HIDDEN, "another organization")
        await _sees_no_other(trial, other, who, shown[who])
    people = [*flows] * AT_ONCE
    answers = await asyncio.gather(*(trial.request("GET", OUTBOX, who=who) for who in people))
    for who, answer in zip(people, answers, strict=True):
        trial.answers(
            answer,
            answer.status_code == 200 and [row["id"] for row in answer.json()["data"]] == [shown[who]],
            f"of requests at the same moment, one by {who.id} is answered with another person's rights",
            f"200 with the one delivery of the organization {who.organization}",
        )


@check(
    "TENANCY-2",
    profile="tenancy",
    clause="contract: What a host does (Tenants); http: The connection card, How an install ends; spec 2.2, 5.2",
    causes=OTHERS,
)
async def a_connection_is_its_organizations(trial: Trial) -> None:
    """A chat connection is made, seen, used and removed by its own organization only."""
    pair = Pair(trial)
    await trial.seed(world=pair.world())
    begun = await trial.request("GET", INSTALL, who=trial.author)
    trial.answers(begun, 302, "the install of chat does not begin")
    back = await allow(begun.headers["location"], trial.session.workspace())
    path = back.removeprefix(f"{trial.host.url}{trial.host.prefix}")
    cookies = await with_cookies(trial, pair.stranger, begun.headers.get_list("set-cookie"))
    ended = await trial.request("GET", path, headers=cookies)
    where = ended.headers.get("location", "")
    trial.answers(
        ended,
        "chat=error" in where and "wrong_organization" in where,
        "an install that was begun in another organization was not refused",
        "the dashboard's page with chat=error and reason=wrong_organization",
    )
    for who in (trial.author, pair.stranger):
        trial.equal(await _card(trial, who), None, f"the install has connected {who.organization} nevertheless")
    workspace = await connect(trial, trial.author)
    card = await _card(trial, pair.stranger)
    trial.equal(card, None, "a person of another organization sees the chat connection")
    for method, path in (("GET", "/integrations/chat/channels"), ("POST", "/integrations/chat/send-message")):
        sending = {"json": {"text": "hello"}} if method == "POST" else {}
        await _answers(trial, method, path, pair.stranger, {409, *HIDDEN}, "another organization", **sending)
    await trial.request("DELETE", CARD, who=pair.stranger)
    card = await _card(trial, trial.author)
    trial.equal(
        card and card["workspace"]["id"],
        workspace.id,
        "a person of another organization has removed the connection",
    )


@check(
    "TENANCY-3",
    profile="tenancy",
    clause="contract: What a host does (Tenants), What a host provides (agents_using); spec 2.2",
    causes=(
        "agents_using looks at the flows of all organizations: keep to the organization_id that it is given",
        "agents_using returns every agent: keep to those whose flows have a node of the type that it is given",
    ),
)
async def the_card_names_own_agents(trial: Trial) -> None:
    """The connection card names the agents whose flows use chat, and none of another organization."""
    pair = Pair(trial)
    chat = Action(
        id=trial.id("chat"), type="chat_message", config={"chatChannelId": "C1", "chatMessageText": "x"}
    )
    idle = Agent(id=trial.id("idle"), name="Idle", organization=trial.organization)
    other_chat = Action(id=trial.id("other-chat"), type=chat.type, config=chat.config)
    webhooks = trial.flow(trial.webhook("of-idle"), name="idle-flow", agent=idle.id)
    flows = (pair.flow(chat, other=False), pair.flow(other_chat, other=True), webhooks)
    await trial.seed(world=pair.world(*flows, agents=(idle,)))
    await connect(trial, trial.author)
    card = await _card(trial, trial.author)
    expected = [trial.of_host(trial.agent)] if provides(trial, "agents_using") else []
    trial.equal(
        [agent["id"] for agent in (card or {}).get("agents", ())],
        expected,
        "the connection card does not name exactly the organization's agents whose flows use chat",
    )


@check(
    "TENANCY-4",
    profile="tenancy",
    clause="contract: What a host does (Tenants); http: Trigger a logic webhook; spec 4.2",
    causes=(
        "Host.agent answers with the caller's organization instead of the agent's own",
        "api_principal names a fixed organization, or the first one that is found",
        "which backend calls is kept in a global or on the host object, so that requests at the same moment share it",
    ),
)
async def backends_keep_to_their_organization(trial: Trial) -> None:
    """A backend cannot address an agent of another organization."""
    if not provides(trial, "api_principal"):
        return  # nobody gets in: AUTH-1
    pair = Pair(trial)
    own, other = pair.backend(trial.organization), pair.backend(pair.other)
    await trial.seed(world=pair.world(logins=(own, other)))
    for who, agent, foreign in ((own, trial.agent, pair.other_agent), (other, pair.other_agent, trial.agent)):
        await _answers(
            trial, "POST", trial.logic_path(agent), who, {400}, "the agent's own organization", json={}
        )
        await _answers(trial, "POST", trial.logic_path(foreign), who, HIDDEN, "another organization", json={})
    callers = [(own, trial.agent), (other, pair.other_agent)] * AT_ONCE
    await asyncio.gather(
        *(
            _answers(
                trial, "POST", trial.logic_path(agent), who, {400}, "its own organization, at once", json={}
            )
            for who, agent in callers
        )
    )


@check(
    "TENANCY-6",
    profile="tenancy",
    clause="contract: What a host does (Tenants), What a host provides (signing_secret, node); spec 5.3",
    causes=(
        "node finds the node by flow and node, without the organization",
        "ids of flows and nodes are taken for unguessable",
    ),
)
async def a_secret_signs_for_its_organization(trial: Trial) -> None:
    """A person cannot have a request signed with another organization's secret."""
    pair = Pair(trial)
    secret = f"s3cret-of-{trial.token}"
    signed = trial.webhook("signed", webhookSecret=secret)
    flow = pair.flow(signed, other=False)
    await trial.seed(world=pair.world(flow))
    await trial.open(flow)
    (genuine, *_) = await trial.until_arrived("signed")
    trial.equal(trial.signature_of(genuine, secret), "verified", "the organization's own webhook is not signed")
    # What a stranger sends who knows the ids: the other's flow, node and URL, and a body of their own.
    config = {**signed.config, "webhookSecret": "", "webhookBody": '"forged"'}
    body = {
        "agentId": trial.of_host(pair.other_agent),
        "node": {"type": signed.type, "id": trial.of_host(signed.id), "config": config},
        "walk": {"flowId": trial.of_host(flow.id)},
    }
    await _answers(
        trial,
        "POST",
        "/integrations/nodes/test",
        pair.stranger,
        {200, *HIDDEN},
        "another organization",
        json=body,
    )
    # And what a node of a plugin sends for the stranger's organization.
    await trial.enqueue(
        "borrowed",
        organization_id=trial.of_host(pair.other),
        agent_id=trial.of_host(pair.other_agent),
        flow_id=trial.of_host(flow.id),
        node_id=trial.of_host(signed.id),
    )
    await trial.nothing_more_is_sent()
    others = [each for each in trial.arrivals("signed") if each.body == '"forged"']
    others += trial.arrivals("borrowed")
    trial.expect(
        all(trial.signature_of(arrival, secret) != "verified" for arrival in others),
        "a person had a request signed with another organization's secret",
        expected="no signature with that secret, because the organization has no such flow",
        actual=others,
    )


@check(
    "TENANCY-7",
    profile="tenancy",
    clause="contract: What a host does (Tenants), What a host provides (logic_action); spec 4.2",
    causes=(
        "logic_action finds the experience by its id alone: look it up by all ids of the reference",
        "the path's agent is checked, and then not used",
        "logic_action finds a row by its id alone: two experiences may have rows of the same id",
    ),
)
async def actions_are_their_organizations(trial: Trial) -> None:
    """A backend cannot fire an action of another organization's experience, nor of another agent's."""
    if "logic" not in trial.session.claims:
        return  # such a host has no actions
    pair = Pair(trial)
    own, other = pair.backend(trial.organization), pair.backend(pair.other)
    second = Agent(id=trial.id("second"), name="Second", organization=trial.organization)
    survey = Experience(
        id=trial.id("survey"),
        organization=trial.organization,
        agent=trial.agent,
        triggers=(Trigger(id=trial.id("row"), actions=(TriggerAction(url=trial.hook("fired")),)),),
    )
    # The same row in two experiences. Neither order of storing may decide which is found.
    twins = tuple(
        msgspec.structs.replace(
            survey,
            id=trial.id(name),
            triggers=(Trigger(id=trial.id("row"), actions=(TriggerAction(url=trial.hook(name)),)),),
        )
        for name in ("a-twin", "z-twin")
    )
    world = pair.world(agents=(second,), logins=(own, other))
    await trial.seed(world=msgspec.structs.replace(world, experiences=(twins[0], survey, twins[1])))
    body = {
        "idempotencyKey": trial.new_key(),
        "source": "experience_trigger",
        "actionIndex": 0,
        "triggerRowId": trial.of_host(trial.id("row")),
    }
    for who, agent, of in (
        (other, pair.other_agent, "another organization"),
        (own, second.id, "another agent"),
    ):
        path = trial.logic_path(agent, survey.id)
        await _answers(trial, "POST", path, who, {400, *HIDDEN}, of, json=body)
    nothing = trial.logic_path(trial.agent)
    await _answers(trial, "POST", nothing, own, {400, *HIDDEN}, "no such experience", json=body)
    theirs = TriggerRef(
        organization=pair.other, agent=pair.other_agent, experience=survey.id, trigger=survey.triggers[0].id
    )
    try:
        await trial.call("trigger", theirs)
    except (DriverFault, NotTestable) as exc:
        trial.note("host", f"refuses: {exc}")
    path = trial.logic_path(trial.agent, survey.id)
    await _answers(trial, "POST", path, own, {202}, "the agent's own organization", json=body)
    await trial.nothing_more_is_sent()
    wrong = [name for name in ("a-twin", "z-twin") if trial.arrivals(name)]
    trial.equal(wrong, [], "a call for a row fired the row of the same id in another experience")
    trial.equal(len(trial.arrivals("fired")), 1, "a trigger of another organization's experience was fired")


async def _sees_no_other(trial: Trial, who: Login, other: Login, delivery: str) -> None:
    """Look for a delivery of another organization on the operator pages, and by naming that organization."""
    credentials: Mapping[str, str] = await trial.call("headers", who)
    own, theirs = trial.of_host(who.organization), trial.of_host(other.organization)
    renamed = {name: theirs if value == own else value for name, value in credentials.items()}
    pages = {
        "operator()": (f"{PAGES}/deliveries", credentials),
        "operator() and its page": (f"{PAGES}/deliveries/{delivery}", credentials),
    }
    asked: dict[str, tuple[str, Mapping[str, str]]] = {
        **pages,
        **{
            f"the header {name}": (OUTBOX, {**credentials, name: theirs})
            for name in NAMED_BY
            if theirs.isascii() and theirs.isprintable()
        },
    }
    if renamed != credentials:
        asked["the headers of the driver"] = (OUTBOX, renamed)
    for how, (path, headers) in asked.items():
        answer: httpx.Response = await trial.request("GET", path, headers=headers)
        trial.answers(
            answer,
            answer.status_code != 200 or delivery not in answer.text,
            f"GET {path} by {who.id}, who is no member of {other.organization} and no operator, shows its delivery (by {how})",
            "no delivery of another organization",
        )


async def _card(trial: Trial, who: Login) -> Mapping[str, Any] | None:
    answer = await trial.request("GET", CARD, who=who)
    trial.answers(answer, 200, f"{who.id} cannot see the connection card")
    card: Mapping[str, Any] | None = answer.json()["data"]
    return card


async def _answers(
    trial: Trial,
    method: str,
    path: str,
    who: Login,
    expected: set[int] | frozenset[int],
    of: str,
    **sending: Any,
) -> None:
    answer = await trial.request(method, path, who=who, **sending)
    said = f"{method} {path} by {who.id}, of {of}, is answered {answer.status_code}"
    trial.answers(answer, answer.status_code in expected, said, sorted(expected))
