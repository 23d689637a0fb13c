"""What a host's methods return is checked where it enters."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from typing import Any

import httpx
import pytest

from flowactions_conformance.chat_provider import FakeChatProvider
from flowactions_conformance.serving import serve
from flowactions_hookspecs import (
    Agent,
    ApiPrincipal,
    DashboardPrincipal,
    ExperienceTriggerRef,
    FlowActions,
    Header,
    LogicAction,
)
from tests.chatting import adopt, adopting_settings
from tests.support import SmallHost, development, transport_of

REF = ExperienceTriggerRef(
    organization_id="acme", agent_id="a1", experience_id="e1", trigger_row_id="t1", action_index=0
)
CALL = "/v1/agents/a1/experiences/e1/logic-webhook"
BODY = {"idempotencyKey": "k", "source": "experience_trigger", "actionIndex": 0, "triggerRowId": "t1"}
ACTIONS: list[tuple[Any, str]] = [
    ({"url": "http://x/"}, r"LogicAction \| None: it is a dict"),
    ("http://x/", "it is a str"),
    (LogicAction(url=None), "url is None, not str"),  # type: ignore[arg-type]
    (LogicAction(url="http://x/", method=7), "method is an int"),  # type: ignore[arg-type]
    (LogicAction(url="http://x/", headers=[{"key": "a", "value": "s3cret"}]), r"headers\[0\] is a dict"),  # type: ignore[list-item]
    (LogicAction(url="http://x/", headers={"a": "s3cret"}), "headers is a dict"),  # type: ignore[arg-type]
    (LogicAction(url="http://x/", headers="s3cret"), "headers is a str"),  # type: ignore[arg-type]
    (LogicAction(url="http://x/", headers=[Header(key="a", value=1)]), r"headers\[0\]\.value is an int"),  # type: ignore[arg-type]
    (LogicAction(url="http://x/", secret=b"s3cret"), "secret is a bytes"),  # type: ignore[arg-type]
]


class AnsweringHost(SmallHost):
    """A host whose answers may be anything."""

    agents_answer: Any = ()
    agent_answer: Any = Agent(id="a1", name="A", organization_id="acme")

    async def agent(self, agent_id: str) -> Any:
        return self.agent_answer

    async def agents_using(self, organization_id: str, node_type: str) -> Any:
        return self.agents_answer


@pytest.fixture
async def started(database_url: str) -> AsyncIterator[tuple[AnsweringHost, FlowActions, httpx.AsyncClient]]:
    host = AnsweringHost(development(database_url, FLOWACTIONS_HOST_WORKER="off"))
    host.api = ApiPrincipal(organization_id="acme", all_agents=True)
    host.action = LogicAction(url="http://127.0.0.1:9/")
    actions = FlowActions.load(host)
    transport = transport_of(actions)
    async with actions.lifespan(), httpx.AsyncClient(transport=transport, base_url="http://host") as client:
        yield host, actions, client


def refused(answer: httpx.Response, caplog: pytest.LogCaptureFixture, method: str, fault: str) -> None:
    """Check that a route says nothing of it, and the log everything but values and tracebacks."""
    assert (answer.status_code, answer.json()["code"]) == (500, "internal_error"), answer.text
    (record,) = [each for each in caplog.records if "must return" in each.getMessage()]
    assert f"AnsweringHost.{method} must return" in record.getMessage()
    assert re.search(fault, record.getMessage()), record.getMessage()
    assert not any(each.exc_info for each in caplog.records)
    assert "s3cret" not in caplog.text + answer.text
    assert "AnsweringHost" not in answer.text


async def test_a_logic_action_of_a_wrong_type_is_named(
    started: tuple[AnsweringHost, FlowActions, httpx.AsyncClient], caplog: pytest.LogCaptureFixture
) -> None:
    """dispatch gives a failed Receipt, the route a 500, and both name class and method in the log."""
    host, actions, client = started
    for answer, fault in ACTIONS:
        host.action = answer
        receipt = await actions.dispatch(REF, firing_id="f", occurred_at=datetime.now(UTC))
        assert (receipt.status, receipt.reason) == ("failed", "host_error")
        assert "AnsweringHost.logic_action must return" in (receipt.message or "")
        caplog.clear()
        refused(await client.post(CALL, json=BODY), caplog, "logic_action", fault)


async def test_a_logic_action_that_raises_fails_the_dispatch(
    started: tuple[AnsweringHost, FlowActions, httpx.AsyncClient], caplog: pytest.LogCaptureFixture
) -> None:
    """The receipt names the method, also one that is not async; the log has the host's own traceback."""
    host, actions, _ = started
    host.logic_action = lambda *_: None  # type: ignore[method-assign,assignment]
    receipt = await actions.dispatch(REF, firing_id="f", occurred_at=datetime.now(UTC))
    assert "AnsweringHost.logic_action must be async: it returned None" in (receipt.message or "")
    del host.logic_action
    host.action_error = ZeroDivisionError("of the host")
    receipt = await actions.dispatch(REF, firing_id="f", occurred_at=datetime.now(UTC))
    assert (receipt.status, receipt.reason) == ("failed", "host_error")
    assert "AnsweringHost.logic_action failed" in (receipt.message or "")
    assert any("of the host" in (each.exc_text or "") for each in caplog.records)


async def test_ids_that_stand_in_no_path_may_hold_a_slash(
    started: tuple[AnsweringHost, FlowActions, httpx.AsyncClient],
) -> None:
    """An organization's may; an agent's stands in paths."""
    host, _, client = started
    host.api = ApiPrincipal(organization_id="acme/eu", all_agents=True)
    for agent_id, status in (("a1", 202), ("a/1", 500)):
        host.agent_answer = Agent(id=agent_id, name="A", organization_id="acme/eu")
        answer = await client.post(CALL, json=BODY)
        assert answer.status_code == status, answer.text


ANSWERS: dict[str, tuple[str, list[tuple[Any, str]]]] = {
    "agent": (
        "agent_answer",
        [
            ({"id": "a1", "name": "A", "organization_id": "acme"}, "it is a dict"),
            ("a1", "it is a str"),
            (Agent(id="a1", name="A", organization_id=7), "organization_id is an int"),  # type: ignore[arg-type]
            (Agent(id="", name="A", organization_id="acme"), "id must not be empty"),
            (
                Agent(id="a1", name="A", organization_id="\ud800"),
                "organization_id must not hold a lone surrogate",
            ),
            (ApiPrincipal(organization_id="acme"), "it is an ApiPrincipal"),
        ],
    ),
    "api_principal": (
        "api",
        [
            ({"organization_id": "acme"}, "it is a dict"),
            (True, "it is a bool"),
            (
                DashboardPrincipal(organization_id="acme", user_id="u", user_name="U", may_change=True),
                "it is a DashboardPrincipal",
            ),
            (ApiPrincipal(organization_id="acme\0"), "organization_id must not hold a NUL"),
            (
                ApiPrincipal(organization_id="acme", agent_ids=["a1"]),  # type: ignore[arg-type]
                r"agent_ids is a list, not frozenset\[str\]",
            ),
            (ApiPrincipal(organization_id="acme", agent_ids=frozenset({1})), r"agent_ids\[0\] is an int"),  # type: ignore[arg-type]
            (
                ApiPrincipal(organization_id="acme", agent_ids=frozenset({"a\0"})),
                r"agent_ids\[0\] must not hold a NUL",
            ),
            (ApiPrincipal(organization_id=None), "organization_id is None"),  # type: ignore[arg-type]
        ],
    ),
    "dashboard_principal": (
        "principal",
        [
            ({"organization_id": "acme"}, "it is a dict"),
            ("ada", "it is a str"),
            (ApiPrincipal(organization_id="acme"), "it is an ApiPrincipal"),
            (
                DashboardPrincipal(organization_id="acme", user_id=1, user_name="U", may_change=True),  # type: ignore[arg-type]
                "user_id is an int",
            ),
            (
                DashboardPrincipal(organization_id="acme", user_id="u\0", user_name="U", may_change=True),
                "user_id must not hold a NUL",
            ),
        ],
    ),
}


@pytest.mark.parametrize("method", ANSWERS)
async def test_an_agent_or_a_principal_of_a_wrong_type_is_named(
    started: tuple[AnsweringHost, FlowActions, httpx.AsyncClient],
    caplog: pytest.LogCaptureFixture,
    method: str,
) -> None:
    """A dictionary is no Agent, its ids are ids, and nobody is let in by a principal that is none."""
    host, _, client = started
    attribute, answers = ANSWERS[method]
    for answer, fault in answers:
        setattr(host, attribute, answer)
        caplog.clear()
        if method == "dashboard_principal":
            refused(await client.get("/v1/webhooks/outbox"), caplog, method, fault)
        else:
            refused(await client.post(CALL, json=BODY), caplog, method, fault)


AGENTS: list[tuple[Any, str]] = [
    (None, "it is None"),
    ("a1", "it is a str"),
    ([{"id": "a1"}], r"\[0\] is a dict, not Agent"),
    ([Agent(id="a1", name=None, organization_id="acme")], r"\[0\]\.name is None"),  # type: ignore[arg-type]
    ({Agent(id="a1", name="A", organization_id="acme")}, "it is a set"),
]


async def test_agents_of_a_wrong_type_are_named(database_url: str, caplog: pytest.LogCaptureFixture) -> None:
    """The connection card asks for the agents that use the node."""
    provider = FakeChatProvider()
    token = provider.state.add_token(provider.state.workspaces[0])
    async with serve(provider.app) as url:
        host = AnsweringHost(adopting_settings(database_url, url, token.value))
        actions = FlowActions.load(host)
        transport = transport_of(actions)
        async with actions.lifespan(), httpx.AsyncClient(transport=transport, base_url="http://host") as client:
            await adopt(actions)
            for host.agents_answer, fault in AGENTS:
                caplog.clear()
                refused(await client.get("/integrations/chat/connection"), caplog, "agents_using", fault)
            host.agents_answer = (Agent(id="a1", name="A", organization_id="acme"),)
            assert (await client.get("/integrations/chat/connection")).status_code == 200
