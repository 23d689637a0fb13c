"""``init``: writes what a host author needs to prove a host: a small host with its driver, and, for a flow engine, its glue."""

from __future__ import annotations

import argparse
import shlex
import sys
from pathlib import Path
from typing import Final

from flowactions_conformance.commands import Wrong

DRIVER: Final = "flowactions_testing.py"
SMALL_HOST: Final = Path(__file__).with_name("host_template.py")


def examples() -> Path:
    """Return the folder of examples: the wheel has it within the kit, a clone in ``docs``."""
    package, clone = (Path(__file__).parents[level] for level in (1, 3))
    installed = package / "examples"
    return installed if installed.is_dir() else clone / "docs" / "examples"


def engines() -> list[str]:
    """Return the engines of which there are examples."""
    return sorted(each.name for each in examples().iterdir() if each.is_dir())


def init(options: argparse.Namespace) -> int:
    """Write the file with a small host and its driver; of an engine a folder with a host, its driver, and its tests.

    Returns:
        0.

    Raises:
        Wrong: one of the files exists, or cannot be written.
    """
    path: Path = options.path
    if options.engine:
        files = files_of(options.engine)
        _write(path, files)
        sys.stdout.write(
            f"{path} has a host that is proved as it is, in {', '.join(files)}: put yours in its place. To prove it, "
            "in that folder:\n\n"
            "  python -m pip install --requirement requirements.txt\n"
            f"  python -m flowactions_conformance run {Path(DRIVER).stem}:make_host\n"
            "  python -m pytest\n"
        )
        return 0
    if path.is_dir():
        path /= DRIVER
    if path.suffix != ".py":
        raise Wrong(f"{path} is not the name of a Python module: give one that ends in .py")
    name = module_of(path)
    _write(path.parent, {path.name: _small_host(name)})
    sys.stdout.write(
        f"{path} is written, with a small host that is proved as it is: put yours in its place. To prove it:\n\n"
        f"  python -m flowactions_conformance run {shlex.quote(f'{name}:make_host')}\n"
    )
    return 0


def files_of(engine: str) -> dict[str, str]:
    """Return what is written for an engine, name → text: its example, and the small host that its driver is based on."""
    files = sorted(each for each in (examples() / engine).iterdir() if each.is_file())
    texts = {each.name: each.read_text("utf-8") for each in files}
    return {"example_host.py": _small_host("example_host"), **texts}


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


def _write(folder: Path, files: dict[str, str]) -> None:
    """Write all files, or none, if one of them exists."""
    for name in files:
        if (folder / name).exists():
            raise Wrong(f"{folder / name} exists, and nothing is written: give another path")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in files.items():
            (folder / name).write_text(text, "utf-8")
    except OSError as exc:
        raise Wrong(f"{folder} cannot be written: {exc.strerror}") from exc
