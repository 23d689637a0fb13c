from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import product
from pathlib import Path
from typing import Any
from uuid import uuid4

import httpx
import pytest

from flowactions_conformance.reference_host import ReferenceApp, Sample, create_app
from flowactions_conformance.reference_host import store as tables
from flowactions_conformance.serving import serve
from flowactions_hookspecs import (
    Deferred,
    Eager,
    Node,
    NodeResult,
    NodeType,
    Walk,
    hookimpl,
)
from flowactions_plugin.settings.model import read_settings

NEW = {"if-none-match": "*"}
SAMPLE = Sample(
    webhook_url="http://127.0.0.1:1/hooks",
    webhook_secret="shh",
    channel_id="C1",
    dashboard_token="ada-token",
    api_token="api-token",
)


class Probe:
    """A plugin that records what runs; a node whose config says so halts."""

    def __init__(self) -> None:
        self.reached: list[tuple[Walk, Node]] = []

    @hookimpl
    def flowactions_node_types(self) -> list[NodeType]:
        return [NodeType(name="probe", title="Probe", description="Records.", reach=self.reach)]

    async def reach(self, walk: Walk, node: Node) -> NodeResult:
        self.reached.append((walk, node))
        return NodeResult(status="sent", halt=node.config.get("halt", False))


class Running:
    def __init__(self, made: ReferenceApp, probe: Probe, client: httpx.AsyncClient) -> None:
        self.made = made
        self.host = made.host
        self.probe = probe
        self.client = client

    async def make_flow(self, kind: str, *items: dict[str, Any]) -> str:
        body = {"name": "F", "agentId": "acme-support", "kind": kind, "items": list(items)}
        flow_id = uuid4().hex
        answer = await self.client.put(f"/api/flows/{flow_id}", json=body, headers=NEW)
        assert answer.status_code == 201, answer.text
        return flow_id

    async def open(self, flow_id: str) -> dict[str, Any]:
        body = {"userId": "u1", "content": "hello"}
        answer = await self.client.post(f"/run/flows/{flow_id}/open", json=body)
        turn: dict[str, Any] = answer.json()["data"]
        return turn

    async def next(self, turn: dict[str, Any], came_from: Any = ...) -> dict[str, Any]:
        step = turn["step"] and turn["step"]["id"]
        body = {"from": step if came_from is ... else came_from}
        answer = await self.client.post(f"/run/sessions/{turn['session']}/next", json=body)
        following: dict[str, Any] = answer.json()["data"]
        return following

    async def results(self, flow_id: str) -> list[tuple[str, str]]:
        runs = (await self.client.get(f"/api/flows/{flow_id}/runs")).json()["data"]
        return [(result["nodeId"], result["status"]) for result in runs[0]["results"]]


@asynccontextmanager
async def running(directory: Path, probe: Probe | None = None) -> AsyncIterator[Running]:
    probe = probe or Probe()
    made = create_app({}, directory / "host.db", sample=SAMPLE, plugins=[probe])
    async with serve(made.app) as url:
        headers = {"authorization": "Bearer ada-token"}
        async with httpx.AsyncClient(base_url=url, headers=headers, timeout=300) as client:
            yield Running(made, probe, client)


@pytest.fixture
async def run(tmp_path: Path) -> AsyncIterator[Running]:
    async with running(tmp_path) as started:
        yield started


def step(name: str) -> dict[str, Any]:
    return {"id": name, "kind": "step", "title": name, "text": ""}


def action(name: str, **config: Any) -> dict[str, Any]:
    return {"id": name, "kind": "action", "type": "probe", "config": config}


class TestWalker:
    async def test_a_single_shot_flow_is_walked_in_order_when_it_is_opened(self, run: Running) -> None:
        """Every node is reached eagerly, with the walk of this run, before the answer is given (§3.2)."""
        flow_id = await run.make_flow("single_shot", action("a"), step("s"), action("b"))
        turn = await run.open(flow_id)
        assert ([shown["id"] for shown in turn["steps"]], turn["done"]) == (["s"], True)
        assert [node.id for _, node in run.probe.reached] == ["a", "b"]
        (walk, _), (second, _) = run.probe.reached
        assert (walk.organization_id, walk.agent_id, walk.flow_id) == ("acme", "acme-support", flow_id)
        assert (walk.user_id, walk.content, walk.pacing) == ("u1", "hello", Eager())
        assert walk.run_id == second.run_id
        await run.open(flow_id)
        assert run.probe.reached[2][0].run_id != walk.run_id

    async def test_a_client_paced_flow_fires_as_the_user_gets_there(self, run: Running) -> None:
        """Opening records; each next fires what precedes that step; the end is a step, too (§3.2)."""
        flow_id = await run.make_flow(
            "client_paced", step("s1"), action("a"), action("b"), step("s2"), action("c")
        )
        turn = await run.open(flow_id)
        assert (turn["step"]["id"], turn["done"]) == ("s1", False)
        assert run.probe.reached == []
        assert await run.results(flow_id) == [(name, "recorded") for name in "abc"]
        turn = await run.next(turn)
        assert turn["step"]["id"] == "s2"
        assert (await run.results(flow_id))[3:] == [("a", "sent"), ("b", "sent")]
        turn = await run.next(turn)
        assert (turn["step"], turn["done"]) == (None, True)
        assert (await run.results(flow_id))[5:] == [("c", "sent")]
        assert [walk.pacing for walk, _ in run.probe.reached] == [
            Deferred("s2"),
            Deferred("s2"),
            Deferred(None),
        ]
        assert await run.next(turn) == turn

    async def test_a_halt_at_a_deferred_node_ends_the_run(self, run: Running) -> None:
        """It stays ended, and the browser learns only that it is done."""
        flow_id = await run.make_flow("client_paced", step("s1"), action("a", halt=True), step("s2"))
        turn = await run.open(flow_id)
        ended = await run.next(turn)
        assert (ended["step"], ended["done"]) == (None, True)
        assert set(ended) == {"session", "step", "steps", "done"}
        assert (await run.next(turn))["done"]


class TestDashboard:
    async def test_the_palette_holds_every_node_type(self, run: Running) -> None:
        """What plugins declare is what the editor gets."""
        types = (await run.client.get("/api/node-types")).json()["data"]
        assert [one["name"] for one in types] == ["chat_message", "webhook", "probe"]
        assert types[0]["available"] is False

    async def test_strangers_are_refused(self, run: Running) -> None:
        """Garbage and a token of another kind are all 401."""
        for token, path in product(
            ("nonsense", "api-token", "é"), ("/api/me", "/api/flows", "/api/node-types")
        ):
            headers = {"authorization": f"Bearer {token}".encode()}
            assert (await run.client.get(path, headers=headers)).status_code == 401  # type: ignore[arg-type]

    async def test_signing_in_and_out(self, run: Running) -> None:
        """A session cookie works for host and plugin routes, and signing out ends it in the browser."""
        async with httpx.AsyncClient(base_url=run.client.base_url, timeout=300) as browser:
            assert (await browser.post("/login", json={"userId": "nobody"})).status_code == 404
            signed_in = await browser.post("/login", json={"userId": "ada"})
            assert "httponly" in signed_in.headers["set-cookie"].lower()
            assert (await browser.get("/api/me")).json()["data"]["organizationName"] == "Acme"
            assert (await browser.get("/v1/webhooks/outbox")).status_code == 200
            await browser.post("/logout")
            assert (await browser.get("/api/me")).status_code == 401

    async def test_another_organizations_flow_is_not_there(self, run: Running) -> None:
        """Grace of Globex sees nothing of Acme."""
        flow_id = await run.make_flow("single_shot")
        async with httpx.AsyncClient(base_url=run.client.base_url, timeout=300) as browser:
            await browser.post("/login", json={"userId": "grace"})
            assert (await browser.get("/api/flows")).json()["data"] == []
            for method, path in (
                ("GET", f"/api/flows/{flow_id}"),
                ("PUT", f"/api/flows/{flow_id}"),
                ("GET", f"/api/flows/{flow_id}/runs"),
                ("DELETE", f"/api/flows/{flow_id}"),
            ):
                body = {"name": "x", "agentId": "globex-support", "kind": "single_shot"}
                assert (await browser.request(method, path, json=body)).status_code == 404

    async def test_an_author_follows_the_run_of_a_session(self, run: Running) -> None:
        """It alone, with the items as they ran and no config, and how far the user is."""
        flow_id = await run.make_flow("client_paced", step("s1"), action("a", token="t"), step("s2"))
        turn = await run.open(flow_id)
        await run.open(flow_id)
        await run.next(turn)
        path = f"/api/flows/{flow_id}/runs"
        (followed,) = (await run.client.get(path, params={"session": turn["session"]})).json()["data"]
        assert [(each["id"], each["kind"]) for each in followed["items"]] == [
            ("s1", "step"),
            ("a", "action"),
            ("s2", "step"),
        ]
        assert not any("config" in each for each in followed["items"])
        assert (followed["kind"], followed["position"]) == ("client_paced", 1)
        assert len((await run.client.get(path)).json()["data"]) == 2

    async def test_a_deleted_flow_is_gone_with_its_runs(self, run: Running) -> None:
        """Nobody can open it or go on in it, and its nodes have no secret any more; another flow stays."""
        flow_id = await run.make_flow("client_paced", step("s1"), action("a"), step("s2"))
        other = await run.make_flow("client_paced", step("s1"), action("a"), step("s2"))
        turn, stays = await run.open(flow_id), await run.open(other)
        turn = await run.next(turn)
        whatever = {"if-match": "*"}
        assert (await run.client.delete(f"/api/flows/{flow_id}", headers=whatever)).status_code == 204
        for path in (f"/api/flows/{flow_id}", f"/api/flows/{flow_id}/runs"):
            assert (await run.client.get(path)).status_code == 404
        assert (await run.client.delete(f"/api/flows/{flow_id}")).status_code == 404
        onward = {"from": turn["step"]["id"]}
        answer = await run.client.post(f"/run/sessions/{turn['session']}/next", json=onward)
        assert answer.status_code == 404
        assert await run.host.node("acme", flow_id, "a") is None
        assert (await run.next(stays))["step"]["id"] == "s2"
        assert await run.results(other) == [("a", "recorded"), ("a", "sent")]

    async def test_who_may_only_look_deletes_nothing(self, run: Running) -> None:
        """A reader's request is refused, and so is one without a session."""
        await run.host.store.put(tables.people, id="rea", name="Rea", organization_id="acme", may_change=False)
        async with httpx.AsyncClient(base_url=run.client.base_url, timeout=300) as browser:
            assert (await browser.delete("/api/flows/order-placed")).status_code == 401
            await browser.post("/login", json={"userId": "rea"})
            assert (await browser.delete("/api/flows/order-placed")).status_code == 403
        assert (await run.client.get("/api/flows/order-placed")).status_code == 200

    async def test_missing_flows_and_sessions_are_404(self, run: Running) -> None:
        """The widget's routes say so when there is nothing."""
        assert (await run.client.post("/run/flows/none/open", json={})).status_code == 404
        assert (await run.client.post("/run/sessions/none/next", json={})).status_code == 404


class TestHostMethods:
    async def test_a_trigger_that_fires_on_the_server_is_dispatched(self, run: Running) -> None:
        """Firing a trigger gives a receipt; an action that is not there is skipped with a reason."""
        path = "/api/experiences/survey/triggers/{}/actions/0/fire"
        receipt = (await run.client.post(path.format("submitted"))).json()
        assert receipt["status"] == "skipped"
        assert receipt["reason"] == "blocked_url"
        receipt = (await run.client.post(path.format("none"))).json()
        assert receipt["reason"] == "unknown_action"
        assert (await run.client.post("/api/experiences/x/triggers/t/actions/0/fire")).status_code == 404


async def test_processes_that_start_at_once_make_the_tables_once(database_url: str) -> None:
    """None of them fails because another one was quicker."""
    url = read_settings({"FLOWACTIONS_DATABASE_URL": database_url}).database_url
    opened = [tables.Store(url) for _ in range(8)]

    async def opens(store: tables.Store) -> None:
        async with store.open():
            assert await store.one(tables.agents, id="nobody") is None

    await asyncio.gather(*map(opens, opened))


async def test_writers_of_a_file_take_turns(tmp_path: Path) -> None:
    """Whoever comes first writes first: SQLite itself gives its lock to any of those who wait."""
    store = tables.Store(f"sqlite+aiosqlite:///{tmp_path / 'host.db'}")
    written: list[int] = []

    async def write(number: int) -> None:
        await store.put(tables.organizations, id=str(number), name="")
        written.append(number)

    async with store.open():
        await asyncio.gather(*map(write, range(50)))
    assert written == list(range(50))
