"""The generated part of the page of error codes, made from the code: ``python -m tests.docs.error_pages --write``."""

from __future__ import annotations

import importlib
import inspect
import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

from flowactions_hookspecs import FlowActionsError
from flowactions_hookspecs import errors as of_contract
from flowactions_plugin import errors as of_plugin
from flowactions_plugin.cli.commands import flowactions
from flowactions_plugin.cli.frame import COMMON_EXITS
from flowactions_plugin.http.problems import MEDIA_TYPE, TITLES
from flowactions_plugin.insights.fields import ERRORS
from tests.docs import generated
from tests.docs.commands import commands

PAGE: Final = Path(__file__).parents[2] / "docs" / "reference" / "errors.md"
COMMAND: Final = "python -m tests.docs.error_pages --write"

FAILURES: Final = {
    "http_4xx": "the receiver answered with such a status; so `http_1xx`, `http_3xx` (a redirect is not followed), `http_5xx`",
    "timeout": "the attempt took longer than ten seconds; the error names the phase",
    "network": "no connection, or one that broke; a name without an address; an answer that is not HTTP",
    "refused": "an egress rule forbids the address: the delivery is dead at once",
    "not_sent": "nothing was sent: its node or action was deleted, its row cannot be read, or its workers ended each time",
    "waits": "it waits for the host, and no attempt is used: a method fails, or no process can read its origin",
    "cancelled": "an operator cancelled it",
    "other": "any other",
}
"""Kinds of failure (`queue.outcomes.error_class`), and what they mean."""

TREE: Final = re.compile(r"^(?P<marks>[│├└─ ]*)(?P<name>\w+)(?:, a (?P<also>\w+),| {2,})(?P<text>.+)$")


def tree(module: object) -> Iterator[tuple[int, str, str]]:
    """Read the tree in a module's docstring: depth, class and meaning of each line."""
    for line in (inspect.getdoc(module) or "").splitlines():
        found = TREE.match(line)
        if found is not None and "─" in found["marks"]:
            yield len(found["marks"]) // 4, found["name"], found["text"]


def render() -> str:
    """Makes the page: what stands between the marks is generated."""
    return generated.between_marks(PAGE, _lines())


def _lines() -> Iterator[str]:
    assert {"http_4xx", *ERRORS} == set(FAILURES)
    yield from _section(
        "Problems of the routes",
        f"The `code` of an `{MEDIA_TYPE}` (RFC 9457). `type` is always `about:blank`, `title` constant for a code, and `detail` says what\n"
        "is wrong. [What each means](http.md#problems).",
        "| code | status | title |",
        (f"| `{code}` | {status} | {title} |" for code, (status, title) in TITLES.items()),
    )
    yield from _section(
        "Why an attempt failed",
        "`--error` of the [commands](commands.md), `error` of the [search](http.md#operator-pages), `error_class` in the\n"
        "[table](tables.md#flowactions_outbox) and in [metrics](metrics.md).",
        "| code | meaning |",
        (f"| `{code}` | {text} |" for code, text in FAILURES.items()),
    )
    yield from _section(
        "Exit statuses of commands",
        "These are the statuses of every command; some commands have [further ones](commands.md).",
        "| status | meaning |",
        (f"| {code} | {text} |" for code, text in sorted(COMMON_EXITS.items())),
        _own_statuses(),
    )
    yield from _section(
        "Errors that hosts and plugins see",
        "Exceptions of `flowactions_hookspecs`; all derive from `FlowActionsError`. [Which call raises which](contract.md#errors). The\n"
        "message is the default one.",
        "| exception | when | message |",
        (
            f"| `{name}` | {_cell(text)} | {_message(getattr(of_contract, name))} |"
            for _, name, text in tree(of_contract)
        ),
    )
    yield from _section(
        "Errors inside the plugin",
        "They stay inside: a route turns them into a problem, a node into a result, a worker into an outcome, a command into a\n"
        "line and an exit status. Tracebacks name them.",
        "| exception | kind of | when |",
        _inside(),
    )
    yield ""


def _section(title: str, text: str, head: str, *rows: Iterator[str]) -> Iterator[str]:
    yield from ("", f"## {title}", "", text, "", head, "|---" * (head.count("|") - 1) + "|")
    for each in rows:
        yield from each


def _own_statuses() -> Iterator[str]:
    """Statuses that not every command has, each with the commands that say the same of it."""
    named: dict[tuple[int, str], list[str]] = {}
    for name, command in commands(flowactions):
        for code, text in command.exits.items():
            if code not in COMMON_EXITS:
                named.setdefault((code, text), []).append(f"`{name.removeprefix('flowactions ')}`")
    for (code, text), names in sorted(named.items()):
        yield f"| {code} | {text} ({', '.join(names)}) |"


def _inside() -> Iterator[str]:
    modules: dict[int, str] = {}
    for depth, name, line in tree(of_plugin):
        text, _, module = line.partition("; of ")
        # A class whose line names no module is defined here, or beside its parent.
        modules[depth] = module or ("" if hasattr(of_plugin, name) else modules[depth - 1])
        found = _class(name, modules[depth])
        (parent,) = [base.__name__ for base in found.__bases__ if issubclass(base, FlowActionsError)]
        yield f"| `{name}` | `{parent}` | {_cell(text)} |"


def _class(name: str, module: str) -> type[FlowActionsError]:
    where = importlib.import_module(f"flowactions_plugin.{module}") if module else of_plugin
    found: type[FlowActionsError] = getattr(where, name)
    return found


def _message(kind: type[Exception]) -> str:
    return _cell((inspect.getdoc(kind) or "").partition("\n")[0])


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("``", "`")


def every() -> Mapping[str, str]:
    """Give every exception of the two trees, with what the page says of it."""
    return {name: text for module in (of_contract, of_plugin) for _, name, text in tree(module)}


if __name__ == "__main__":
    sys.exit(generated.run(COMMAND, __doc__, PAGE, render))
