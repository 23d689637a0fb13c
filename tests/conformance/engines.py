"""What the tests of flow engines share: a module run in the environment that a guide makes."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

from tests.docs.environments import INSTALL, shared, variables
from tests.docs.fences import ROOT, blocks_of
from tests.docs.tutorials import pip_lines


def python_of(guide: Path, packages: str, store: Path) -> Path:
    """Return the Python of the environment that a guide's pip lines make.

    Args:
        guide: the page.
        packages: further ones, as pip gets them.
        store: where environments are that pages share.
    """
    lines = [*pip_lines(blocks_of(guide)), f".venv/bin/pip install --quiet {packages}"]
    assert lines[0] == INSTALL
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
