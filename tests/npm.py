"""Packages from npm, for tests that run another project's JavaScript."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest


def install(folder: Path, *packages: str, module: bool = True) -> None:
    """Install packages into a folder. The test is skipped where there is no npm, but not in CI.

    Args:
        folder: gets a ``package.json`` and ``node_modules``.
        packages: names with versions.
        module: whether scripts in the folder are ECMAScript modules.
    """
    if shutil.which("npm") is None:
        assert os.environ.get("CI") != "true", "in CI this must run: install Node.js and npm"
        pytest.skip("there is no npm on this machine")
    kind = ', "type": "module"' if module else ""
    (folder / "package.json").write_text(f'{{"private": true{kind}}}')
    command = ["npm", "install", "--silent", "--no-audit", "--no-fund", *packages]
    subprocess.run(command, cwd=folder, check=True, timeout=300)
