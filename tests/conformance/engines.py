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

PROFILES: Final = "core, pacing, loops, editing, logic, tenancy, durability, inbound, scale"
"""Those that each engine has."""


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


def assert_proved(python: Path, host: str, within: Path) -> None:
    """Run the kit over the host of an engine.

    Args:
        python: of the engine's environment.
        host: the package of the host.
        within: the working directory.
    """
    done = run(python, "flowactions_conformance", "run", f"{host}.host:make_host", within=within)
    assert done.returncode == 0, done.stdout
    assert f"PROVED for contract 1.0: {PROFILES}" in done.stdout, done.stdout
