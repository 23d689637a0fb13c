"""Environments of engines, and modules that run in them."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Final

from tests.docs.environments import INSTALL, shared, variables
from tests.docs.fences import ROOT, blocks_of
from tests.docs.tutorials import pip_lines

PACKAGES: Final = {
    "dbos": "pytest 'psycopg[binary]'",
    "langgraph": "pytest",
    "spiffworkflow": "pytest flask",
}
"""Engine → what its tests need beside what its guide installs."""


def guide_of(engine: str) -> Path:
    """Return the page of an engine."""
    return ROOT / "docs" / "how-to" / f"use-with-{engine}.md"


def lines_of(engine: str) -> list[str]:
    """Return the lines of pip of the one environment that all tests of an engine share, but that of its guide."""
    lines = pip_lines(blocks_of(guide_of(engine)))
    assert lines[0] == INSTALL
    return [*lines, f".venv/bin/pip install --quiet {PACKAGES[engine]}"]


def python_of(engine: str, store: Path) -> Path:
    """Return the Python of an environment with an engine; ``store`` is where environments are that tests share."""
    return shared(lines_of(engine), store) / "bin" / "python"


def run(
    python: Path,
    module: str,
    *arguments: str,
    within: Path,
    clone: Path | None = ROOT,
    settings: Mapping[str, str] = MappingProxyType({}),
) -> subprocess.CompletedProcess[str]:
    """Run a module in an environment, with this clone's tests or without."""
    return subprocess.run(
        [python, "-m", module, *arguments],
        cwd=within,
        env={**variables(), **({"PYTHONPATH": str(clone)} if clone else {}), **settings},
        capture_output=True,
        text=True,
        check=False,
    )
