"""The fenced blocks of a page: code, commands and what is shown."""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]

FENCE = re.compile(
    r"^(?P<indent> *)(?P<marks>```+|~~~+)(?P<info>[^\n`]*)\n(?P<text>.*?)^ *(?P=marks) *$",
    re.MULTILINE | re.DOTALL,
)


class Block(NamedTuple):
    """A fenced block.

    Attributes:
        page: relative to the repository.
        line: of its first line of text, from 1.
        language: the first word behind the fence; empty without one.
        words: the others.
        text: without the indentation of the fence.
    """

    page: str
    line: int
    language: str
    words: tuple[str, ...]
    text: str

    def __str__(self) -> str:
        return f"{self.page}:{self.line}: {' '.join([self.language or 'without a language', *self.words])}"


def blocks_of(page: Path) -> list[Block]:
    """Give a page's blocks in their order."""
    text = page.read_text()
    found = []
    for fence in FENCE.finditer(text):
        language, *words = fence["info"].split() or [""]
        indent = len(fence["indent"])
        lines = [line[indent:] if line[:indent].isspace() else line for line in fence["text"].splitlines()]
        where = page.relative_to(ROOT).as_posix() if page.is_relative_to(ROOT) else page.name
        number = text.count("\n", 0, fence.start()) + 2
        found.append(Block(where, number, language, tuple(words), "".join(f"{line}\n" for line in lines)))
    return found
