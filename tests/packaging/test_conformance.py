"""The kit, installed by pip in an environment of its own."""

from __future__ import annotations

import json
import subprocess
from collections import defaultdict
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from tests.docs.environments import INSTALL, shared
from tests.packaging.foreign_project import FILES
from tests.packaging.versions import outside_pytest

pytestmark = pytest.mark.ci

ROOT = Path(__file__).parents[2]
SAFETY_SECONDS = 600
WITHOUT_PYTEST = """
import sys
sys.modules["pytest"] = None
from flowactions_conformance.__main__ import main
sys.exit(main(sys.argv[1:]))
"""


def run(*command: str | Path, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command,
        cwd=cwd,
        env=outside_pytest(),
        capture_output=True,
        text=True,
        check=False,
        timeout=SAFETY_SECONDS,
    )


@pytest.mark.ci
def test_the_kit_in_a_foreign_project(tmp_path: Path, store: Path) -> None:
    """It runs without pytest, and nothing that a project sets for its own tests changes a result.

    These are asyncio's auto mode, warnings as errors, xdist, random order, another loop policy
    and renamed patterns; the checks run as one line in a test file.
    """
    plugins = ".venv/bin/pip install --quiet pytest pytest-asyncio pytest-xdist pytest-randomly"
    python = shared([INSTALL, plugins], store) / "bin" / "python"
    project = tmp_path / "project"
    project.mkdir()
    for name, text in FILES.items():
        (project / name).write_text(text)

    done = run(python, "-c", WITHOUT_PYTEST, "run", "shop:make_host", "--check", "LOAD", cwd=project)
    assert done.returncode == 0, done.stdout + done.stderr

    options = ["--junitxml", "junit.xml", "-n", "2"]
    done = run(python, "-m", "pytest", *options, cwd=project)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "not claimed: the host does not claim tenancy, so nothing is proved of it" in done.stdout

    report = json.loads((project / "out" / "report.json").read_text())
    statuses = {result["id"]: result["status"] for result in report["results"]}
    assert statuses == {"LOAD-1": "pass", "EAGER-2": "pass", "PACING-4": "pass", "TENANCY-1": "not_claimed"}
    cases = defaultdict(list)
    for case in ET.parse(project / "junit.xml").iter("testcase"):  # noqa: S314  pytest wrote it
        cases[case.get("name")].append([child.tag for child in case if child.tag != "properties"])
    assert cases["test[EAGER-2-delivers-a-webhook]"] == [[]]
    assert cases["test[TENANCY-1-deliveries-are-their-organizations]"] == [["skipped"]]
    assert cases["verify_that_asyncio_is_on"] == [[]]
