"""Engines that people already use, as hosts: each in an environment of its own, made as its guide says."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.docs.environments import INSTALL, shared, variables
from tests.docs.fences import ROOT, blocks_of
from tests.docs.tutorials import follow, pip_lines

pytestmark = pytest.mark.ci

GUIDE = ROOT / "docs" / "how-to" / "use-with-langgraph.md"
HOST = "tests.conformance.hosts.langgraph"
PACKAGES = "langgraph-checkpoint-postgres 'psycopg[binary]'"
"""What the host needs beside what the guide installs."""


@pytest.fixture(scope="module")
def python(store: Path) -> Path:
    """The Python of an environment with LangGraph."""
    lines = [*pip_lines(blocks_of(GUIDE)), f".venv/bin/pip install --quiet {PACKAGES}"]
    assert lines[0] == INSTALL
    return shared(lines, store) / "bin" / "python"


def run(python: Path, module: str, *arguments: str, within: Path) -> subprocess.CompletedProcess[str]:
    """Run a module in that environment."""
    return subprocess.run(
        [python, "-m", module, *arguments],
        cwd=within,
        env={**variables(), "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )


def test_its_guide_can_be_followed(tmp_path: Path, store: Path) -> None:
    """Literally, in an empty folder."""
    follow(GUIDE, tmp_path, store)


def test_what_it_runs_again_has_one_event_id(python: Path, tmp_path: Path) -> None:
    """After a kill before the checkpoint, a resume and time travel: the same event again, or with ``before`` nothing."""
    done = run(python, f"{HOST}.repeated", str(tmp_path), within=tmp_path)
    assert done.returncode == 0, done.stderr
    sent = json.loads(done.stdout)
    assert {name: (len(ids), len(set(ids))) for name, ids in sent.items()} == {
        "at-once": (3, 1),
        "before-the-step": (1, 1),
        "at-the-end": (1, 1),
    }


@pytest.mark.parametrize(
    ("database", "selection"),
    [
        ("sqlite", ["--check", "PACING"]),
        *(pytest.param(each, [], marks=pytest.mark.full) for each in ("sqlite", "postgresql")),
    ],
    ids=["sqlite-pacing", "sqlite", "postgresql"],
)
def test_the_kit_proves_it(
    database: str, selection: Sequence[str], python: Path, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """In each of its profiles; `.ci/run` tries one."""
    options = [*selection]
    if database == "postgresql":
        options += ["--database", request.getfixturevalue("postgres_server")]
    done = run(python, "flowactions_conformance", "run", f"{HOST}.host:make_host", *options, within=tmp_path)
    assert done.returncode == 0, done.stdout
    assert (
        "PASSED" if selection else "PROVED for contract 1.0: core, pacing, tenancy, durability, scale"
    ) in done.stdout
