"""Builds a plugin's wheel as its author would publish it, and installs it with pip."""

from __future__ import annotations

import base64
import hashlib
import subprocess
import sys
import zipfile
from pathlib import Path

CRM_SOURCE = (Path(__file__).parent / "crm_plugin" / "flowactions_crm.py").read_text()


def install(target: Path, distribution: str, source: str, *, plugin: str | None = None) -> None:
    """Build a wheel with one module that is a plugin, and install it into a directory.

    Args:
        target: the directory, for ``PYTHONPATH``.
        distribution: the distribution's name, and with underscores the module's.
        source: of the module.
        plugin: the plugin's name in the entry-point group; ``None``: the distribution's.
    """
    module = distribution.replace("-", "_")
    info = f"{module}-1.0.dist-info"
    files = {
        f"{module}.py": source,
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {distribution}\nVersion: 1.0\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        f"{info}/entry_points.txt": f"[flowactions]\n{plugin or distribution} = {module}\n",
    }
    record = [f"{path},sha256={_digest(text)},{len(text.encode())}" for path, text in files.items()]
    files[f"{info}/RECORD"] = "\n".join([*record, f"{info}/RECORD,,"]) + "\n"
    wheel = target.parent / f"{module}-1.0-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        for path, text in files.items():
            archive.writestr(path, text)
    pip = [
        sys.executable,
        "-m",
        "pip",
        "install",
        "--quiet",
        "--no-index",
        "--no-deps",
        "--target",
        str(target),
    ]
    subprocess.run([*pip, str(wheel)], check=True, timeout=300)


def install_crm(target: Path) -> None:
    """Install the CRM's plugin."""
    install(target, "flowactions-crm", CRM_SOURCE, plugin="crm")


def _digest(text: str) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).decode().rstrip("=")
