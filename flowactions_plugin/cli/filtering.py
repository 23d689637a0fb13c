"""The options by which commands select deliveries: the fields of `flowactions_plugin.deliveries.fields`."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

import click

from flowactions_plugin.deliveries.fields import BY_NAME, FIELDS

if TYPE_CHECKING:
    from flowactions_plugin.deliveries.filters import Filter

Function = TypeVar("Function", bound=Callable[..., Any])


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
    from flowactions_plugin.deliveries.filters import parse

    values = {name: given.get(_variable(name)) for name in BY_NAME}
    return parse({name: value for name, value in values.items() if value is not None})


def is_given(given: Mapping[str, str | None]) -> bool:
    """Return whether any filter is given."""
    return any(given.get(_variable(name)) for name in BY_NAME)


def _variable(name: str) -> str:
    # Some names are Python's own words.
    return f"by_{name.replace('-', '_')}"
