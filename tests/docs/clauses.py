"""The index of clauses: for each section and item of the behaviour pages, where the code and the tests cite it.

It is made of the section signs in docstrings and comments. The site has it below the list of the behaviour pages, and
``python -m tests.docs.clauses`` prints it.
"""

from __future__ import annotations

import ast
import io
import os
import re
import sys
import tokenize
import tomllib
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
BEHAVIOUR = ROOT / "docs" / "reference" / "behaviour"

CITATION = re.compile(r"(RFC \d+,? )?§+\s?(\d+(?:\.\d+)*)")
HEADING = re.compile(r'^<a id="([\d.]+)"></a>\n\n#+ §[\d.]+ (.+)$', re.MULTILINE)
ITEM = re.compile(r'^\d+\. <a id="([\d.]+)"></a>(.+(?:\n   .+)*)', re.MULTILINE)
MODULE = "the module"

Defined = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


class Clause(NamedTuple):
    """A section or an item of the behaviour pages, with the page that it is on."""

    number: str
    title: str
    page: str


class Mark(NamedTuple):
    """A section sign, and the function, class or constant that it stands in."""

    number: str
    path: Path
    name: str


def citations(text: str) -> Iterator[tuple[int, str]]:
    """Find the sections that a text cites, with their places in it; those of RFCs are theirs."""
    for match in CITATION.finditer(text):
        if match[1] is None:
            yield match.start(), match[2]


def clauses() -> list[Clause]:
    """Give all clauses in the order of their numbers."""
    found = []
    for page in BEHAVIOUR.glob("[0-9]-*.md"):
        text = page.read_text()
        found += [Clause(number, title, page.name) for number, title in HEADING.findall(text)]
        found += [Clause(number, _first_sentence(said), page.name) for number, said in ITEM.findall(text)]
    return sorted(found, key=lambda clause: [int(part) for part in clause.number.split(".")])


def without_parts(every: list[Clause]) -> list[Clause]:
    """Give the clauses that are not divided further: each needs code and a test."""
    return [
        clause for clause in every if not any(each.number.startswith(f"{clause.number}.") for each in every)
    ]


@cache
def marks_of_code() -> list[Mark]:
    """Find the marks in the distribution's packages."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    packages = project["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]
    files = [path for package in packages for path in (ROOT / package).rglob("*.py")]
    return [mark for path in sorted(files) for mark in _marks(path)]


@cache
def marks_of_tests() -> list[Mark]:
    """Find the marks of test functions. One in a helper, a class or a module says nothing of a particular test."""
    found = [mark for path in sorted((ROOT / "tests").rglob("test_*.py")) for mark in _marks(path)]
    return [mark for mark in found if mark.name.rpartition(".")[2].startswith("test_")]


def render() -> str:
    """Give the index as a table, whose links are relative to the folder of the behaviour pages."""
    code, tests = _by_clause(marks_of_code()), _by_clause(marks_of_tests())
    lines = ["| clause | code | tests |", "|---|---|---|"]
    for number, title, page in clauses():
        named = f"[§{number}]({page}#{number}) {title}".replace("|", "\\|")
        lines.append(f"| {named} | {_entries(code[number])} | {_entries(tests[number])} |")
    return "\n".join(lines) + "\n"


def _entries(marks: list[Mark]) -> str:
    by_file: dict[Path, list[str]] = {}
    for mark in marks:
        names = by_file.setdefault(mark.path, [])
        if mark.name not in names:
            names.append(mark.name)
    entries = []
    for path, names in by_file.items():
        link = Path(os.path.relpath(path, BEHAVIOUR)).as_posix()
        shown = ", ".join(name if name == MODULE else f"`{name}`" for name in names)
        entries.append(f"[{path.relative_to(ROOT).as_posix()}]({link}): {shown}")
    return "; ".join(entries)


def _by_clause(marks: list[Mark]) -> defaultdict[str, list[Mark]]:
    found: defaultdict[str, list[Mark]] = defaultdict(list)
    for mark in marks:
        found[mark.number].append(mark)
    return found


def _first_sentence(said: str) -> str:
    text = re.sub(r"\[§[^\]]*\]\([^)]*\)|<a [^>]*>|\*\*|`", "", " ".join(said.split()))
    sentence = re.split(r"[.:;] |\.$", text)[0]
    return sentence if len(sentence) <= 80 else sentence[:80].rpartition(" ")[0] + " …"


def _marks(path: Path) -> Iterator[Mark]:
    source = path.read_text()
    if "§" not in source:
        return
    tree = ast.parse(source)
    prose = {tokenize.COMMENT, tokenize.STRING}
    docstrings = _docstring_lines(tree)
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type not in prose or (token.type == tokenize.STRING and token.start[0] not in docstrings):
            continue
        for place, number in citations(token.string):
            line = token.start[0] + token.string.count("\n", 0, place)
            yield Mark(number, path, _name_at(tree, line))


def _docstring_lines(tree: ast.Module) -> set[int]:
    """Give the lines on which docstrings begin, also those under constants."""
    return {
        node.lineno
        for node in ast.walk(tree)
        if isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Constant)
        and isinstance(node.value.value, str)
    }


def _name_at(tree: ast.Module, line: int) -> str:
    """Name what a line belongs to: functions and classes by their way from the module, constants by their name."""
    names: list[str] = []
    body: list[ast.stmt] = tree.body
    while True:
        before: ast.stmt | None = None
        for node in body:
            last = node.end_lineno or node.lineno
            first = min([node.lineno, *(each.lineno for each in getattr(node, "decorator_list", []))])
            if first <= line <= last:
                break
            before = node
        else:
            return ".".join(names) or MODULE
        if isinstance(node, Defined):
            names.append(node.name)
            body = node.body
            continue
        if isinstance(node, ast.Expr) and before is not None:
            node = before  # a docstring under a constant
        if not (names and isinstance(node, ast.Expr)):
            names += _assigned(node)
        return ".".join(names) or MODULE


def _assigned(node: ast.stmt) -> list[str]:
    targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
    return [target.id for target in targets if isinstance(target, ast.Name) and target.id.isupper()]


if __name__ == "__main__":
    sys.stdout.write(render())
