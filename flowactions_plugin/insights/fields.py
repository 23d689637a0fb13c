"""The fields by which deliveries are searched: one table for JSON, pages, commands and what is stored of a bulk action.

A field is added here and to `filters.Filter`. Declaring a command imports this module, which therefore imports little.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import UTC, datetime, time, timedelta
from typing import Any, Final, NamedTuple

from flowactions_plugin.clock import Clock, is_id, to_iso

STATES: Final = ("pending", "retrying", "delivered", "dead")

ERRORS: Final = ("timeout", "network", "refused", "not_sent", "waits", "cancelled", "other")
"""Kinds of failure beside ``http_4xx`` and the like (decision 33)."""

MOST_IDS: Final = 1000
MOST_CHARACTERS: Final = 2048

_HTTP: Final = re.compile(r"http_[1-9]xx")
_AGO: Final = re.compile(r"([0-9]{1,9})([smhdw])", re.ASCII)
_DAY_AND_TIME: Final = re.compile(
    r"(?:(today|yesterday)(?: (\d{1,2}:\d\d(?::\d\d)?))?|(\d{1,2}:\d\d(?::\d\d)?)) ?(Z|[+-]\d\d:\d\d)?",
    re.ASCII | re.IGNORECASE,
)
_SECONDS: Final = {"s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 604_800}


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


def _code(value: str, _clock: Clock) -> int:
    if not (value.isascii() and value.isdigit() and 100 <= int(value[:9]) <= 999):
        raise ValueError("must be a status code such as 503")
    return int(value)


def _destination(value: str, _clock: Clock) -> str:
    from flowactions_plugin.egress.destination import parse_destination  # noqa: PLC0415  options are declared without it

    return parse_destination(value).key


def _ids(value: str, _clock: Clock) -> tuple[str, ...]:
    found = tuple(dict.fromkeys(part.strip().lower() for part in value.split(",") if part.strip()))
    if not found or not all(map(is_id, found)):
        raise ValueError("must be ids of deliveries, separated by commas")
    if len(found) > MOST_IDS:
        raise ValueError(f"must be {MOST_IDS} ids at the most")
    return found


def _moment(value: str, clock: Clock) -> int:
    """Read a time; the script of the pages reads the same words in the reader's zone."""
    ago = _AGO.fullmatch(value)
    if ago:
        found = int(clock() * 1000) - int(ago[1]) * _SECONDS[ago[2]] * 1000
    else:
        try:
            moment = _of_the_day(value, clock) or datetime.fromisoformat(value)
            found = round((moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp() * 1000)
        except (ValueError, OverflowError):
            raise ValueError(
                "must be a date and time such as 2030-01-31T12:00:00Z, a time such as 14:00 or yesterday 14:00, or how long"
                " ago, such as 15m, 2h or 3d. Times are in UTC, or end in an offset such as +02:00"
            ) from None
    if found < 0:
        raise ValueError("must not be before 1970")
    return found


def _of_the_day(value: str, clock: Clock) -> datetime | None:
    """Return the time of ``today``, ``yesterday 14:00`` or ``14:00+02:00``; ``None`` for any other text."""
    words = _DAY_AND_TIME.fullmatch(value)
    if words is None:
        return None
    zone = time.fromisoformat(f"00:00{words[4] or 'Z'}".upper()).tzinfo
    now = datetime.fromtimestamp(clock(), zone)
    hour, _, rest = (words[2] or words[3] or "0:00").partition(":")
    moment = datetime.combine(now, time.fromisoformat(f"{hour:0>2}:{rest}"), zone)
    is_yesterday = moment > now if words[1] is None else words[1].lower() == "yesterday"
    return moment - timedelta(days=1) if is_yesterday else moment


class Field(NamedTuple):
    """A field of a filter.

    Attributes:
        name: in a query, and as the option of a command.
        attribute: of the `Filter`.
        metavar: what its value is called in the help of commands.
        help: of the option.
        label: in the form of the page; empty: it is no field of the form.
        hint: in the empty field of the form.
        read: returns the value that a text stands for; raises ``ValueError`` or ``EgressRefused``, which say what is allowed.
        write: returns a text that `read` reads as the same value.
        most: how many characters a text may have.
    """

    name: str
    attribute: str
    metavar: str
    help: str
    label: str = ""
    hint: str = ""
    read: Callable[[str, Clock], Any] = _text
    write: Callable[[Any], str] = str
    most: int = MOST_CHARACTERS

    @property
    def json(self) -> str:
        """Its name in the queries and bodies of routes; empty: they have none."""
        if self.name in {"organization", "id"}:
            return ""
        words = self.attribute.removeprefix("last_").split("_")
        return words[0] + "".join(map(str.capitalize, words[1:]))

    @property
    def is_time(self) -> bool:
        """Whether its value is a time."""
        return self.read is _moment


def _time(name: str, attribute: str, text: str, label: str, hint: str = "") -> Field:
    return Field(name, attribute, "TIME", text, label, hint, _moment, to_iso)


_STATES: Final = f"{', '.join(STATES[:-1])} or {STATES[-1]}."
_SINCE: Final = (
    "Enqueued at this time or later: ISO 8601, 14:00, yesterday 14:00, or 15m, 2h, 3d ago. UTC, unless the time ends in an"
    " offset: 14:00+02:00."
)
_CLASS: Final = "Whose last failure is of this class: http_5xx, timeout, network, refused, …"
_PLACE: Final = "To this scheme, host and port; a URL is one, too."

FIELDS: Final = (
    Field("status", "status", "STATE", _STATES, read=_status),
    Field("organization", "organization_id", "ID", "Of this organization.", "Organization"),
    Field("agent", "agent_id", "ID", "Of this agent.", "Agent"),
    Field(
        "destination", "destination", "URL", _PLACE, "Destination", "https://hooks.example.com", _destination
    ),
    Field("type", "event_type", "TYPE", "Of this event type.", "Event type", "order.placed"),
    Field("event-id", "event_id", "ID", "Of this event, as receivers see it.", "Event id", "evt_…"),
    Field("key", "idempotency_key", "KEY", "Enqueued with this idempotency key.", "Idempotency key"),
    Field("flow", "flow_id", "ID", "Of this flow.", "Flow"),
    Field("node", "node_id", "ID", "Of this node.", "Node"),
    Field("error", "error_class", "CLASS", _CLASS, "Failure", "http_5xx, timeout, network …", _error),
    Field(
        "code",
        "last_status_code",
        "NUMBER",
        "Last answered with this status code.",
        "Status code",
        "503",
        _code,
    ),
    _time("from", "created_from", _SINCE, "Enqueued from", "2h, 14:00 or yesterday"),
    _time(
        "before",
        "created_before",
        "Enqueued before this time, written as for --from.",
        "Enqueued before",
        "15m or 14:30",
    ),
    _time(
        "ended-from", "finished_from", "Ended at this time or later, written as for --from.", "Ended from", "1d"
    ),
    _time("ended-before", "finished_before", "Ended before this time, written as for --from.", "Ended before"),
    Field("id", "ids", "IDS", "These deliveries, by commas.", "Id", "", _ids, ",".join, MOST_IDS * 40),
)

TIMES: Final = frozenset(field.name for field in FIELDS if field.is_time)
"""The names of the fields that hold a time."""

BY_NAME: Final = {field.name: field for field in FIELDS}

RANGES: Final = (("created", "before"), ("finished", "ended-before"))
"""Columns of times, without their ending, and the names of the fields that end a range of each."""
