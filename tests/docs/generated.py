"""The command of files that are made from the code: compares them, or writes them again."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

BEGIN, END = "<!-- generated -->\n", "<!-- end of what is generated -->\n"


def between_marks(page: Path, lines: Iterator[str]) -> str:
    """Return a page whose text between its marks is replaced by lines."""
    before, _, rest = page.read_text().partition(BEGIN)
    return f"{before}{BEGIN}{chr(10).join(lines)}\n{END}{rest.partition(END)[2]}"


def run(command: str, about: str | None, files: Mapping[Path, Callable[[], str]]) -> int:
    """Run the command; return its exit status.

    Args:
        command: as it is called to write, for example ``python -m tests.docs.commands --write``.
        about: its description.
        files: what makes the text of each.
    """
    parser = argparse.ArgumentParser(prog=command.removesuffix(" --write"), description=about)
    parser.add_argument("--write", action="store_true", help="write the files again")
    if parser.parse_args().write:
        for path, render in files.items():
            path.write_text(render())
        return 0
    old = [path.name for path, render in files.items() if not path.exists() or path.read_text() != render()]
    if old:
        sys.stdout.write(f"out of date: {', '.join(old)}: {command}\n")
    return 1 if old else 0
