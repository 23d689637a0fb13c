"""The generated part of the page of commands, made from their declarations: ``python -m tests.docs.commands --write``."""

from __future__ import annotations

import importlib
import re
import sys
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import click
import msgspec

from flowactions_plugin.cli.commands import flowactions
from flowactions_plugin.cli.frame import COMMON_EXITS, Command
from flowactions_plugin.insights.filters import Filter
from flowactions_plugin.insights.results import Attempt, Delivery, DeliveryDetail
from tests.docs import generated

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "commands.md"
COMMAND = "python -m tests.docs.commands --write"
BEGIN, END = "<!-- generated -->\n", "<!-- end of what is generated -->\n"

OF_THE_HTTP_PAGE = Delivery, DeliveryDetail, Attempt
"""Structs whose fields another page describes, and not a docstring."""

SHORT = {
    "Attempt.certainty": "whether the receiver can have had it: `never connected`, `sent, no answer`, `answered` or `answered through the proxy`",
    "Share.name": "the destination or the organization",
    "Share.number": "how many deliveries it has",
}
"""Fields of structs whose docstring is one line."""

AS_STORED = "as in [the routes of the outbox](http.md)"


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
    about = _described(kind)
    hints = get_type_hints(kind)
    for field in msgspec.structs.fields(kind):
        where = f"{path}{field.encode_name}"
        text = (
            about.get(field.name)
            or SHORT.get(f"{kind.__name__}.{field.name}")
            or (AS_STORED if _elsewhere(kind, field.name) else "")
        )
        assert text, f"{kind.__name__}.{field.name} is not described"
        inner, many = _inner(hints[field.name])
        yield f"{where}[]" if many else where, text
        if (
            inner is not None
            and inner is not Filter
            and not inner.__module__.startswith("flowactions_hookspecs")
        ):
            yield from fields(inner, f"{where}[]." if many else f"{where}.")


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
    before, _, rest = PAGE.read_text().partition(BEGIN)
    return f"{before}{BEGIN}{chr(10).join(_lines())}\n{END}{rest.partition(END)[2]}"


def _lines() -> Iterator[str]:
    yield ""
    yield "| command | does |"
    yield "|---|---|"
    for name, command in commands():
        first = (command.help or "").split("\n\n")[0]
        yield f"| [`{name}`](#{name.replace(' ', '-')}) | {_text(first)} |"
    for name, command in commands():
        yield from _entry(name, command)
    yield ""


def _entry(name: str, command: Command) -> Iterator[str]:
    context = click.Context(command, info_name=name)
    yield from ("", f"### {name}", "")
    yield f"`{' '.join([name, *command.collect_usage_pieces(context)])}`"
    for part in (command.help or "").split("\n\n"):
        yield from ("", _text(part))
    options = [each for each in command.params if isinstance(each, click.Option)]
    yield from ("", "| option | meaning |", "|---|---|")
    for option in options:
        names = ", ".join(f"`{each}`" for each in [*option.opts, *option.secondary_opts])
        metavar = "" if option.is_flag else f" {_text(_metavar(option, context))}"
        extra = option.get_help_extra(context)
        notes = [f"default: {extra['default']}"] if "default" in extra else []
        notes += ["required"] if option.required else []
        more = f" ({'; '.join(notes)})" if notes else ""
        yield f"| {names}{metavar} | {_text(option.help or '')}{more} |"
    yield from ("", "| exit status | meaning |", "|---|---|")
    exits = {**COMMON_EXITS, **command.exits}
    for code in sorted(exits):
        yield f"| {code} | {_text(exits[code])} |"
    document = document_of(command)
    if document is not None:
        yield from ("", "| field of `--json` | meaning |", "|---|---|")
        for field, text in fields(document):
            yield f"| `{field}` | {_text(text)} |"


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
    sys.exit(generated.run(COMMAND, __doc__, PAGE, render))
