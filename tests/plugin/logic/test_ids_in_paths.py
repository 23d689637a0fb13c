"""Ids of agents and experiences in the path of the logic-webhook route, as servers hand them on."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx
import hypercorn.asyncio
import hypercorn.config
import pytest
from litestar import Litestar

from flowactions_conformance.serving import listen, serve, url_of
from flowactions_hookspecs import Agent, ApiPrincipal, FlowActions, LogicAction, LogicActionRef
from flowactions_plugin.errors import HostFailed
from flowactions_plugin.host_answers import ask
from tests.support import SmallHost, app_with_routes, development, transport_of
from tests.waiting import until

ODD = [
    *(
        "a b",
        "50%",
        "a%2Fb",
        "%",
        "a?b",
        "a#b",
        "a;b=c",
        "..a",
        "a..",
        "...",
        "a+b",
        "a&b",
        "a\\b",
        "{a}",
        "{a:int}",
        ":",
        "@",
        "~",
    ),
    *("Zoë", "日本", "\u202e", "😀" * 255, '"', "'", "\n", "\t", " ", " a ", "*", "a,b", "null", "Aa", "aA"),
]


class Noting(SmallHost):
    """Knows every agent, and notes which action it is asked for."""

    def __init__(self, settings: dict[str, str]) -> None:
        super().__init__(settings)
        self.api = ApiPrincipal(organization_id="acme", all_agents=True)
        self.asked: list[tuple[str, str]] = []

    async def agent(self, agent_id: str) -> Agent | None:
        return Agent(id=agent_id, name="A", organization_id="acme")

    async def logic_action(self, ref: LogicActionRef) -> LogicAction | None:
        self.asked.append((ref.agent_id, ref.experience_id))
        return LogicAction(url="http://127.0.0.1:9/")


@asynccontextmanager
async def hypercorned(app: Any) -> AsyncIterator[str]:
    """Serve by Hypercorn, which decodes paths in its own way."""
    with listen() as listener:
        url = url_of(listener)
    config = hypercorn.config.Config()
    config.bind = [url.removeprefix("http://")]
    stopping = asyncio.Event()
    server = asyncio.create_task(hypercorn.asyncio.serve(app, config, shutdown_trigger=stopping.wait))
    try:
        async with httpx.AsyncClient(trust_env=False, timeout=300) as client:

            async def answers() -> bool:
                try:
                    return (await client.get(f"{url}/integrations/health/live")).status_code == 200
                except httpx.ConnectError:
                    return False

            await until(answers)
        yield url
    finally:
        stopping.set()
        await server


def wrapped(actions: FlowActions) -> Any:
    return actions.wrap(Litestar([], openapi_config=None, logging_config=None), lifespan=False)


@pytest.mark.parametrize("served", [serve, hypercorned])
@pytest.mark.parametrize("make", [app_with_routes, wrapped])
async def test_every_id_without_a_slash_arrives_as_it_is(
    make: Callable[[FlowActions], Any],
    served: Callable[[Any], AbstractAsyncContextManager[str]],
    tmp_path: Path,
) -> None:
    """Percent-encoded by the caller, decoded once: by two servers, around a Litestar app and a wrapped one."""
    host = Noting(development(f"sqlite:///{tmp_path / 'f.db'}", FLOWACTIONS_HOST_WORKER="off"))
    actions = FlowActions.load(host)
    call = {"source": "experience_trigger", "actionIndex": 0, "triggerRowId": "t"}
    async with (
        actions.lifespan(),
        served(make(actions)) as url,
        httpx.AsyncClient(base_url=url, trust_env=False, timeout=300) as client,
    ):
        for id_ in ODD:
            path = f"/v1/agents/{quote(id_, safe='')}/experiences/{quote(id_, safe='')}/logic-webhook"
            answer = await client.post(path, json={**call, "idempotencyKey": "k"})
            assert answer.status_code == 202, (id_, answer.text)
            assert host.asked[-1] == (id_, id_)


async def test_a_host_that_answers_with_such_an_agent_is_told(tmp_path: Path) -> None:
    """The error names class, method and field."""
    host = SmallHost(development(f"sqlite:///{tmp_path / 'f.db'}", FLOWACTIONS_HOST_WORKER="off"))
    for agent_id in ("a/b", "..", "."):
        host.agents = [Agent(id=agent_id, name="A", organization_id="acme")]
        with pytest.raises(HostFailed, match=r"SmallHost\.agents_using .*: it\[0\]\.id must not hold a slash"):
            await ask(host, "agents_using", "acme", "webhook")
        host.api = ApiPrincipal(organization_id="acme", agent_ids=frozenset({agent_id}))
        with pytest.raises(
            HostFailed, match=r"SmallHost\.api_principal .*: it\.agent_ids\[0\] must not hold a slash"
        ):
            await ask(host, "api_principal", None)


async def test_an_editors_draft_of_such_an_agent_is_refused(tmp_path: Path) -> None:
    """With a 400 that names the field, as every id that cannot be used."""
    actions = FlowActions.load(
        SmallHost(development(f"sqlite:///{tmp_path / 'f.db'}", FLOWACTIONS_HOST_WORKER="off"))
    )
    async with (
        actions.lifespan(),
        httpx.AsyncClient(transport=transport_of(actions), base_url="http://host") as client,
    ):
        for agent_id, status in (("a/b", 400), (".", 400), ("..", 400), ("..a", 404), ("agent-1", 200)):
            body = {"agentId": agent_id, "node": {"id": "n", "type": "webhook", "config": {}}}
            answer = await client.post("/integrations/nodes/check", json=body)
            assert answer.status_code == status, (agent_id, answer.text)
            assert status != 400 or answer.json()["errors"][0]["path"] == "agentId"
