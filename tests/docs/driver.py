"""The page of what a host author writes for the kit, made from its docstrings: ``python -m tests.docs.driver --write``."""

from __future__ import annotations

import ast
import inspect
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from flowactions_conformance.kit import under_test
from tests.docs import generated

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "driver.md"
COMMAND = "python -m tests.docs.driver --write"
FIRST = ("Env", "HostDriver", "Turn", "World")
"""What an author meets first; the rest in the order of the module."""
LEFT_OUT = frozenset({"Wire"})


class Documented(NamedTuple):
    """A docstring, in its parts."""

    about: str
    arguments: dict[str, str]
    more: dict[str, str]


def documented(text: str) -> Documented:
    """Splits a docstring into what is said of the whole, of each argument, and under other headings."""
    about, *sections = re.split(
        r"^(Args|Returns|Raises|Attributes):\n", inspect.cleandoc(text), flags=re.MULTILINE
    )
    named = {
        name: inspect.cleandoc("\n" + body) for name, body in zip(sections[::2], sections[1::2], strict=True)
    }
    arguments = {}
    for entry in re.split(r"\n(?=\w)", named.pop("Args", "")):
        name, _, said = entry.partition(": ")
        arguments[name] = _words(said)
    return Documented(_paragraphs(about), arguments, {name: _words(body) for name, body in named.items()})


def _words(text: str) -> str:
    return _code(" ".join(text.split()))


def _paragraphs(text: str) -> str:
    return "\n\n".join(_words(each) for each in text.strip().split("\n\n"))


def _code(text: str) -> str:
    return text.replace("``", "`")


def render() -> str:
    """Makes the page."""
    tree = ast.parse(inspect.getsource(under_test))
    found = {
        each.name: each for each in tree.body if isinstance(each, ast.ClassDef) and each.name not in LEFT_OUT
    }
    names = [*FIRST, *(name for name in found if name not in FIRST)]
    lines = [
        "# What you write for the kit",
        "",
        "The driver by which the conformance kit uses your host: its methods, their arguments and results. All of it is in",
        "`flowactions_conformance`. [Prove your host](../how-to/prove-your-host.md) says how to begin. This page is generated:",
        f"`{COMMAND}`.",
        "",
        "An *item* of a flow is a `Step`, an `Action`, a `Branch`, a `Loop` or a `SubFlow`. As JSON each has its `kind`: `step`,",
        "`action`, `branch`, `loop`, `subflow`, and the names of all fields are in camelCase.",
    ]
    for name in names:
        lines += ["", f"## {name}", "", *_of(found[name])]
    marker = under_test.one_host_per_process
    lines += ["", f"## {marker.__name__}", "", documented(marker.__doc__ or "").about]
    return "\n".join(lines) + "\n"


def _of(node: ast.ClassDef) -> Iterator[str]:
    said = documented(ast.get_docstring(node) or "")
    yield said.about
    if not any(isinstance(each, ast.AsyncFunctionDef) for each in node.body):
        yield from _fields(node, said)
        return
    for each, after in zip(node.body, [*node.body[1:], None], strict=True):
        if isinstance(each, ast.AnnAssign):
            told = (
                after.value.value
                if isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant)
                else ""
            )
            yield from ("", f"### {ast.unparse(each)}", "", _words(str(told)))
        elif isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef):
            yield from _method(each)


def _fields(node: ast.ClassDef, said: Documented) -> Iterator[str]:
    fields = [each for each in node.body if isinstance(each, ast.AnnAssign)]
    yield from ("", "| field | type | |", "|---|---|---|")
    for each in fields:
        name = ast.unparse(each.target)
        type_ = ast.unparse(each.annotation).replace("|", "\\|")
        default = "" if each.value is None else f", default `{_default(each.value)}`"
        yield f"| `{name}` | `{type_}`{default} | {said.arguments.get(name, '')} |"


def _default(value: ast.expr) -> str:
    made = re.search(r"default_factory=(\w+)", ast.unparse(value))
    return ast.unparse(value) if made is None else f"{made[1]}()"


def _method(node: ast.FunctionDef | ast.AsyncFunctionDef) -> Iterator[str]:
    said = documented(ast.get_docstring(node) or "")
    arguments = re.sub(r"^self(, )?", "", ast.unparse(node.args))
    word = "async " if isinstance(node, ast.AsyncFunctionDef) else ""
    returns = "" if node.returns is None else f" -> {ast.unparse(node.returns)}"
    yield from (
        "",
        f"### {node.name}",
        "",
        "```text",
        f"{word}{node.name}({arguments}){returns}",
        "```",
        "",
        said.about,
    )
    if said.arguments != {"": ""}:
        yield ""
        yield from (f"- `{name}`: {text}" for name, text in said.arguments.items())
    for name, text in said.more.items():
        yield from ("", f"{name}: {text}")


if __name__ == "__main__":
    sys.exit(generated.run(COMMAND, __doc__, PAGE, render))
