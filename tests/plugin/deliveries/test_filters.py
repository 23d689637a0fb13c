from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flowactions_plugin.clock import id_at, is_id, new_id, time_of
from flowactions_plugin.errors import FilterInvalid
from flowactions_plugin.insights.filters import BY_NAME, FIELDS, MOST_IDS, STATES, Filter, Term, parse
from flowactions_plugin.storage.schema import outbox

NOW = 1_900_000_000.0
ID = "0190c0de-0000-7000-8000-000000000001"
OTHER = ID[:-1] + "2"


def clock() -> float:
    return NOW


VALUES: dict[str, st.SearchStrategy[Any]] = {
    "status": st.sampled_from(STATES),
    "destination": st.sampled_from(["https://example.com:443", "http://[::1]:80", "http://a.example:8080"]),
    "error": st.sampled_from(["timeout", "http_5xx", "cancelled"]),
    "code": st.sampled_from([200, 503]),
    "id": st.sampled_from([ID, OTHER]),
}
TEXT = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1, max_size=50)


@st.composite
def filters(draw: st.DrawFn) -> Filter:
    terms = []
    for field in FIELDS:
        if field.edge:
            continue
        for excluded in (False, True):
            values = st.lists(VALUES.get(field.name, TEXT), max_size=3, unique=True)
            if found := draw(values):
                terms.append(Term(field.name, tuple(found), excluded))
    for start, end in (("since", "before"), ("ended-since", "ended-before")):
        edges = sorted(draw(st.lists(st.integers(0, 4_000_000_000_000), max_size=2, unique=True)))
        names = (start, end) if len(edges) == 2 else (draw(st.sampled_from([start, end])),)
        terms += [Term(name, (edge,)) for name, edge in zip(names, edges, strict=False)]
    return Filter.made(terms)


@given(filters())
def test_a_filter_is_written_so_that_it_is_read_as_the_same(wanted: Filter) -> None:
    """Nothing is lost on the way from a page to the action that it starts, nor in what is stored of it, nor in a form."""
    assert parse(str(wanted)) == wanted
    excluded = Filter.made(term for term in wanted.terms if term.excluded)
    assert parse(str(excluded), fields=wanted.fields()) == wanted


def test_every_field_is_a_column_and_has_names() -> None:
    """A field that could not be written would make a search wider than it was."""
    assert {field.column for field in FIELDS} <= {column.name for column in outbox.c}
    names = [field.json for field in FIELDS if field.json]
    assert len(names) == len(set(names)) == len(FIELDS) - 2


@pytest.mark.parametrize(
    ("words", "wanted"),
    [
        ("", Filter()),
        ("status:dead", Filter.of(status="dead")),
        ("  status:dead,retrying\n destination:hooks.example.com ", Filter.of(status=("dead", "retrying"), destination="https://hooks.example.com:443")),
        ("destination:HTTPS://Example.com/hook?x=1", Filter.of(destination="https://example.com:443")),
        ("https://Example.com/hook", Filter.of(destination="https://example.com:443")),
        (ID.upper(), Filter.of(id=ID)),
        (f"id:{ID},{OTHER}", Filter.of(id=(ID, OTHER))),
        ("evt_1", Filter.of(event="evt_1")),
        ('flow:"a b","c,d" node:e"f', None),
        ('flow:"a b","c,d" node:"e\\"f\\\\"', Filter.of(flow=("a b", "c,d"), node='e"f\\')),
        ("key:a:b", Filter.of(key="a:b")),
        ("-error:timeout,network -error:other", Filter((Term("error", ("timeout", "network", "other"), True),))),
        ("error:timeout,timeout", Filter.of(error="timeout")),
        ("since:2h before:15m", Filter.of(since=1_899_992_800_000, before=1_899_999_100_000)),
        ('since:"yesterday 14:30"', Filter.of(since=1_899_901_800_000)),
        ("code:503", Filter.of(code=503)),
    ],
)  # fmt: skip
def test_words_are_terms(words: str, wanted: Filter | None) -> None:
    """Fields with values, lists, quotes and exclusions; an id and a URL stand alone."""
    if wanted is None:
        with pytest.raises(FilterInvalid):
            parse(words, clock)
    else:
        assert parse(words, clock) == wanted


@pytest.mark.parametrize(
    ("text", "milliseconds"),
    [
        ("90s", 1_899_999_910_000),
        ("3d", 1_899_740_800_000),
        ("1w", 1_899_395_200_000),
        ("2030-03-17T17:46:40Z", 1_900_000_000_000),
        ("2030-03-17T18:46:40+01:00", 1_900_000_000_000),
        ("2030-03-17T17:46:40", 1_900_000_000_000),
        ("2030-03-17", 1_899_936_000_000),
        ("Yesterday", 1_899_849_600_000),
        ("yesterday 14:30", 1_899_901_800_000),
        ("7:05", 1_899_961_500_000),
        ("17:46:40", 1_900_000_000_000),
        ("17:46:41", 1_899_913_601_000),
        ("18:46:40+01:00", 1_900_000_000_000),
        ("16:46:41 -01:00", 1_899_913_601_000),
        ("yesterday 14:30 +02:00", 1_899_894_600_000),
        ("today+07:00", 1_899_997_200_000),
    ],
)
def test_a_time_is_one_of_the_calendar_or_so_long_ago(text: str, milliseconds: int) -> None:
    """Without a zone, it is in UTC. The field of a form needs no quotes."""
    assert parse("", clock, {"since": text}) == Filter.of(since=milliseconds)
    assert parse(f'since:"{text}"', clock) == Filter.of(since=milliseconds)


def test_fields_of_a_form_that_are_empty_are_not_given() -> None:
    """A form sends all of its fields."""
    assert parse("", fields=dict.fromkeys(BY_NAME, " ")) == Filter()


def test_the_text_of_a_form_is_a_list_or_one_value() -> None:
    """As in words, but that a value with blanks needs no quotes there."""
    wanted = {"flow": "a b", "type": 'x,"y,z"', "key": 'a"b'}
    assert parse("", fields=wanted) == Filter.of(flow="a b", type=("x", "y,z"), key='a"b')


@pytest.mark.parametrize(
    ("words", "field", "says"),
    [
        ("status:Dead", "status", "pending, retrying, delivered, dead"),
        ("error:http_0xx", "error", "http_4xx"),
        ("error:oops", "error", "timeout"),
        ("destination:ftp://example.com", "destination", "http"),
        ("since:tomorrow", "since", "3d"),
        ("since:24:00", "since", "14:00"),
        ("since:yesterday14:00", "since", "yesterday 14:00"),
        ("since:14:00+2", "since", "+02:00"),
        ("since:1h,2h", "since", "3d"),
        ("-since:1h", "since", "cannot be excluded"),
        ("since:99999999d", "since", "1970"),
        ("before:1969-01-01", "before", "1970"),
        ("since:0001-01-01T00:00:00+14:00", "since", "1970"),
        ("before:２h", "before", "2h"),
        ("code:５０３", "code", "status code such as 503"),
        ("code:99", "code", "status code such as 503"),
        ("code:1000", "code", "status code such as 503"),
        ("id:x", "id", "id of a delivery"),
        ("id:" + ",".join(new_id(each) for each in range(MOST_IDS + 1)), "id", "1000"),
        ("flow:" + ",".join(map(str, range(101))), "flow", "100"),
        ("event:a\0b", "event", "NUL"),
        ("key:\ud800", "key", "Unicode"),
        ("flow:" + "x" * 3000, "flow", "2048"),
        ("flow:a flow:b", "flow", "flow:one,two"),
        ("flow:", "flow", "behind the colon"),
        ('flow:"a', "flow", "quotes"),
        ("since:1h before:2h", "before", "later than since"),
        ("ended-since:1h ended-before:1h", "ended-before", "later than ended-since"),
        ("stauts:dead", "stauts", "did you mean status:?"),
        ("zzz:dead", "zzz", "organization"),
        ("dead", "", "field:value"),
        ("status", "status", "did you mean status:?"),
        ("x" * 50_000, "", "40000"),
    ],
)  # fmt: skip
def test_what_cannot_be_read_is_refused_by_name(words: str, field: str, says: str) -> None:
    """The message says what is allowed, and does not repeat what was given."""
    with pytest.raises(FilterInvalid) as raised:
        parse(words, clock)
    assert raised.value.field == field
    assert says in str(raised.value)
    assert len(str(raised.value)) < 300


@given(st.integers(0, (1 << 48) - 1))
def test_ids_of_a_time_lie_between_its_least_and_its_greatest(milliseconds: int) -> None:
    """So a search by time is one by id."""
    least, made, greatest = id_at(milliseconds), new_id(milliseconds / 1000), id_at(milliseconds, last=True)
    assert is_id(least)
    assert is_id(greatest)
    assert time_of(least) == time_of(greatest) == milliseconds
    assert id_at(time_of(made)) <= made <= id_at(time_of(made), last=True)
    assert abs(time_of(made) - milliseconds) <= 1
    assert id_at(-1) == id_at(0)
    assert time_of(id_at(1 << 60)) == (1 << 48) - 1
