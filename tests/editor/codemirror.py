"""Bundles CodeMirror for the reference host's editor: ``python -m tests.editor.codemirror --write``.

The packages and their versions are named in ``codemirror.json``, all of them, so that the same bundle is built again.

A lock file would hold addresses.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Final, NamedTuple

HERE: Final = Path(__file__).parent
VERSIONS: Final = HERE / "codemirror.json"
VENDOR: Final = HERE.parents[1] / "conformance/flowactions_conformance/reference_host/pages/vendor"
BUNDLE: Final = VENDOR / "codemirror.js"
LICENCE: Final = VENDOR / "codemirror.LICENSE"
BUNDLER: Final = "esbuild"


class Built(NamedTuple):
    """A bundle, and the licences of what is in it."""

    script: str
    licence: str


def versions() -> dict[str, str]:
    """Gives the packages in the bundle with their versions."""
    packages: dict[str, str] = json.loads(VERSIONS.read_text())["dependencies"]
    return {name: version for name, version in packages.items() if name != BUNDLER}


def banner() -> str:
    """Gives the first line of the bundle."""
    packages = ", ".join(f"{name} {version}" for name, version in sorted(versions().items()))
    return f"/*! {packages}. MIT licence: codemirror.LICENSE. Built by tests/editor/codemirror.py. */"


def build(folder: Path) -> Built:
    """Builds the bundle.

    Args:
        folder: an empty folder to work in.
    """
    shutil.copy(VERSIONS, folder / "package.json")
    shutil.copy(HERE / "codemirror.mjs", folder)
    install = ["npm", "install", "--silent", "--no-audit", "--no-fund", "--no-package-lock"]
    subprocess.run(install, cwd=folder, check=True, timeout=300)
    installed = {
        json.loads(found.read_text())["name"]: found
        for pattern in ("*/package.json", "@*/*/package.json")
        for found in (folder / "node_modules").glob(pattern)
    }
    for name, version in versions().items():
        assert json.loads(installed[name].read_text())["version"] == version, name
    command = [
        "node_modules/.bin/esbuild",
        "codemirror.mjs",
        "--bundle",
        "--minify",
        "--format=esm",
        "--target=es2022",
        "--legal-comments=none",
        f"--banner:js={banner()}",
    ]
    done = subprocess.run(command, cwd=folder, check=True, timeout=300, capture_output=True, text=True)
    texts: dict[str, list[str]] = {}
    for name in sorted(versions()):
        text = installed[name].with_name("LICENSE").read_text().strip()
        texts.setdefault(text, []).append(name)
    licence = "\n\n\n".join(f"{', '.join(names)}\n\n{text}" for text, names in texts.items())
    return Built(done.stdout, f"{licence}\n")


def main() -> None:
    """Runs the command."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true", required=True, help="write bundle and licence")
    parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        built = build(Path(folder))
    VENDOR.mkdir(exist_ok=True)
    BUNDLE.write_text(built.script)
    LICENCE.write_text(built.licence)


if __name__ == "__main__":
    main()
