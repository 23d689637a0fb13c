from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.packaging.wheels import install

pytestmark = pytest.mark.ci

PLUGIN = """
from flowactions_hookspecs import NodeResult, NodeType, hookimpl


async def reach(walk, node):
    return NodeResult(node_id=node.id, status="sent", message=f"faxed {walk.content}")


@hookimpl
def flowactions_node_types():
    return [NodeType(name="fax", title="Fax", description="Sends a fax.", reach=reach)]
"""

BROKEN_PLUGIN = "import no_such_module\n"

HOST = """
import asyncio, json, pathlib, sys
import httpx
from flowactions_conformance.reference_host import Sample, create_app
from flowactions_conformance.serving import serve

ITEMS = [{"id": "f", "kind": "action", "type": "fax", "config": {}}]

async def main():
    sample = Sample(webhook_url="", webhook_secret="", channel_id="", dashboard_token="t")
    made = create_app({}, pathlib.Path(sys.argv[1]) / "host.db", sample=sample)
    async with serve(made.app) as url:
        headers = {"authorization": "Bearer t"}
        async with httpx.AsyncClient(base_url=url, headers=headers) as client:
            types = (await client.get("/api/node-types")).json()["data"]
            flow = {"name": "F", "agentId": "acme-support", "kind": "single_shot", "items": ITEMS}
            flow_id = (await client.post("/api/flows", json=flow)).json()["data"]["id"]
            await client.post(f"/run/flows/{flow_id}/open", json={"content": "hello"})
            runs = (await client.get(f"/api/flows/{flow_id}/runs")).json()["data"]
    print(json.dumps([[one["name"] for one in types], runs[0]["results"]]))

asyncio.run(main())
"""


def run_host(packages: Path, directory: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", HOST, str(directory)],
        env={**os.environ, "PYTHONPATH": str(packages)},
        cwd=directory,
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )


def test_an_installed_plugin_adds_a_node_type_to_an_untouched_host(tmp_path: Path) -> None:
    """A third node type from another distribution is in the palette, and a flow runs it."""
    packages = tmp_path / "packages"
    install(packages, "fax-plugin", PLUGIN)
    done = run_host(packages, tmp_path)
    assert done.returncode == 0, done.stderr
    names, results = json.loads(done.stdout)
    assert sorted(names) == ["chat_message", "fax", "webhook"]
    assert [(result["status"], result["message"]) for result in results] == [("sent", "faxed hello")]


def test_an_installed_plugin_that_cannot_be_imported_is_named(tmp_path: Path) -> None:
    """The host does not start, and the error names plugin, distribution and cause."""
    packages = tmp_path / "packages"
    install(packages, "broken-plugin", BROKEN_PLUGIN)
    done = run_host(packages, tmp_path)
    assert done.returncode != 0
    assert (
        "PluginInvalid: plugin 'broken-plugin' of distribution 'broken-plugin' cannot be imported"
        in done.stderr
    )
    assert "No module named 'no_such_module'" in done.stderr


def test_two_installed_plugins_with_one_node_type_are_both_named(tmp_path: Path) -> None:
    """Two distributions that declare the same node type stop the host with both names."""
    packages = tmp_path / "packages"
    install(packages, "fax-plugin", PLUGIN)
    install(packages, "other-fax-plugin", PLUGIN)
    done = run_host(packages, tmp_path)
    assert "plugins 'fax-plugin' and 'other-fax-plugin' both declare the node type 'fax'" in done.stderr
