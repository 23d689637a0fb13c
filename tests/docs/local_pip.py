"""`pip install` of a tutorial, with what this environment has instead of a package index.

A requirement has to name a distribution and extras that are installed here. Its commands, and those of what it requires, are
placed into the environment, whose Python finds the modules of this one. A project of the tutorial's own is installed
editable, as its `pyproject.toml` says.
"""

from __future__ import annotations

import sysconfig
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from importlib.metadata import Distribution, EntryPoint, distribution
from pathlib import Path

from packaging.requirements import Requirement


def install(arguments: Sequence[str], folder: Path, venv: Path) -> None:
    """Install requirements.

    Args:
        arguments: of ``pip install``.
        folder: the working directory.
        venv: the environment.
    """
    site = next(venv.glob("lib/python3*/site-packages"))
    here = sysconfig.get_path("purelib")
    (site / "this_environment.pth").write_text(f"import site; site.addsitedir({here!r})\n")
    names = [each for each in arguments if not each.startswith("-")]
    if "--editable" in arguments:
        for name in names:
            _link(folder / name, site)
        return
    for found in {each.name: each for name in names for each in _closure(Requirement(name))}.values():
        for command in found.entry_points.select(group="console_scripts"):
            _place(command, venv)


def _closure(requirement: Requirement, seen: frozenset[str] = frozenset()) -> Iterator[Distribution]:
    """Give the distribution of a requirement, and those that it requires with its extras."""
    found = distribution(requirement.name)
    offered = {each.lower() for each in found.metadata.get_all("Provides-Extra") or []}
    assert requirement.extras <= offered, f"{requirement.name} has no extras {requirement.extras - offered}"
    yield found
    for text in found.requires or ():
        needed = Requirement(text)
        applies = needed.marker is None or any(
            needed.marker.evaluate({"extra": extra}) for extra in ["", *requirement.extras]
        )
        if applies and needed.name not in seen:
            yield from _closure(needed, seen | {requirement.name, needed.name})


def _place(command: EntryPoint, venv: Path) -> None:
    path = venv / "bin" / command.name
    path.write_text(
        f"#!{venv / 'bin' / 'python'}\nimport sys\n\nfrom {command.module} import {command.attr.split('.')[0]}\n\n"
        f"sys.exit({command.attr}())\n"
    )
    path.chmod(0o755)


def _link(project: Path, site: Path) -> None:
    """Install a project editable: its folder on the path, and its name, version and entry points."""
    about: Mapping[str, object] = tomllib.loads((project / "pyproject.toml").read_text())["project"]
    name, version = str(about["name"]), str(about["version"])
    points = about.get("entry-points", {})
    assert isinstance(points, dict)
    info = site / f"{name.replace('-', '_')}-{version}.dist-info"
    info.mkdir(exist_ok=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    groups = (
        f"[{group}]\n" + "".join(f"{key} = {value}\n" for key, value in entries.items())
        for group, entries in points.items()
    )
    (info / "entry_points.txt").write_text("\n".join(groups))
    (site / f"{name}.pth").write_text(f"{project.resolve()}\n")
