"""A second author's plugin, installed as a wheel: in the reference host, and in `flowactions worker`."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.packaging.wheels import install_crm
from tests.recorder import Request, recorder
from tests.waiting import until

pytestmark = pytest.mark.ci

REFERENCE_HOST = """
import asyncio, json, pathlib, sys
import httpx
from flowactions_conformance.reference_host import Sample, create_app
from flowactions_conformance.serving import serve
from flowactions_hookspecs import Node, NodeDraft, Walk

ITEMS = [
    {"id": "c1", "kind": "step", "title": "One", "text": "1"},
    {"id": "up", "kind": "action", "type": "crm_upsert", "config": {"list": "leads"}},
    {"id": "c2", "kind": "step", "title": "Two", "text": "2"},
    {"id": "row", "kind": "action", "type": "crm_contact", "config": {}},
]

async def main():
    sample = Sample(webhook_url="", webhook_secret="", channel_id="", dashboard_token="t")
    settings = {"CRM_URL": "http://127.0.0.1:9/", "FLOWACTIONS_ENVIRONMENT": "development"}
    made = create_app(settings, pathlib.Path(sys.argv[1]) / "host.db", sample=sample)
    node = Node(id="n", type="crm_upsert", config={"list": "none", "crmToken": "hush"})
    draft = NodeDraft(organization_id="acme", agent_id="acme-support", node=node)
    walk = Walk(organization_id="acme", agent_id="a", flow_id="f", run_id="r")
    async with serve(made.app) as url:
        async with httpx.AsyncClient(base_url=url, headers={"authorization": "Bearer t"}, timeout=300) as client:
            types = {one["name"]: one for one in (await client.get("/api/node-types")).json()["data"]}
            pages = [(await client.get(types["crm_upsert"]["pickers"]["list"], params=given)).json()
                     for given in ({}, {"cursor": "2"}, {"search": "lead"})]
            flow = {"name": "F", "agentId": "acme-support", "kind": "client_paced", "items": ITEMS}
            await client.put("/api/flows/f", json=flow, headers={"if-none-match": "*"})
            opened = (await client.post("/run/flows/f/open", json={})).json()
        problems = [one.code for one in await made.actions.check(draft)]
        preview = await made.actions.preview(draft, walk)
    print(json.dumps([sorted(types), pages, problems, preview.headers[0].value]))

asyncio.run(main())
"""

SHOP = """
import os
from sqlalchemy.ext.asyncio import create_async_engine
from flowactions_hookspecs import Host, Node
from flowactions_plugin.settings.model import read_settings


class Shop(Host):
    def __init__(self):
        self.settings = os.environ
        self.database = create_async_engine(read_settings(os.environ).database_url)

    async def dashboard_principal(self, request):
        return None

    async def node(self, organization_id, flow_id, node_id):
        return Node(id=node_id, type="crm_note", config={"crmToken": "hush", "list": "changed since"})


def make():
    return Shop()
"""

RECORD = """
import asyncio, json
from sqlalchemy import text
from flowactions_hookspecs import Deferred, FlowActions, Node, Walk
import shop


async def main():
    host = shop.make()
    actions = FlowActions.load(host)
    walk = Walk(organization_id="acme", agent_id="a", flow_id="f", run_id="r", content="hello", pacing=Deferred("s"))
    async with actions.lifespan(tasks=False):
        for kind in ("crm_upsert", "crm_contact", "crm_note"):
            node = Node(id=kind, type=kind, config={"list": "leads", "crmToken": "of the editor"})
            print((await actions.reach(walk, node)).status)
        async with host.database.begin() as connection:  # as if a process had got there and was killed
            rows = (await connection.execute(text("SELECT node FROM flowactions_deferred ORDER BY id"))).scalars()
            print(json.dumps([json.loads(row)["config"] for row in rows]))
            await connection.execute(text("UPDATE flowactions_deferred SET held_until = 1, token = 'gone', holds = 1"))


asyncio.run(main())
"""


@pytest.fixture(scope="module")
def packages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory in which the plugin is installed."""
    target = tmp_path_factory.mktemp("crm") / "packages"
    install_crm(target)
    (target / "shop.py").write_text(SHOP)
    return target


def run(packages: Path, source: str, *arguments: str, **settings: str) -> subprocess.CompletedProcess[str]:
    """Run a program where the plugin is installed."""
    return subprocess.run(
        [sys.executable, "-c", source, *arguments],
        env={**os.environ, "PYTHONPATH": str(packages), **settings},
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )


def test_the_reference_host_offers_it_as_it_is(packages: Path, tmp_path: Path) -> None:
    """Palette, picker with pages and search, check, and a preview without the secret; a flow with its nodes opens."""
    done = run(packages, REFERENCE_HOST, str(tmp_path))
    assert done.returncode == 0, done.stderr
    types, pages, problems, authorization = json.loads(done.stdout)
    assert types == ["chat_message", "crm_contact", "crm_note", "crm_upsert", "webhook"]
    assert [([choice["id"] for choice in page["data"]], page["nextCursor"]) for page in pages] == [
        (["customers", "leads"], "2"),
        (["partners"], None),
        (["leads"], None),
    ]
    assert problems == ["no_list"]
    assert "hush" not in authorization


async def test_the_worker_runs_delivers_and_signs_its_nodes(packages: Path, database_url: str) -> None:
    """What a killed host left behind is run by `flowactions worker`, with the secret fields that the host has now."""
    async with recorder() as crm:
        settings = {
            "FLOWACTIONS_ENVIRONMENT": "development",
            "FLOWACTIONS_DATABASE_URL": database_url,
            "FLOWACTIONS_HOST_WORKER": "off",
            "FLOWACTIONS_TICK_SECONDS": "0.1",
            "CRM_URL": crm.url,
        }
        done = await asyncio.to_thread(run, packages, RECORD, **settings)
        assert done.returncode == 0, done.stderr
        *statuses, configs = done.stdout.splitlines()
        assert statuses == ["recorded"] * 3
        assert json.loads(configs)[0] == {"list": "leads"}
        worker = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "flowactions_plugin.cli", "worker", "--host", "shop:make"),
            env={**os.environ, "PYTHONPATH": str(packages), **settings},
        )
        try:
            await until(lambda: len(crm.requests) >= 2)
        finally:
            worker.terminate()
            assert await worker.wait() == 0
    by_kind = {json.loads(request.body)["node"]: request for request in crm.requests}
    assert set(by_kind) == {"crm_upsert", "crm_note"}
    assert by_kind["crm_note"].header("authorization") == "Bearer hush"
    assert json.loads(by_kind["crm_note"].body)["said"] == "hello"
    assert signed(by_kind["crm_upsert"], "secret of leads")


def signed(request: Request, secret: str) -> Any:
    """Tell whether a delivery is signed with a secret (§5.3)."""
    signed_text = request.header("x-service-webhook-timestamp").encode() + b"." + request.body
    expected = hmac.new(secret.encode(), signed_text, hashlib.sha256).hexdigest()
    return request.header("x-service-webhook-signature") == f"v1,{expected}"
