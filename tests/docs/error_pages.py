"""The generated part of the page of error codes, made from the code: ``python -m tests.docs.error_pages --write``."""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

from flowactions_hookspecs import errors as of_contract
from flowactions_plugin import errors as of_plugin
from flowactions_plugin.http.problems import MEDIA_TYPE, TITLES
from flowactions_plugin.insights.fields import ERRORS
from tests.docs import generated

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
        "Errors that hosts and plugins see",
        "Exceptions of `flowactions_hookspecs`; all derive from `FlowActionsError`. [Which call raises which](contract.md#errors). The\n"
        "message is the default one.",
        "| exception | when | message |",
        (
            f"| `{name}` | {_cell(text)} | {_message(getattr(of_contract, name))} |"
            for _, name, text in tree(of_contract)
        ),
    )
    yield ""


def _section(title: str, text: str, head: str, *rows: Iterator[str]) -> Iterator[str]:
    yield from ("", f"## {title}", "", text, "", head, "|---" * (head.count("|") - 1) + "|")
    for each in rows:
        yield from each


def _message(kind: type[Exception]) -> str:
    return _cell((inspect.getdoc(kind) or "").partition("\n")[0])


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("``", "`")


def every() -> Mapping[str, str]:
    """Give every exception of the two trees, with what the page says of it."""
    return {name: text for module in (of_contract, of_plugin) for _, name, text in tree(module)}


if __name__ == "__main__":
    sys.exit(generated.run(COMMAND, __doc__, PAGE, render))
