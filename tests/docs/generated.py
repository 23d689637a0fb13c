"""The command of a page that is made from the code: compares it, or writes it anew."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

BEGIN, END = "<!-- generated -->\n", "<!-- end of what is generated -->\n"


def between_marks(page: Path, lines: Iterator[str]) -> str:
    """Return a page whose text between its marks is replaced by lines."""
    before, _, rest = page.read_text().partition(BEGIN)
    return f"{before}{BEGIN}{chr(10).join(lines)}\n{END}{rest.partition(END)[2]}"


def run(command: str, about: str | None, page: Path, render: Callable[[], str]) -> int:
    """Runs the command; returns its exit status.

    Args:
        command: as it is called to write, for example ``python -m tests.docs.checks --write``.
        about: its description.
        page: the page.
        render: makes the page's text.
    """
    parser = argparse.ArgumentParser(prog=command.removesuffix(" --write"), description=about)
    parser.add_argument("--write", action="store_true", help="write the page anew")
    if parser.parse_args().write:
        page.write_text(render())
        return 0
    if not page.exists() or page.read_text() != render():
        sys.stdout.write(f"the page is out of date: {command}\n")
        return 1
    return 0
