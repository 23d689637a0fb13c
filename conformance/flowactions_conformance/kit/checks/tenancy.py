"""TENANCY: an organization sees, changes and triggers its own things only."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from flowactions_conformance.kit.registry import check
from flowactions_conformance.kit.support.chat import INSTALL, allow, connect, with_cookies
from flowactions_conformance.kit.support.pair import Pair
from flowactions_conformance.kit.trial import Trial
from flowactions_conformance.kit.under_test import (
    Login,
)

OUTBOX: Final = "/v1/webhooks/outbox"
PAGES: Final = "/integrations/webhooks"
CARD: Final = "/integrations/chat/connection"
HIDDEN: Final = frozenset({401, 403, 404})
"""The plugin says 404; a host that refuses such a request before may say otherwise."""

OTHERS: Final = (
    "dashboard_principal names a fixed organization, or the first one that is found",
    "the organization is taken from the request instead of the session, without a look at who is its member",
    "operator() returns people who operate no host, for example everybody with may_change",
    "who calls is kept in a global or on the host object, so that requests at the same moment share it",
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


async def _sees_no_other(trial: Trial, who: Login, other: Login, delivery: str) -> None:
    """Look for a delivery of another organization on the operator pages."""
    pages = {"operator()": f"{PAGES}/deliveries", "operator() and its page": f"{PAGES}/deliveries/{delivery}"}
    for how, path in pages.items():
        answer = await trial.request("GET", path, who=who)
        trial.answers(
            answer,
            answer.status_code != 200 or delivery not in answer.text,
            f"GET {path} by {who.id}, who is no operator, shows a delivery of {other.organization} (by {how})",
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
