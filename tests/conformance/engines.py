"""Environments of engines, and modules that run in them."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

from tests.docs.environments import INSTALL, shared, variables
from tests.docs.fences import ROOT, blocks_of
from tests.docs.tutorials import pip_lines


def python_of(guide: Path, packages: str, store: Path) -> Path:
    """Return the Python of an environment with an engine.

    Args:
        guide: installs the engine.
        packages: what a host needs beside, as pip takes them; nothing, if empty.
        store: where environments are that tests share.
    """
    lines = pip_lines(blocks_of(guide))
    assert lines[0] == INSTALL
    if packages:
        lines.append(f".venv/bin/pip install --quiet {packages}")
    return shared(lines, store) / "bin" / "python"


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
