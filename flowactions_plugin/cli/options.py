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
limit_option = click.option(
    "--limit", type=click.IntRange(1, 1000), default=50, show_default=True, help="The most that are shown."
)


def content(read: Callable[[str | None], Any]) -> Callable[..., Any]:
    """Return what reads the file that an option names, before the event loop runs: in it, Ctrl+C ends no read of the terminal."""
    return lambda context, _param, path: None if context.resilient_parsing else read(path)


def read_file(path: str | None) -> bytes | None:
    """Return the bytes of a file, of standard input for ``-``; ``None`` without one.

    Raises:
        click.FileError: it cannot be read.
    """
    if path is None:
        return None
    try:
        with click.open_file(path, "rb") as file:
            content: bytes = file.read()
    except OSError as exc:
        raise click.FileError(path, exc.strerror) from None
    return content


def read_secret(path: str | None) -> str | None:
    """Return the signing secret of a file, or that of the environment; ``None`` when there is none.

    Raises:
        click.FileError: the file cannot be read.
        click.UsageError: it holds no text.
    """
    import os

    content = read_file(path)
    if content is None:
        return os.environ.get("WEBHOOK_SECRET") or None
    try:
        secret = content.decode().strip("\r\n")
    except UnicodeDecodeError:
        raise click.UsageError("The secret's file is not UTF-8.") from None
    if not secret:
        raise click.UsageError("The secret's file is empty.")
    return secret


secret_option = click.option(
    "--secret-file",
    "secret",
    metavar="FILE",
    callback=content(read_secret),
    help="A file with the signing secret; '-': standard input. Without it, the environment's WEBHOOK_SECRET.",
)


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
