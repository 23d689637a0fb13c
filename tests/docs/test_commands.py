from __future__ import annotations

import re
from collections.abc import Iterator

import click
import pytest

from flowactions_plugin.cli.commands import flowactions
from tests.docs.commands import commands, document_of, each_command
from tests.docs.fences import ROOT

NAMED = dict(commands())


@pytest.mark.parametrize("name", NAMED)
def test_a_command_explains_itself(name: str) -> None:
    """It has a sentence of help, and so has each of its options."""
    command = NAMED[name]
    assert (command.help or "").strip().endswith((".", ")"))
    for option in command.params:
        if isinstance(option, click.Option):
            assert (option.help or "").endswith((".", "…")), option.name


@pytest.mark.parametrize("name", NAMED)
def test_a_command_with_json_has_a_document(name: str) -> None:
    """The option and the documented struct come together."""
    command = NAMED[name]
    has_option = any("--json" in option.opts for option in command.params)
    document = document_of(command)
    assert has_option == (document is not None)
    assert document is None or f"### {document.__name__}\n" in each_command()


def test_every_group_explains_itself() -> None:
    """Also the groups have help."""
    for group in (
        flowactions,
        *(each for each in flowactions.commands.values() if isinstance(each, click.Group)),
    ):
        assert group.help


IN_PAGES = re.compile(
    r"(?:^|[`(|]|\$ )(flowactions(?: [^`\n|]*)?|(?:outbox|destinations) [a-z][^`\n|]*)(?=[`\n|]|$)",
    re.MULTILINE,
)
"""A command in backticks, or in a line of a block."""

IN_MESSAGES = re.compile(r"'(flowactions [^'{}\n]+)'")


def written() -> Iterator[tuple[str, str]]:
    """Give each command that pages and the plugin's messages name, and where."""
    for path in (*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")):
        yield from ((path.name, each) for each in IN_PAGES.findall(path.read_text()))
    for path in ROOT.glob("flowactions_plugin/**/*.py"):
        yield from ((path.name, each) for each in IN_MESSAGES.findall(path.read_text()))


def unknown_in(line: str) -> str | None:
    """Give the first word of a command line that is no command or option of it; None: all are."""
    command: click.Command = flowactions
    words = iter(line.split()[line.startswith("flowactions") :])
    for word in words:
        options = {name: each for each in command.params for name in (*each.opts, *each.secondary_opts)}
        if word.startswith("-"):
            option = options.get(word)
            if option is None and word not in {"-h", "--help"}:
                return word
            if isinstance(option, click.Option) and not option.is_flag:
                next(words, None)
        elif isinstance(command, click.Group) and re.fullmatch(r"[a-z-]+", word):
            if word not in command.commands:
                return word
            command = command.commands[word]
    return None


def test_commands_that_are_written_exist() -> None:
    """With their options, in pages and in messages."""
    found = [*written()]
    assert len(found) > 150
    assert [(name, line, word) for name, line in found if (word := unknown_in(line))] == []
    assert unknown_in("flowactions outbox actions --stop x") == "actions"
    assert unknown_in("outbox list --where since:2h --from 2h") == "--from"
