"""The filter and the exit statuses on the page of commands, made from declarations: ``python -m tests.docs.commands --write``.

Each command with its options, and what it writes as JSON, stand below the page on the site; ``python -m tests.docs.commands --each``
prints that.
"""

from __future__ import annotations

import importlib
import re
import sys
import types
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Literal, NamedTuple, Union, get_args, get_origin, get_type_hints

import click
import msgspec

from flowactions_plugin.cli.commands import flowactions
from flowactions_plugin.cli.frame import COMMON_EXITS, TABLES_EXITS, Command
from flowactions_plugin.insights.filters import FIELDS
from flowactions_plugin.insights.results import Attempt, Delivery, DeliveryDetail
from tests.docs import generated

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "commands.md"
COMMAND = "python -m tests.docs.commands --write"

OF_THE_HTTP_PAGE = Delivery, DeliveryDetail, Attempt
"""Structs whose fields another page describes, and not a docstring."""

SHORT = {
    "Attempt.certainty": "whether the receiver can have had it: `never connected`, `sent, no answer`, `answered` or `answered through the proxy`",
    "Share.name": "the destination or the organization",
    "Share.number": "how many deliveries it has",
}
"""Fields of structs whose docstring is one line."""

ROUTES = "[the routes of the outbox](http.md)"
SHARED_EXITS = {**COMMON_EXITS, **TABLES_EXITS}
AS_STORED = f"as in {ROUTES}"


def commands(group: click.Command = flowactions, path: str = "") -> Iterator[tuple[str, Command]]:
    """Give every command with its full name, in the order of the tree."""
    name = f"{path} {group.name}".strip()
    if isinstance(group, click.Group):
        for each in group.commands.values():
            yield from commands(each, name)
    else:
        assert isinstance(group, Command)
        yield name, group


def document_of(command: Command) -> type[msgspec.Struct] | None:
    """Give the struct that a command writes as JSON."""
    if command.document is None:
        return None
    module, _, name = command.document.rpartition(":")
    found: type[msgspec.Struct] = getattr(importlib.import_module(f"flowactions_plugin.{module}"), name)
    return found


def fields(kind: type[msgspec.Struct], path: str = "") -> Iterator[tuple[str, str]]:
    """Give the path and the description of each field of a struct, nested ones after their parent."""
    for field in own_fields(kind):
        yield f"{path}{field.mark}", field.text
        if field.inner is not None:
            yield from fields(field.inner, f"{path}{field.mark}.")


class Field(NamedTuple):
    """A field of a struct that a command writes as JSON.

    Attributes:
        mark: its name there, with ``[]`` if it is a list.
        text: what it means; empty: its name says it.
        inner: the struct that it holds, if this page describes that.
    """

    mark: str
    text: str
    inner: type[msgspec.Struct] | None


def own_fields(kind: type[msgspec.Struct]) -> Iterator[Field]:
    """Give the fields of a struct itself."""
    about = _described(kind)
    hints = get_type_hints(kind)
    for field in msgspec.structs.fields(kind):
        text = (
            about.get(field.name)
            or SHORT.get(f"{kind.__name__}.{field.name}")
            or (AS_STORED if _elsewhere(kind, field.name) else "")
        )
        inner, many = _inner(hints[field.name])
        if inner is not None and inner.__module__.startswith("flowactions_hookspecs"):
            inner = None
        yield Field(f"{field.encode_name}[]" if many else field.encode_name, text, inner)


def _elsewhere(kind: type, name: str) -> bool:
    return any(issubclass(kind, each) and name in each.__struct_fields__ for each in OF_THE_HTTP_PAGE)


def _described(kind: type) -> dict[str, str]:
    """Read the section on attributes of a struct's docstring, and of those that it extends."""
    found: dict[str, str] = {}
    for each in reversed(kind.__mro__):
        section = (each.__doc__ or "").partition("Attributes:\n")[2]
        for name, text in re.findall(r"^ {8}(\w+): ((?:.*\n?)(?: {12}.*\n?)*)", section, re.MULTILINE):
            found[name] = " ".join(text.split())
    return found


def _inner(hint: Any) -> tuple[type[msgspec.Struct] | None, bool]:
    """Give the struct within a type, and whether there are several."""
    if isinstance(hint, type) and issubclass(hint, msgspec.Struct):
        return hint, False
    origin, parts = get_origin(hint), get_args(hint)
    if origin is Literal:
        return None, False
    many = origin is not None and origin not in {Union, types.UnionType} and origin is not dict
    for part in parts:
        inner, deeper = _inner(part)
        if inner is not None:
            return inner, many or deeper
    return None, many


def render() -> str:
    """Makes the page: what stands between the marks is generated."""
    return generated.between_marks(PAGE, _lines())


def each_command() -> str:
    """Describe each command, and what `--json` writes, a section for each struct."""
    lines = [
        *_entries(),
        "",
        "### What --json writes",
        "",
        "The documents and what they contain. `[]` marks a list.",
    ]
    every = dict(commands()).values()
    for kind in _with_inner(document for each in every if (document := document_of(each)) is not None):
        lines += ["", f"### {kind.__name__}", "", *_described_here(kind)]
        stored = ", ".join(f"`{each.mark}`" for each in own_fields(kind) if each.text == AS_STORED)
        if stored:
            lines += ["", f"As in {ROUTES}: {stored}."]
    return "\n".join(lines) + "\n"


def _lines() -> Iterator[str]:
    yield from ("", "### The filter", "")
    yield (
        "`--where 'status:dead,retrying destination:hooks.example.com since:2h -error:timeout'`: words with a blank between"
        " them, of which a delivery meets all. Several values of a field stand between commas, values with blanks, commas or"
        ' quotes in `"…"`. With `-` before it, a field excludes its values. An id, an event id and a URL may stand alone.'
    )
    yield from _table("field", [f"| `{each.name}` | {_text(each.help)} |" for each in FIELDS])
    yield from ("", "### Exit statuses", "")
    yield "3 is of the commands on deliveries, the others of every command. A command's own are with it, on the site."
    yield from _table(
        "exit status", [f"| {code} | {_text(text)} |" for code, text in sorted(SHARED_EXITS.items())]
    )
    yield from ("| 4, 5 of `doctor` | the verdict is `stalled`, `failing` |", "")


def _own(command: Command) -> list[tuple[int, str]]:
    """Give the exit statuses that mean something else than those of every command."""
    return sorted((code, text) for code, text in command.exits.items() if SHARED_EXITS.get(code) != text)


def _entries() -> Iterator[str]:
    every = dict(commands())
    shared: dict[str, str] = {}  # by option; another meaning of the same name belongs to its command
    for row, number in Counter(row for command in every.values() for row in _options(command)).items():
        if number > 1:
            shared.setdefault(_name(row), row)
    yield "### Options of several commands"
    yield from _table("option", [*shared.values()])
    for name, command in every.items():
        yield from _entry(name, command, {*shared.values()})


def _table(head: str, rows: list[str]) -> Iterator[str]:
    if rows:
        yield from ("", f"| {head} | meaning |", "|---|---|", *rows)


def _with_inner(kinds: Iterable[type[msgspec.Struct]]) -> list[type[msgspec.Struct]]:
    """Give structs, each once, with those that they hold behind them."""
    found: dict[type[msgspec.Struct], None] = {}
    waiting = [*kinds]
    while waiting:
        kind = waiting.pop(0)
        if kind not in found:
            found[kind] = None
            waiting[:0] = [each.inner for each in own_fields(kind) if each.inner is not None]
    names = Counter(kind.__name__ for kind in found)
    assert set(names.values()) <= {1}, "two documents have one name"
    return list(found)


def _described_here(kind: type[msgspec.Struct]) -> Iterator[str]:
    for each in own_fields(kind):
        if each.text != AS_STORED:
            more = "" if each.inner is None else f" [{each.inner.__name__}](#{each.inner.__name__.lower()})"
            yield f"- `{each.mark}`{': ' if each.text else ''}{_text(each.text)}{more}"


def _entry(name: str, command: Command, shared: set[str]) -> Iterator[str]:
    usage = command.collect_usage_pieces(click.Context(command, info_name=name))
    yield from ("", f"### {name}")
    if usage != ["[OPTIONS]"]:
        yield from ("", f"`{' '.join([name, *usage])}`")
    for part in (command.help or "").split("\n\n"):
        yield from ("", _text(part))
    options = _options(command)
    yield from _table("option", [row for row in options if row not in shared])
    also = ", ".join(f"`{_name(row)}`" for row in options if row in shared)
    document = document_of(command)
    writes = (
        f" `--json` writes {'an' if document.__name__[0] in 'AO' else 'a'} `{document.__name__}`."
        if document
        else ""
    )
    if also:
        yield from ("", f"Also: {also}.{writes}")
    own = _own(command)
    if own:
        yield from ("", "Exit status:", "", *(f"- {code}: {_text(text)}" for code, text in own))


def _name(row: str) -> str:
    return row.split("`")[1]


def _options(command: Command) -> list[str]:
    """Give the row of each option."""
    context = click.Context(command)
    rows = []
    for option in command.params:
        if not isinstance(option, click.Option):
            continue
        names = ", ".join(f"`{each}`" for each in [*option.opts, *option.secondary_opts])
        metavar = "" if option.is_flag else f" {_text(_metavar(option, context))}"
        extra = option.get_help_extra(context)
        notes = [f"default: {extra['default']}"] if "default" in extra else []
        notes += ["required"] if option.required else []
        more = f" ({'; '.join(notes)})" if notes else ""
        rows.append(f"| {names}{metavar} | {_text(option.help or '')}{more} |")
    return rows


def _metavar(option: click.Option, context: click.Context) -> str:
    return option.make_metavar(context).strip("[]").replace("|", ", ")


def _text(text: str) -> str:
    """Keeps text from being read as markup; what stands in backticks is code already."""
    parts = " ".join(text.replace("``", "`").split()).split("`")
    return "`".join(
        part
        if number % 2
        else part.replace("<", "&lt;").replace("|", "\\|").replace("_", "\\_").replace("*", "\\*")
        for number, part in enumerate(parts)
    )


if __name__ == "__main__":
    if "--each" in sys.argv:
        sys.stdout.write(each_command())
    else:
        sys.exit(generated.run(COMMAND, __doc__, {PAGE: render}))
