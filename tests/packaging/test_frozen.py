"""The plugin within a build that leaves out the kit, or the metadata, as tools that freeze an app do."""

from __future__ import annotations

import site
import subprocess
import sys
from pathlib import Path

import pytest

import flowactions_hookspecs
import flowactions_plugin

pytestmark = pytest.mark.ci

METADATA = "flowactions_plugin-"

HOST = """
import asyncio, sqlite3, sys
sys.path[:0] = [sys.argv[1]]
from flowactions_hookspecs import FlowActions, Host
import flowactions_plugin.plugin

class Small(Host):
    settings = {"FLOWACTIONS_DATABASE_URL": "sqlite:///small.db"}
    async def dashboard_principal(self, request): return None
    async def node(self, organization_id, flow_id, node_id): return None

async def main():
    actions = FlowActions.load(Small(), plugins=[flowactions_plugin.plugin] if sys.argv[2] == "given" else [])
    async with asyncio.timeout(300), actions.lifespan():
        while not (rows := sqlite3.connect("small.db").execute("SELECT version FROM flowactions_workers").fetchall()):
            await asyncio.sleep(0.01)
    print(actions.plugin_names, rows[0][0])

asyncio.run(main())
"""


def started(build: Path, *, metadata: bool, kit: str | None = None) -> subprocess.CompletedProcess[str]:
    """Start a host in an environment that holds the plugin, the contract and what they need, and no more.

    Args:
        build: where the environment is made.
        metadata: whether the distribution's metadata are in it, which name the entry points of plugin and kit.
        kit: a module of the kit; ``None``: it is left out.
    """
    (environment := build / "environment").mkdir()
    for folder in map(Path, site.getsitepackages()):
        for each in folder.iterdir():
            if "flowactions" not in each.name or (metadata and each.name.startswith(METADATA)):
                (environment / each.name).symlink_to(each)
    for package in (flowactions_hookspecs, flowactions_plugin):
        folder = Path(package.__path__[0])
        (environment / folder.name).symlink_to(folder)
    if kit is not None:
        (environment / "flowactions_conformance").mkdir()
        (environment / "flowactions_conformance" / "__init__.py").write_text(kit)
    return subprocess.run(
        [sys.executable, "-I", "-S", "-c", HOST, str(environment), "installed" if metadata else "given"],
        cwd=build,
        capture_output=True,
        text=True,
        check=False,
    )


def test_the_kit_may_be_left_out(tmp_path: Path) -> None:
    """Its entry point is still in the metadata: the plugin is found and starts, and no kit is among the plugins."""
    ended = started(tmp_path, metadata=True)
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.startswith("('flowactions-plugin',) ")
    assert "unknown" not in ended.stdout


def test_the_metadata_may_be_left_out(tmp_path: Path) -> None:
    """The host gives the plugin itself; the version of its processes is then not known."""
    ended = started(tmp_path, metadata=False)
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout == "('flowactions_plugin.plugin',) unknown\n"


def test_a_broken_kit_is_an_error(tmp_path: Path) -> None:
    """One that is there and cannot be imported is no kit that was left out: plugin, distribution and cause are named."""
    ended = started(tmp_path, metadata=True, kit="import no_such_module")
    assert "No module named 'no_such_module'" in ended.stderr
    assert (
        "plugin 'flowactions-conformance' of distribution 'flowactions-plugin' cannot be imported"
        in ended.stderr
    )
