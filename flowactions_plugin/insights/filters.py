"""The filter of deliveries, and its one spelling for the pages' queries and for the options of commands."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from typing import Any

import msgspec

from flowactions_plugin.clock import Clock, system_clock
from flowactions_plugin.errors import EgressRefused, FilterInvalid
from flowactions_plugin.insights.fields import BY_NAME, FIELDS, RANGES
from flowactions_plugin.log_text import is_unicode


class Filter(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Which rows are selected: those that meet everything that is given; ``None`` selects all.

    It is the one filter of routes, pages, commands and bulk actions, and is stored with the latter as JSON.

    What each selects, `FIELDS` says; times are Unix milliseconds, and ``…_before`` is not within the range.
    """

    ids: tuple[str, ...] | None = None
    organization_id: str | None = None
    status: str | None = None
    agent_id: str | None = None
    destination: str | None = None
    event_type: str | None = None
    event_id: str | None = None
    idempotency_key: str | None = None
    flow_id: str | None = None
    node_id: str | None = None
    error_class: str | None = None
    last_status_code: int | None = None
    created_from: int | None = None
    created_before: int | None = None
    finished_from: int | None = None
    finished_before: int | None = None


def parse(given: Mapping[str, str], clock: Clock = system_clock) -> Filter:
    """Return the filter that names and values stand for. Values without text are not given.

    Args:
        given: values by the names of `FIELDS`. ``destination`` may be a URL, ``id`` several ids by commas; a time is ISO 8601
            or a time of the day, in UTC where it names no offset, or ``90s``, ``15m``, ``2h``, ``3d``, ``1w``: so long ago.
        clock: Unix seconds, for times that are so long ago.

    Raises:
        FilterInvalid: a name or a value is wrong; the message says what is allowed, and repeats no value.
    """
    values: dict[str, Any] = {}
    for name, text in given.items():
        if name not in BY_NAME:
            raise FilterInvalid(_unknown(name), name)
        field = BY_NAME[name]
        value = text.strip()
        if not value:
            continue
        try:
            _check_text(value, field.most)
            values[field.attribute] = field.read(value, clock)
        except (ValueError, EgressRefused) as exc:
            raise FilterInvalid(f"{name}: {exc}", name) from None
    for column, name in RANGES:
        start, end = values.get(f"{column}_from"), values.get(f"{column}_before")
        if start is not None and end is not None and start >= end:
            raise FilterInvalid(f"{name}: must be later than the time from which is searched", name)
    return Filter(**values)


def to_query(wanted: Filter) -> dict[str, str]:
    """Return the names and values of a filter: `parse` reads the same filter from them."""
    return {
        field.name: field.write(value)
        for field in FIELDS
        if (value := getattr(wanted, field.attribute)) is not None
    }


def _check_text(value: str, most: int) -> None:
    if len(value) > most:
        raise ValueError(f"must not be longer than {most} characters")
    if "\0" in value:
        raise ValueError("must not hold the character NUL")  # which PostgreSQL cannot store
    if not is_unicode(value):
        raise ValueError("must be valid Unicode")


def _unknown(name: str) -> str:
    close = difflib.get_close_matches(name, BY_NAME, n=1)
    meant = f"did you mean {close[0]}?" if close else f"filters are {', '.join(BY_NAME)}"
    return f"no filter has this name: {meant}"
