"""Checks what the wheel and the sdist hold: ``python -m tests.packaging.contents dist/*``."""

from __future__ import annotations

import subprocess
import sys
import tarfile
import tomllib
import zipfile
from collections.abc import Collection, Sequence
from configparser import ConfigParser
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())
PACKAGES: Sequence[str] = PROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]
"""Their folders; each is installed under its last name."""

EXAMPLES = "docs/examples/*/*"
"""Files that are installed within the kit."""

DISTRIBUTION = f"{PROJECT['project']['name'].replace('-', '_')}-{PROJECT['project']['version']}"
INFO = f"{DISTRIBUTION}.dist-info"
METADATA = {
    f"{INFO}/{name}"
    for name in (
        "METADATA",
        "WHEEL",
        "RECORD",
        "entry_points.txt",
        "licenses/LICENSE",
        "licenses/conformance/flowactions_conformance/reference_host/pages/vendor/codemirror.LICENSE",
    )
}

NEEDED = (
    *(f"{Path(package).name}/py.typed" for package in PACKAGES),
    "flowactions_plugin/pages/templates/*.html",
    "flowactions_plugin/pages/static/*.css",
    "flowactions_plugin/pages/static/*.js",
    "flowactions_plugin/storage/migrations/versions/*.py",
    "flowactions_conformance/reference_host/pages/*.html",
    "flowactions_conformance/examples/*/glue.py",
    "flowactions_conformance/kit/requirements.json",
)
"""Patterns of which each has a file; all files are compared with the repository's, too."""

UNWANTED = (
    "*/__pycache__/*",
    "*.pyc",
    "*/tests/*",
    "*/test_*.py",
    "*/conftest.py",
    "*.db",
    "*.key",
    "*.env",
    "*/.*",
)
"""Patterns of which a wheel has no file, even when the repository has."""


def tracked() -> set[str]:
    """Give the paths of the repository's files."""
    command = ["git", "ls-files", "-z"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, check=True)
    return {name for name in done.stdout.decode().split("\0") if (ROOT / name).is_file()}


def wrong_in_wheel(names: Collection[str], repository: Collection[str]) -> list[str]:
    """List what a wheel lacks, and what does not belong there.

    Args:
        names: of its files.
        repository: the paths of the repository's files.
    """
    expected = METADATA | {
        f"{Path(package).name}{path.removeprefix(package)}"
        for package in PACKAGES
        for path in repository
        if path.startswith(f"{package}/")
    }
    expected |= {
        f"flowactions_conformance/{path.removeprefix('docs/')}"
        for path in repository
        if fnmatch(path, EXAMPLES)
    }
    # What is copied for authors has their tests.
    own = [name for name in names if not name.startswith("flowactions_conformance/examples/")]
    unwanted = {name for name in own if any(fnmatch(name, pattern) for pattern in UNWANTED)}
    return [
        *(f"is missing: {name}" for name in sorted(expected - set(names))),
        *(f"does not belong there: {name}" for name in sorted(set(names) - expected | unwanted)),
        *(f"has no file {each}" for each in NEEDED if not any(fnmatch(name, each) for name in names)),
    ]


def wrong_in_sdist(names: Collection[str], repository: Collection[str]) -> list[str]:
    """List what a source distribution lacks, and what does not belong there: it has the repository's files.

    Args:
        names: of its files.
        repository: the paths of the repository's files.
    """
    expected = {f"{DISTRIBUTION}/{name}" for name in (*repository, "PKG-INFO")}
    return [
        *(f"is missing: {name}" for name in sorted(expected - set(names))),
        *(f"does not belong there: {name}" for name in sorted(set(names) - expected)),
    ]


def wrong_in_metadata(metadata: str, entry_points: str) -> list[str]:
    """List what a wheel's metadata says differently from ``pyproject.toml``."""
    project = PROJECT["project"]
    lines = set(metadata.partition("\n\n")[0].splitlines())
    wanted = [
        f"Name: {project['name']}",
        f"Version: {project['version']}",
        f"Requires-Python: {project['requires-python']}",
        f"License-Expression: {project['license']}",
        *(f"Classifier: {each}" for each in project["classifiers"]),
        *(f"Provides-Extra: {each}" for each in project["optional-dependencies"]),
    ]
    found = ConfigParser(delimiters=("=",))
    found.read_string(entry_points)
    groups = {name: dict(found[name]) for name in found.sections()}
    expected = {"console_scripts": project["scripts"], **project["entry-points"]}
    return [
        *(f"does not say: {each}" for each in wanted if each not in lines),
        *([] if groups == expected else [f"has the entry points {groups}, and not {expected}"]),
    ]


def wrong_in(path: Path, repository: Collection[str]) -> list[str]:
    """List what is wrong in a distribution."""
    if path.suffix == ".whl":
        with zipfile.ZipFile(path) as wheel:
            names = wheel.namelist()
            texts = [wheel.read(f"{INFO}/{name}").decode() for name in ("METADATA", "entry_points.txt")]
        doubled = [] if len(names) == len(set(names)) else ["has a file twice"]
        return [*wrong_in_wheel(names, repository), *wrong_in_metadata(*texts), *doubled]
    with tarfile.open(path) as sdist:
        return wrong_in_sdist([each.name for each in sdist if not each.isdir()], repository)


def main(arguments: Sequence[str]) -> int:
    """Check distributions; returns 1 when something is wrong."""
    repository = tracked()
    wrong = [f"{Path(path).name} {each}" for path in arguments for each in wrong_in(Path(path), repository)]
    for line in wrong:
        print(line)  # noqa: T201  what the command is for
    return 1 if wrong or not arguments else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
