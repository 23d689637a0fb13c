"""Environments in which pages are followed: made by the real pip, from this clone, as the pages say.

Nobody has published the package, so each page installs it from a clone beside the reader's folder, by the same line, `INSTALL`.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from tests.docs.fences import ROOT

INSTALL: Final = ".venv/bin/pip install --quiet '../flowactions-plugin[conformance]'"
"""What every page says; `SENTENCE` explains it."""

SENTENCE: Final = "`../flowactions-plugin` is your clone of this repository, beside your own folder."

LIMIT_SECONDS: Final = 900
"""For pip, which may have to download everything."""


def place(parent: Path) -> Path:
    """Make a reader's folder with a clone beside it.

    Args:
        parent: where to.
    """
    parent.mkdir(parents=True, exist_ok=True)
    clone = parent / "flowactions-plugin"
    if not clone.is_symlink():
        clone.symlink_to(ROOT)
    folder = parent / "folder"
    folder.mkdir()
    return folder


def variables() -> dict[str, str]:
    """Return the variables of a reader's shell: those of this process without what would change the programs."""
    return {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("PYTHON", "PYTEST", "FLOWACTIONS", "CHAT"))
    }


def _make(lines: Sequence[str], folder: Path, store: Path) -> None:
    """Make ``.venv`` in a folder, and run lines with its pip: the last one in a copy of the environment of those before it.

    Raises:
        AssertionError: a line fails.
    """
    # Compiled by pip, once: copies share it.
    environment = {**variables(), "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
    *before, last = lines
    if before:
        copy(shared(before, store), folder)
    else:
        subprocess.run([sys.executable, "-m", "venv", folder / ".venv"], check=True, env=environment)
    run(last, folder, environment)


def copy(origin: Path, folder: Path) -> None:
    """Make ``.venv`` in a folder as a copy of another environment, with the same packages.

    Args:
        origin: the environment.
        folder: where to.
    """
    made = folder / ".venv"
    shutil.copytree(origin, made, symlinks=True, copy_function=os.link)  # pip replaces files, and changes none
    for program in (made / "bin").iterdir():  # each begins with the path of its Python
        if not program.is_symlink():
            text = program.read_text().replace(str(origin), str(made))
            program.unlink()
            program.write_text(text)
            program.chmod(0o755)


def run(line: str, folder: Path, environment: Mapping[str, str]) -> str:
    """Run a line of a page in a reader's folder, and return what it writes.

    Raises:
        AssertionError: it fails.
    """
    done = subprocess.run(
        ["bash", "-ec", line],  # noqa: S607  whichever the reader has
        cwd=folder,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=LIMIT_SECONDS,
        check=False,
    )
    if done.returncode:
        raise AssertionError(f"$ {line}\nends with {done.returncode}:\n{done.stdout}")
    return done.stdout


def shared(lines: Sequence[str], store: Path) -> Path:
    """Return an environment for which pip has run these lines; it is made once, whichever process asks first.

    Args:
        lines: of a page, as they are printed.
        store: a folder that the processes of a test run share.
    """
    parent = store / hashlib.sha256("\n".join(lines).encode()).hexdigest()[:16]
    parent.mkdir(parents=True, exist_ok=True)
    with (parent / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (parent / "made").exists():
            _make(lines, place(parent), store)
            (parent / "made").touch()
    return parent / "folder" / ".venv"
