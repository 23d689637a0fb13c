"""``init``: writes the file in which a host author tells the kit how to make and use a host, with a small host in it."""

from __future__ import annotations

import shlex
import sys
from importlib import resources
from pathlib import Path
from typing import Final

DEFAULT: Final = "flowactions_testing.py"


class CannotWrite(Exception):
    """The file was not written; the message says why."""


def init(path: Path) -> None:
    """Write the file, unless there is one.

    Args:
        path: of the file, or of a folder.

    Raises:
        CannotWrite: it exists, or its folder does not.
    """
    if path.is_dir():
        path /= DEFAULT
    if path.suffix != ".py":
        raise CannotWrite(f"{path} is not the name of a Python module: give one that ends in .py")
    template = resources.files("flowactions_conformance.commands").joinpath("host_template.py")
    name = module_of(path)
    text = template.read_text(encoding="utf-8").replace("MODULE:", f"{name}:", 1)
    try:
        with path.open("x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError:
        raise CannotWrite(f"{path} exists, and is left as it is: give another path") from None
    except OSError as exc:
        raise CannotWrite(f"{path} cannot be written: {exc.strerror}") from exc
    sys.stdout.write(
        f"{path} is written, with a small host that is proved as it is: put yours in its place. To prove it:\n\n"
        f"  python -m flowactions_conformance run {shlex.quote(f'{name}:make_host')}\n"
    )


def module_of(path: Path) -> str:
    """Return the name by which a file is imported from the working directory, its bare name if it is elsewhere."""
    try:
        parts = path.resolve().relative_to(Path.cwd().resolve()).with_suffix("").parts
    except ValueError:
        return path.stem
    if parts[0] == "src":
        parts = parts[1:]
    return ".".join(parts) if all(part.isidentifier() for part in parts) else path.stem
