"""Options that several commands have, among them those of the filter by which commands select deliveries."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import click

from flowactions_plugin.cli.output import hint

if TYPE_CHECKING:
    from flowactions_plugin.insights.filters import Filter

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


def option(names: str, text: str, **more: Any) -> click.Option:
    """Return an option, by its names and its help; a default is shown if it is not empty."""
    return click.Option(names.split(), help=text, show_default=bool(more.get("default")), **more)


REASON: Final = option(
    "--reason",
    "The reason, for the audit; it is shown to the organization.",
    type=WORDS,
    default="",
    metavar="TEXT",
)
YES: Final = option("--yes -y", "Do not ask.", is_flag=True)
LIMIT: Final = option("--limit", "The most that are shown.", type=click.IntRange(1, 1000), default=50)


def organization_option(text: str = "Of this organization.") -> click.Option:
    """Return the option ``--organization``."""
    return option("--organization", text, type=WORDS, metavar="ID")


WHERE: Final = option(
    "--where",
    "Those that this filter selects: 'status:dead destination:hooks.example.com since:2h -error:timeout'.",
    metavar="FILTER",
)


def filter_of(where: str | None) -> Filter:
    """Return the filter of ``--where``, and say how its times were read.

    Raises:
        FilterInvalid: a value is wrong.
    """
    from flowactions_plugin.clock import moment
    from flowactions_plugin.insights.filters import TIMES, parse

    wanted = parse(where or "")
    times = [f"{name}:{moment(wanted.only(name))}" for name in sorted(TIMES) if wanted.values(name)]
    if times:
        hint(f"times in UTC: {' '.join(times)}")
    return wanted
