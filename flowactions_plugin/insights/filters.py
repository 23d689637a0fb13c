"""The filter of deliveries, in words: ``status:dead,retrying destination:hooks.example.com since:2h -error:timeout``.

One table of fields, `FIELDS`, for pages, commands, routes and bulk actions, which store the words. A value with blanks, commas or
quotes stands in double quotes, in which a backslash precedes a quote or a backslash. ``-`` before a field excludes its values.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime, time, timedelta
from typing import Any, Final, NamedTuple

from flowactions_plugin.clock import Clock, is_id, system_clock, to_iso
from flowactions_plugin.errors import EgressRefused, FilterInvalid
from flowactions_plugin.log_text import is_unicode

LIVE_STATES: Final = ("pending", "retrying")
STATES: Final = (*LIVE_STATES, "delivered", "dead", "waiting", "due", "behind")
"""The stored ones; ``waiting`` is pending or retrying, ``due`` of these what may be claimed now, ``behind`` what waits for another."""

STORED: Final = {"waiting": LIVE_STATES, "due": LIVE_STATES, "behind": ("pending",)}
"""State → the stored ones that it is of, unless it is stored itself."""

ERRORS: Final = (
    "timeout",
    "network",
    "refused",
    "chat_refused",
    "chat_limited",
    "chat_unreachable",
    "not_sent",
    "waits",
    "cancelled",
    "other",
)
"""Kinds of failure beside ``http_4xx`` and the like (decision 33)."""

MOST_IDS: Final = 1000
MOST_VALUES: Final = 100
MOST_CHARACTERS: Final = 2048
MOST_WORDS: Final = MOST_IDS * 40

_HTTP: Final = re.compile(r"http_[1-9]xx")
_AGO: Final = re.compile(r"([0-9]{1,9})([smhdw])", re.ASCII)
_DAY_AND_TIME: Final = re.compile(
    r"(?:(today|yesterday)(?: (\d{1,2}:\d\d(?::\d\d)?))?|(\d{1,2}:\d\d(?::\d\d)?)) ?(Z|[+-]\d\d:\d\d)?",
    re.ASCII | re.IGNORECASE,
)
_SECONDS: Final = {"s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 604_800}

_VALUE: Final = r'(?:"(?:[^"\\]|\\.)*"|[^\s,"]+)'
_VALUES: Final = re.compile(rf"{_VALUE}(?:,{_VALUE})*", re.DOTALL)
_WORD: Final = re.compile(rf"(-?)([a-z][a-z-]*):({_VALUE}(?:,{_VALUE})*)(?=\s|$)|(\S+)", re.DOTALL)
_BARE: Final = re.compile(r'[^\s,"\\]+')


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
    from flowactions_plugin.egress.destination import destination_of  # noqa: PLC0415  commands are declared without it

    return destination_of(value if "://" in value else f"https://{value}")


def _id(value: str, _clock: Clock) -> str:
    if not is_id(value.lower()):
        raise ValueError("must be the id of a delivery")
    return value.lower()


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
        name: in words.
        column: of the outbox.
        help: what it selects.
        label: in the form of the page; empty: it is no field of the form.
        hint: in the empty field of the form.
        read: returns the value that a text stands for; raises ``ValueError`` or ``EgressRefused``, which say what is allowed.
        edge: of a time, which edge of a range it is: ``From``, which is within, or ``Before``, which is not.
    """

    name: str
    column: str
    help: str
    label: str = ""
    hint: str = ""
    read: Callable[[str, Clock], Any] = _text
    edge: str = ""

    @property
    def json(self) -> str:
        """Its name in the queries and bodies of routes; empty: it has none there, or one of its own."""
        if self.name in {"organization", "id"}:
            return ""
        words = self.column.removeprefix("last_").removesuffix("_at" if self.edge else "").split("_")
        return words[0] + "".join(map(str.capitalize, words[1:])) + self.edge


_SINCE: Final = (
    "Enqueued at this time or later: ISO 8601, 14:00, yesterday 14:00, or 15m, 2h, 3d ago. UTC, unless the time ends in an"
    " offset: 14:00+02:00."
)

FIELDS: Final = (
    Field(
        "status",
        "status",
        "pending, retrying, delivered or dead; waiting, due, or behind another in order.",
        read=_status,
    ),
    Field("organization", "organization_id", "Of this organization.", "Organization"),
    Field("agent", "agent_id", "Of this agent.", "Agent"),
    Field(
        "destination",
        "destination",
        "To this scheme, host and port; a host alone means https, and a URL is one, too.",
        "Destination",
        "https://hooks.example.com",
        _destination,
    ),
    Field("type", "event_type", "Of this event type.", "Event type", "order.placed"),
    Field("event", "event_id", "Of the event with this id, as receivers see it.", "Event id", "evt_…"),
    Field("key", "idempotency_key", "Enqueued with this idempotency key.", "Idempotency key"),
    Field("flow", "flow_id", "Of this flow.", "Flow"),
    Field("node", "node_id", "Of this node.", "Node"),
    Field(
        "error",
        "error_class",
        "Whose last failure is of this class: http_5xx, timeout, network, refused, …",
        "Failure",
        "http_5xx, timeout, network …",
        _error,
    ),
    Field("code", "last_status_code", "Last answered with this status code.", "Status code", "503", _code),
    Field("since", "created_at", _SINCE, "Enqueued from", "2h, 14:00 or yesterday", _moment, "From"),
    Field(
        "before",
        "created_at",
        "Enqueued before this time, written as since.",
        "Enqueued before",
        "15m",
        _moment,
        "Before",
    ),
    Field(
        "ended-since",
        "finished_at",
        "Ended at this time or later, written as since.",
        "Ended from",
        "1d",
        _moment,
        "From",
    ),
    Field(
        "ended-before",
        "finished_at",
        "Ended before this time, written as since.",
        "Ended before",
        "",
        _moment,
        "Before",
    ),
    Field("id", "id", "The deliveries with these ids.", read=_id),
)

BY_NAME: Final = {field.name: field for field in FIELDS}

_PLACES: Final = {name: place for place, name in enumerate(BY_NAME)}

TIMES: Final = frozenset(field.name for field in FIELDS if field.edge)
"""The names of the fields that hold a time."""


class Term(NamedTuple):
    """One word of a filter: the values of a field, of which a delivery has one, or with ``excluded`` none; of a time there is one."""

    name: str
    values: tuple[Any, ...]
    excluded: bool = False

    @property
    def text(self) -> str:
        """The values as they are written in words."""
        return ",".join(_quoted(to_iso(each) if self.name in TIMES else str(each)) for each in self.values)

    def __str__(self) -> str:
        return f"{'-' if self.excluded else ''}{self.name}:{self.text}"


class Filter(NamedTuple):
    """Which deliveries are selected: those that meet every term; without one, all. As text, it is what `parse` reads as the same."""

    terms: tuple[Term, ...] = ()

    @classmethod
    def of(cls, **values: Any) -> Filter:
        """Return the filter of some fields, by their names with ``_`` for ``-``; ``None`` is left out, a tuple are several values."""
        given = {name.replace("_", "-"): value for name, value in values.items() if value is not None}
        return cls.made(
            Term(name, value if isinstance(value, tuple) else (value,)) for name, value in given.items()
        )

    @classmethod
    def made(cls, terms: Iterable[Term]) -> Filter:
        """Return the filter of some terms."""
        return cls(tuple(sorted(terms, key=lambda term: (_PLACES[term.name], term.excluded))))

    def __str__(self) -> str:
        return " ".join(map(str, self.terms))

    def values(self, name: str) -> tuple[Any, ...]:
        """Return the values of a field of which a delivery has one; none: it may have any."""
        return next((term.values for term in self.terms if term.name == name and not term.excluded), ())

    def only(self, name: str) -> Any:
        """Return the value of a field that all deliveries have; ``None``: they may have others."""
        values = self.values(name)
        return values[0] if len(values) == 1 else None

    @property
    def states(self) -> set[str]:
        """The states that its deliveries can have, as they are stored; none: any."""
        return {state for each in self.values("status") for state in STORED.get(each, (each,))}

    def having(self, name: str, *values: Any) -> Filter:
        """Return the same filter with other values of a field; without values, with none of it."""
        others = [term for term in self.terms if term.name != name or term.excluded]
        return Filter.made([*others, *([Term(name, values)] if values else [])])

    def fields(self) -> dict[str, str]:
        """Return the texts of the fields that a form can have, without what is excluded: one value may need no quotes there."""
        return {term.name: _in_a_form(term) for term in self.terms if not term.excluded}


def parse(words: str, clock: Clock = system_clock, fields: Mapping[str, str] | None = None) -> Filter:
    """Return the filter of words, and of fields of a form, whose texts are written as the values in words are.

    Args:
        words: see the module. A delivery's or an event's id and a URL may stand alone. A time is ISO 8601 or a time of the day,
            in UTC where it names no offset, or ``90s``, ``15m``, ``2h``, ``3d``, ``1w``: so long ago.
        clock: Unix seconds, for times that are so long ago.
        fields: texts by the names of `FIELDS`; empty ones are not given.

    Raises:
        FilterInvalid: a name or a value is wrong; the message says what is allowed, and repeats no value.
    """
    if len(words) > MOST_WORDS:
        raise FilterInvalid(f"must not be longer than {MOST_WORDS} characters")
    found = [_named(*each.groups("")) for each in _WORD.finditer(words)]
    found += [("", name, text.strip()) for name, text in (fields or {}).items() if text.strip()]
    terms: dict[tuple[str, bool], Term] = {}
    for sign, name, text in found:
        term = Term(name, tuple(dict.fromkeys(_read(sign, name, text, clock))), bool(sign))
        if (name, term.excluded) in terms and not term.excluded:
            raise FilterInvalid(f"{name}: is given twice: write several values as {name}:one,two", name)
        before = terms.get((name, term.excluded), Term(name, ()))
        terms[name, term.excluded] = term._replace(values=tuple(dict.fromkeys(before.values + term.values)))
    made = Filter.made(terms.values())
    for start, end in (("since", "before"), ("ended-since", "ended-before")):
        edges = made.only(start), made.only(end)
        if None not in edges and edges[0] >= edges[1]:
            raise FilterInvalid(f"{end}: must be later than {start}", end)
    return made


def _named(sign: str, name: str, text: str, alone: str) -> tuple[str, str, str]:
    """Return the parts of a word, also of one that stands without a name."""
    word = alone or f"{name}:{text}"
    if "://" in word and (alone or name in {"http", "https"}):
        return "", "destination", word
    if not alone:
        return sign, name, text
    if is_id(alone.lower()):
        return "", "id", alone
    if alone.startswith("evt_"):
        return "", "event", alone
    name = alone.lstrip("-").partition(":")[0]
    if name not in BY_NAME or ":" not in alone:
        raise FilterInvalid(_unknown(name), name if name in BY_NAME else "")
    raise FilterInvalid(f'{name}: write a value behind the colon; one with blanks or commas in "quotes"', name)


def _read(sign: str, name: str, text: str, clock: Clock) -> Iterable[Any]:
    """Return the values that a text stands for."""
    if name not in BY_NAME:
        raise FilterInvalid(_unknown(name), name)
    field, most = BY_NAME[name], MOST_IDS if name == "id" else MOST_VALUES
    if field.edge and sign:
        raise FilterInvalid(f"{name}: is a time, and cannot be excluded", name)
    # Times and names of forms may hold blanks; a whole text that is no list of values is one.
    parts = re.findall(_VALUE, text, re.DOTALL) if not field.edge and _VALUES.fullmatch(text) else [text]
    if len(parts) > most:
        raise FilterInvalid(f"{name}: must be {most} values at the most", name)
    try:
        return [value_of(field, _unquoted(each), clock) for each in parts]
    except (ValueError, EgressRefused) as exc:
        raise FilterInvalid(f"{name}: {exc}", name) from None


def value_of(field: Field, text: str, clock: Clock = system_clock) -> Any:
    """Return the one value that a text stands for, whatever it holds; raises as `Field.read` does."""
    if not text or len(text) > MOST_CHARACTERS:
        raise ValueError(f"must have 1 to {MOST_CHARACTERS} characters")
    if "\0" in text:
        raise ValueError("must not hold the character NUL")  # which PostgreSQL cannot store
    if not is_unicode(text):
        raise ValueError("must be valid Unicode")
    return field.read(text, clock)


def _in_a_form(term: Term) -> str:
    alone = "".join(term.values) if len(term.values) == 1 and isinstance(term.values[0], str) else ""
    return alone if alone and alone == alone.strip() and not set(alone) & {'"', ","} else term.text


def _quoted(value: str) -> str:
    return value if _BARE.fullmatch(value) else '"' + re.sub(r'(["\\])', r"\\\1", value) + '"'


def _unquoted(text: str) -> str:
    is_quoted = len(text) > 1 and text[0] == text[-1] == '"'
    return re.sub(r"\\(.)", r"\1", text[1:-1], flags=re.DOTALL) if is_quoted else text


def _unknown(name: str) -> str:
    close = difflib.get_close_matches(name, BY_NAME, n=1)
    meant = f"did you mean {close[0]}:?" if close else f"write field:value, with one of {', '.join(BY_NAME)}"
    return f"no field of a filter has this name: {meant}"
