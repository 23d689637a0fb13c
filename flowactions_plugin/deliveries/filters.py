"""One spelling of a filter, for the pages' queries and for the options of commands."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any, Final

from flowactions_plugin.clock import Clock, is_id, system_clock, to_iso
from flowactions_plugin.deliveries.queries import Filter
from flowactions_plugin.egress.destination import parse_destination
from flowactions_plugin.errors import EgressRefused, FilterInvalid

STATES: Final = ("pending", "retrying", "delivered", "dead")

ERRORS: Final = ("timeout", "network", "refused", "not_sent", "waits", "cancelled", "other")
"""Kinds of failure beside ``http_4xx`` and the like (decision 33)."""

MOST_IDS: Final = 1000
MOST_CHARACTERS: Final = 2048

_HTTP: Final = re.compile(r"http_[1-9]xx")
_AGO: Final = re.compile(r"([0-9]{1,9})([smhdw])", re.ASCII)
_SECONDS: Final = {"s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 604_800}


def parse(given: Mapping[str, str], clock: Clock = system_clock) -> Filter:
    """Return the filter that names and values stand for. Values without text are not given.

    Args:
        given: ``status``, ``organization``, ``agent``, ``destination`` (a URL is one, too), ``type``, ``event-id``,
            ``key``, ``flow``, ``node``, ``error``, ``from`` and ``before`` (of the enqueue), ``ended-from`` and
            ``ended-before`` (ISO 8601, in UTC where it names no zone, or ``90s``, ``15m``, ``2h``, ``3d``, ``1w``: so long
            ago), ``id`` (several by commas).
        clock: Unix seconds, for times that are so long ago.

    Raises:
        FilterInvalid: a name or a value is wrong; the message says what is allowed, and repeats no value.
    """
    values: dict[str, Any] = {}
    for name, text in given.items():
        if name not in _FIELDS:
            raise FilterInvalid(_unknown(name), name)
        field, read, _ = _FIELDS[name]
        value = text.strip()
        if not value:
            continue
        try:
            _check_text(value, _MOST.get(name, MOST_CHARACTERS))
            values[field] = read(value, clock)
        except (ValueError, EgressRefused) as exc:
            raise FilterInvalid(f"{name}: {exc}", name) from None
    for start, end, name in (
        ("created_from", "created_before", "before"),
        ("finished_from", "finished_before", "ended-before"),
    ):
        if start in values and end in values and values[start] >= values[end]:
            raise FilterInvalid(f"{name}: must be later than the time from which is searched", name)
    return Filter(**values)


def to_query(wanted: Filter) -> dict[str, str]:
    """Return the names and values of a filter: `parse` reads the same filter from them."""
    return {
        name: write(value)
        for name, (field, _, write) in _FIELDS.items()
        if (value := getattr(wanted, field)) is not None
    }


def _check_text(value: str, most: int) -> None:
    if len(value) > most:
        raise ValueError(f"must not be longer than {most} characters")
    if "\0" in value:
        raise ValueError("must not hold the character NUL")  # which PostgreSQL cannot store
    try:
        value.encode()
    except UnicodeEncodeError:
        raise ValueError("must be valid Unicode") from None


def _unknown(name: str) -> str:
    close = difflib.get_close_matches(name, _FIELDS, n=1)
    meant = f"did you mean {close[0]}?" if close else f"there are {', '.join(_FIELDS)}"
    return f"there is no such filter: {meant}"


def _text(value: str, _clock: Clock) -> str:
    return value


def _status(value: str, _clock: Clock) -> str:
    if value not in STATES:
        raise ValueError(f"must be one of {', '.join(STATES)}")
    return value


def _error(value: str, _clock: Clock) -> str:
    if value not in ERRORS and not _HTTP.fullmatch(value):
        raise ValueError(f"must be http_4xx, http_5xx or the like, or one of {', '.join(ERRORS)}")
    return value


def _destination(value: str, _clock: Clock) -> str:
    return parse_destination(value).key


def _ids(value: str, _clock: Clock) -> tuple[str, ...]:
    found = tuple(dict.fromkeys(part.strip().lower() for part in value.split(",") if part.strip()))
    if not found or not all(map(is_id, found)):
        raise ValueError("must be ids of deliveries, separated by commas")
    if len(found) > MOST_IDS:
        raise ValueError(f"must be {MOST_IDS} ids at the most")
    return found


def _moment(value: str, clock: Clock) -> int:
    ago = _AGO.fullmatch(value)
    if ago:
        found = int(clock() * 1000) - int(ago[1]) * _SECONDS[ago[2]] * 1000
    else:
        try:
            moment = datetime.fromisoformat(value)
            found = round((moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp() * 1000)
        except (ValueError, OverflowError):
            raise ValueError(
                "must be a date and time such as 2030-01-31T12:00:00Z, or how long ago, such as 15m, 2h or 3d"
            ) from None
    if found < 0:
        raise ValueError("must not be before 1970")
    return found


_FIELDS: Final[Mapping[str, tuple[str, Callable[[str, Clock], Any], Callable[[Any], str]]]] = {
    "status": ("status", _status, str),
    "organization": ("organization_id", _text, str),
    "agent": ("agent_id", _text, str),
    "destination": ("destination", _destination, str),
    "type": ("event_type", _text, str),
    "event-id": ("event_id", _text, str),
    "key": ("idempotency_key", _text, str),
    "flow": ("flow_id", _text, str),
    "node": ("node_id", _text, str),
    "error": ("error_class", _error, str),
    "from": ("created_from", _moment, to_iso),
    "before": ("created_before", _moment, to_iso),
    "ended-from": ("finished_from", _moment, to_iso),
    "ended-before": ("finished_before", _moment, to_iso),
    "id": ("ids", _ids, ",".join),
}
"""Name → field of the filter, how its value is read, and how it is written."""

_MOST: Final = {"id": MOST_IDS * 40}

NAMES: Final = tuple(_FIELDS)
"""The names that `parse` knows, for example for the options of a command."""
