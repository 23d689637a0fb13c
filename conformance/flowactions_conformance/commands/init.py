"""``init``: writes what a host author needs to prove a host: a small host with its driver, and, for a flow engine, its glue."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Mapping
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Final

DEFAULT: Final = "flowactions_testing.py"
NO_ENGINE: Final = "none"
PACKAGE: Final = "flowactions_conformance"
EXAMPLE: Final = "commands/host_template.py"
"""The small host, a module of the kit."""


class CannotWrite(Exception):
    """The files were not written; the message says why."""


def engines() -> list[str]:
    """Return the engines whose glue the kit has, and ``none`` for hosts that walk their flows themselves."""
    folders = _part("engines").iterdir()
    return [*sorted(each.name for each in folders if each.joinpath("glue.py").is_file()), NO_ENGINE]


def init(path: Path) -> None:
    """Write the file with a small host and its driver, unless there is one.

    Args:
        path: of the file, or of a folder.

    Raises:
        CannotWrite: it exists, or its folder does not.
    """
    if path.is_dir():
        path /= DEFAULT
    if path.suffix != ".py":
        raise CannotWrite(f"{path} is not the name of a Python module: give one that ends in .py")
    name = module_of(path)
    _write(path, _text(EXAMPLE, {}, name))
    sys.stdout.write(
        f"{path} is written, with a small host that is proved as it is: put yours in its place. To prove it:\n\n"
        f"  python -m flowactions_conformance run {shlex.quote(f'{name}:make_host')}\n"
    )


def init_engine(engine: str, folder: Path) -> None:
    """Write a host whose flows an engine runs, its driver, and its tests, into a folder.

    Args:
        engine: one of `engines`.
        folder: is made, if it does not exist.

    Raises:
        CannotWrite: one of the files exists, or the folder cannot be used.
    """
    files = files_of(engine)
    there = [name for name in files if (folder / name).exists()]
    if there:
        raise CannotWrite(f"{folder / there[0]} exists, and nothing is written: give another folder")
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as exc:
        raise CannotWrite(f"{folder} cannot be made: {exc.strerror}") from exc
    for name, text in files.items():
        _write(folder / name, text)
    sys.stdout.write(
        f"{folder} has a host that is proved as it is, in {', '.join(files)}: put yours in its place. To prove it, "
        "in that folder:\n\n"
        "  python -m pip install --requirement requirements.txt\n"
        f"  python -m flowactions_conformance run {Path(DEFAULT).stem}:make_host\n"
        "  python -m pytest\n"
    )


def files_of(engine: str) -> dict[str, str]:
    """Return what `init_engine` writes: name → text.

    The modules are those of the kit, which its own tests prove. Written side by side, they import each other by their names.
    """
    driver = Path(DEFAULT).stem
    own = f"engines/{engine}"
    names = {EXAMPLE: driver}
    needs = ""
    if engine != NO_ENGINE:
        modules = sorted(each.name for each in _part(own).iterdir() if each.name.endswith(".py"))
        names = {f"{own}/{each}": each.removesuffix(".py") for each in modules}
        names |= {f"{own}/testing.py": driver, EXAMPLE: "example_host"}
        needs = _part(f"{own}/requirements.txt").read_text("utf-8")
    texts = {f"{name}.py": _text(path, names, name) for path, name in names.items()}
    tests = _text("engines/tests_template.py", {EXAMPLE: driver}, driver)
    return {**texts, "test_host.py": tests, "requirements.txt": f"{needs}pytest\n"}


def module_of(path: Path) -> str:
    """Return the name by which a file is imported from the working directory, its bare name if it is elsewhere."""
    try:
        parts = path.resolve().relative_to(Path.cwd().resolve()).with_suffix("").parts
    except ValueError:
        return path.stem
    if parts[0] == "src":
        parts = parts[1:]
    return ".".join(parts) if all(part.isidentifier() for part in parts) else path.stem


def _part(path: str) -> Traversable:
    return resources.files(PACKAGE).joinpath(*path.split("/"))


def _text(path: str, names: Mapping[str, str], own_name: str) -> str:
    """Read a module of the kit, with the names that modules have in the author's folder: path in the kit → name."""
    text = _part(path).read_text("utf-8").replace("MODULE:", f"{own_name}:", 1)
    for each, name in names.items():
        module = each.removesuffix(".py").replace("/", ".")
        text = text.replace(f"from {PACKAGE}.{module} import", f"from {name} import")
    return text


def _write(path: Path, text: str) -> None:
    try:
        with path.open("x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError:
        raise CannotWrite(f"{path} exists, and is left as it is: give another path") from None
    except OSError as exc:
        raise CannotWrite(f"{path} cannot be written: {exc.strerror}") from exc
