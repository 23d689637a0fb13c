"""``init``: writes what a host author needs to prove a host: a small host with its driver, and, for a flow engine, its glue."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import Final

DRIVER: Final = "flowactions_testing.py"
NO_ENGINE: Final = "none"
SMALL_HOST: Final = Path(__file__).with_name("host_template.py")


class CannotWrite(Exception):
    """The files were not written; the message says why."""


def examples() -> Path:
    """Return the folder of examples: the wheel has it within the kit, a clone in ``docs``."""
    package, clone = (Path(__file__).parents[level] for level in (1, 3))
    installed = package / "examples"
    return installed if installed.is_dir() else clone / "docs" / "examples"


def engines() -> list[str]:
    """Return the engines of which there are examples, and ``none`` for hosts that walk their flows themselves."""
    return sorted(
        (each.name for each in examples().iterdir() if each.is_dir()),
        key=lambda name: (name == NO_ENGINE, name),
    )


def init(path: Path) -> None:
    """Write the file with a small host and its driver, unless there is one.

    Args:
        path: of the file, or of a folder.

    Raises:
        CannotWrite: it exists, or its folder does not.
    """
    if path.is_dir():
        path /= DRIVER
    if path.suffix != ".py":
        raise CannotWrite(f"{path} is not the name of a Python module: give one that ends in .py")
    name = module_of(path)
    _write(path, _small_host(name))
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
        f"  python -m flowactions_conformance run {Path(DRIVER).stem}:make_host\n"
        "  python -m pytest\n"
    )


def files_of(engine: str) -> dict[str, str]:
    """Return what `init_engine` writes, name → text: the engine's example, and the small host that its driver is based on."""
    files = sorted(each for each in (examples() / engine).iterdir() if each.is_file())
    texts = {each.name: each.read_text("utf-8") for each in files}
    small = "example_host.py" if DRIVER in texts else DRIVER
    return {small: _small_host(Path(small).stem), **texts}


def module_of(path: Path) -> str:
    """Return the name by which a file is imported from the working directory, its bare name if it is elsewhere."""
    try:
        parts = path.resolve().relative_to(Path.cwd().resolve()).with_suffix("").parts
    except ValueError:
        return path.stem
    if parts[0] == "src":
        parts = parts[1:]
    return ".".join(parts) if all(part.isidentifier() for part in parts) else path.stem


def _small_host(module: str) -> str:
    return SMALL_HOST.read_text("utf-8").replace("MODULE:", f"{module}:", 1)


def _write(path: Path, text: str) -> None:
    try:
        with path.open("x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError:
        raise CannotWrite(f"{path} exists, and is left as it is: give another path") from None
    except OSError as exc:
        raise CannotWrite(f"{path} cannot be written: {exc.strerror}") from exc
