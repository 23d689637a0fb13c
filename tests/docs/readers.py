"""In which environment a page's commands and code run, and what that environment has: a reader follows the page from its top.

A part of ``python -m tests.docs.lint``.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterable, Iterator
from functools import cache
from importlib.metadata import PackageNotFoundError, packages_distributions, requires
from pathlib import Path
from typing import Final

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.docs.checking import commands_of, typed
from tests.docs.fences import ROOT, blocks_of

GUIDES: Final = sorted((ROOT / "docs" / "how-to").glob("*.md"))

ACTIVATE: Final = "activate it with `. .venv/bin/activate`"
PLACES: Final = ("python3 -m venv .venv", "host's environment", "the folder of your host", "In your clone")
"""What a page says of the `.venv` that it uses: it makes it, or it is the reader's."""

BROUGHT: Final = {"django", "quart"}
"""Frameworks for whose users a part of a page is."""

OWN: Final = {"flowactions_conformance", "flowactions_hookspecs"}
"""Modules of this distribution, which every page installs or has in its host's environment."""

PROGRAMS: Final = {
    "flowactions": "flowactions-plugin",
    "flowactions-demo": "flowactions-plugin",
    "pytest": "pytest",
    "uvicorn": "uvicorn",
}
"""Of an environment, with the package that has each."""


def program_of(words: list[str]) -> str:
    """Give the program of a command, ``python -m`` with its module; empty without one."""
    rest = [word for word in words if word != "export" and not re.match(r"[A-Z_]+=", word)]
    name = rest[0] if rest else ""
    if name.removeprefix(".venv/bin/") == "python" and rest[1:2] == ["-m"]:
        return f"{name} -m {rest[2].partition('.')[0]}"
    return name


def programs(page: Path) -> set[str]:
    """Give the programs that a page has a reader type."""
    return {
        program_of(words)
        for block in blocks_of(page)
        for line in typed(block)
        for words in commands_of(line.replace("…", "x"))
    }


def installed(text: str) -> set[str]:
    """Give the packages that a page has a reader install, with those that they need."""
    names = {"flowactions-plugin"}
    for line in re.findall(r"pip install ([^`&|\n]+)", text):
        for word in line.replace("'", "").split():
            if re.fullmatch(r"[A-Za-z][\w-]*", word):
                names.add(canonicalize_name(word))
            names.update(re.findall(r"flowactions-plugin\[\w+\]", word))
    return closure(names)


@cache
def distributions() -> dict[str, set[str]]:
    """Give the distributions that have each module of this environment."""
    return {
        module: {canonicalize_name(name) for name in names}
        for module, names in packages_distributions().items()
    }


@cache
def needed(name: str) -> frozenset[str]:
    """Give what a package needs, as its metadata say; of one that is not here nothing is known."""
    wanted = Requirement(name)
    try:
        found = [Requirement(each) for each in requires(wanted.name) or []]
    except PackageNotFoundError:
        return frozenset()
    extras = ["", *wanted.extras]
    return frozenset(
        f"{each.name}[{','.join(each.extras)}]" if each.extras else each.name
        for each in found
        if each.marker is None or any(each.marker.evaluate({"extra": extra}) for extra in extras)
    )


def closure(names: Iterable[str]) -> set[str]:
    """Give packages with all that they need in turn."""
    found: set[str] = set()
    waiting = [*names]
    while waiting:
        name = waiting.pop()
        if name not in found:
            found.add(name)
            waiting.extend(needed(name))
    return {canonicalize_name(Requirement(name).name) for name in found}


def imports(page: Path) -> Iterator[str]:
    """Give the modules that a page's Python blocks import, by their first names."""
    for block in blocks_of(page):
        if block.language == "python":
            flags = ast.PyCF_ONLY_AST | ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
            for node in ast.walk(compile(block.text, str(block), "exec", flags)):
                if isinstance(node, ast.ImportFrom) and node.module is not None:
                    yield node.module.partition(".")[0]
                elif isinstance(node, ast.Import):
                    yield from (each.name.partition(".")[0] for each in node.names)


def is_a_file(code: str) -> bool:
    """Tell whether code runs as it stands in a file; other code awaits, outside of a coroutine."""
    try:
        compile(code, "<a page>", "exec", dont_inherit=True)
    except SyntaxError:
        return False
    return True


def faults(page: Path) -> Iterator[str]:
    """Say where a reader stops who begins with an empty folder, or an environment of a host where the page says so."""
    text = page.read_text()
    said = " ".join(text.split())
    used = programs(page)
    bare = {name for name in used if name in PROGRAMS or name.startswith("python -m")}
    before_commands = text.partition("```")[0]
    if any(name.startswith(".venv/bin/") for name in used) and not any(each in said for each in PLACES):
        yield "it uses .venv, and does not say where that is from"
    if bare and ("`--host`" not in before_commands or bare - {"flowactions"}) and ACTIVATE not in said:
        yield f"it does not say in which environment {sorted(bare)} run, nor with which settings"
    here = installed(text)
    for name in used:
        package = PROGRAMS.get(name.removeprefix(".venv/bin/"))
        if package is not None and package not in here and not is_for_developers(said):
            yield f"it needs {name}, and does not install {package}"
    written = set(re.findall(r"`(\w+)\.py`", text))
    for module in set(imports(page)) - sys.stdlib_module_names - written - BROUGHT - OWN:
        if here.isdisjoint(distributions().get(module, {canonicalize_name(module)})):
            yield f"it imports {module}, and does not install it"
    for block in blocks_of(page):
        before = "\n".join(text.splitlines()[: block.line - 1])
        if block.language == "python" and not is_a_file(block.text) and "coroutine" not in before:
            yield f"{block} awaits, and nothing says that it belongs in a coroutine"


def is_for_developers(said: str) -> bool:
    """Tell whether a page's environment is the one of CONTRIBUTING."""
    return "environment for development](../../CONTRIBUTING.md)" in said


def of_guides() -> Iterator[str]:
    """Each says where its commands run, and installs what they and its blocks need."""
    yield from (f"{page.name}: {fault}" for page in GUIDES for fault in faults(page))
