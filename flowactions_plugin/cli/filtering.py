"""The options by which commands select deliveries: the names of `flowactions_plugin.deliveries.filters`."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

if TYPE_CHECKING:
    from flowactions_plugin.deliveries.queries import Filter

Function = TypeVar("Function", bound=Callable[..., Any])

FILTERS: Final[Mapping[str, tuple[str, str]]] = {
    "status": ("STATE", "pending, retrying, delivered or dead."),
    "organization": ("ID", "Of this organization."),
    "agent": ("ID", "Of this agent."),
    "destination": ("URL", "To this scheme, host and port; a URL is one, too."),
    "type": ("TYPE", "Of this event type."),
    "event-id": ("ID", "Of this event, as receivers see it."),
    "key": ("KEY", "Enqueued with this idempotency key."),
    "flow": ("ID", "Of this flow."),
    "node": ("ID", "Of this node."),
    "error": ("CLASS", "Whose last failure is of this class: http_5xx, timeout, network, refused, …"),
    "from": ("TIME", "Enqueued at this time or later: ISO 8601, or 15m, 2h, 3d ago."),
    "before": ("TIME", "Enqueued before this time."),
    "ended-from": ("TIME", "Ended at this time or later."),
    "ended-before": ("TIME", "Ended before this time."),
    "id": ("IDS", "These deliveries, by commas."),
}
"""Name → what its value is called, and help."""


def filter_options(*, without: Collection[str] = ()) -> Callable[[Function], Function]:
    """Return the options of a filter; the command gets their values by name.

    Args:
        without: names that the command does not have.
    """

    def add(function: Function) -> Function:
        for name, (metavar, text) in reversed([*FILTERS.items()]):
            if name not in without:
                function = click.option(f"--{name}", _variable(name), metavar=metavar, help=text)(function)
        return function

    return add


def filter_of(given: Mapping[str, str | None]) -> Filter:
    """Return the filter of a command's options.

    Raises:
        FilterInvalid: a value is wrong.
    """
    from flowactions_plugin.deliveries.filters import parse

    values = {name: given.get(_variable(name)) for name in FILTERS}
    return parse({name: value for name, value in values.items() if value is not None})


def is_given(given: Mapping[str, str | None]) -> bool:
    """Return whether any filter is given."""
    return any(given.get(_variable(name)) for name in FILTERS)


def _variable(name: str) -> str:
    # Some names are Python's own words.
    return f"by_{name.replace('-', '_')}"
