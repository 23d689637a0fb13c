"""Options that several commands have, among them those of the filter by which commands select deliveries."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

from flowactions_plugin.cli.output import short, status
from flowactions_plugin.insights.fields import BY_NAME, FIELDS, TIMES

if TYPE_CHECKING:
    from flowactions_plugin.insights.filters import Filter

Function = TypeVar("Function", bound=Callable[..., Any])

MOST_CHARACTERS: Final = 2048


def host_option(*, required: bool = False) -> Callable[[Function], Function]:
    """Return the option ``--host``."""
    text = "Where the host is made: 'package.module:name' of a Host, or of a function that returns one."
    if not required:
        text += " Without it, the settings of the environment are used."
    return click.option("--host", required=required, metavar="MODULE:NAME", help=text)


class Words(click.ParamType):  # type: ignore[type-arg]  # generic for a checker only
    """Text that every database can store."""

    name = "text"

    def convert(self, value: str, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Return the text."""
        try:
            value.encode()
        except UnicodeEncodeError:
            self.fail("It must be valid UTF-8.", param, ctx)
        if "\0" in value or len(value) > MOST_CHARACTERS:
            self.fail(f"It must be text of at most {MOST_CHARACTERS} characters.", param, ctx)
        return value


WORDS: Final = Words()


def organization_option(text: str) -> Callable[[Function], Function]:
    """Return the option ``--organization``."""
    return click.option("--organization", type=WORDS, metavar="ID", help=text)


reason_option = click.option(
    "--reason",
    type=WORDS,
    default="",
    metavar="TEXT",
    help="The reason, for the audit; it is shown to the organization.",
)
yes_option = click.option("--yes", "-y", is_flag=True, help="Do not ask.")

secret_option = click.option(
    "--secret-file",
    "secret",
    metavar="FILE",
    help="A file with the signing secret; '-': standard input. Without it, the environment's WEBHOOK_SECRET.",
)
"""`read_secret` reads it."""


def read_secret(path: str | None) -> str | None:
    """Return the signing secret of a file, or that of the environment; ``None`` when there is none.

    Raises:
        click.UsageError: the file cannot be read, or holds no text.
    """
    import os

    if path is None:
        return os.environ.get("WEBHOOK_SECRET") or None
    try:
        with click.open_file(path, encoding="utf-8") as file:
            secret: str = file.read(1 << 16).strip("\r\n")
    except (OSError, UnicodeDecodeError) as exc:
        reason = exc.strerror if isinstance(exc, OSError) else "it is not UTF-8"
        raise click.UsageError(f"The secret's file cannot be read: {reason}.") from None
    if not secret:
        raise click.UsageError("The secret's file is empty.")
    return secret


def filter_options(*, without: Collection[str] = ()) -> Callable[[Function], Function]:
    """Return the options of a filter; the command gets their values by name.

    Args:
        without: names that the command does not have.
    """

    def add(function: Function) -> Function:
        for field in reversed(FIELDS):
            if field.name not in without:
                option = click.option(
                    f"--{field.name}", _variable(field.name), metavar=field.metavar, help=field.help
                )
                function = option(function)
        return function

    return add


def filter_of(given: Mapping[str, str | None]) -> Filter:
    """Return the filter of a command's options.

    Raises:
        FilterInvalid: a value is wrong.
    """
    from flowactions_plugin.insights.filters import parse

    values = {name: given.get(_variable(name)) for name in BY_NAME}
    return parse({name: value for name, value in values.items() if value is not None})


def say_times(wanted: Filter) -> None:
    """Say which times a filter has, as its words and offsets were read."""
    from flowactions_plugin.insights.filters import to_query

    times = [f"--{name} {short(value)}" for name, value in to_query(wanted).items() if name in TIMES]
    if times:
        status(f"times in UTC: {' '.join(times)}")


def _variable(name: str) -> str:
    # Some names are Python's own words.
    return f"by_{name.replace('-', '_')}"
