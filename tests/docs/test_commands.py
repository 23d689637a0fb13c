from __future__ import annotations

import click
import pytest

from flowactions_plugin.cli.commands import flowactions
from tests.docs.commands import commands, document_of, documents

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
    assert document is None or f"### {document.__name__}\n" in documents()


def test_every_group_explains_itself() -> None:
    """Also the groups have help."""
    for group in (
        flowactions,
        *(each for each in flowactions.commands.values() if isinstance(each, click.Group)),
    ):
        assert group.help
