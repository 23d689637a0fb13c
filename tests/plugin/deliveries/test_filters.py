from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flowactions_plugin.clock import id_at, is_id, new_id, time_of
from flowactions_plugin.errors import FilterInvalid
from flowactions_plugin.insights.fields import BY_NAME, MOST_IDS
from flowactions_plugin.insights.filters import Filter, parse, to_query
from flowactions_plugin.operators.scope import Scope

NOW = 1_900_000_000.0
ID = "0190c0de-0000-7000-8000-000000000001"


def clock() -> float:
    return NOW


def words() -> st.SearchStrategy[str]:
    text = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1, max_size=50)
    return text.map(str.strip).filter(bool)


def moments() -> st.SearchStrategy[int]:
    return st.integers(0, 4_000_000_000_000)


@st.composite
def filters(draw: st.DrawFn) -> Filter:
    names = ("organization_id", "agent_id", "event_type", "event_id", "idempotency_key", "flow_id", "node_id")
    values: dict[str, Any] = {name: draw(st.none() | words()) for name in names}
    for name in ("created", "finished"):
        start, end = draw(st.none() | moments()), draw(st.none() | moments())
        if start is not None and end is not None and start >= end:
            start, end = (end, start) if start > end else (start, end + 1)
        values |= {f"{name}_from": start, f"{name}_before": end}
    return Filter(
        **values,
        status=draw(st.sampled_from([None, "pending", "dead"])),
        error_class=draw(st.sampled_from([None, "timeout", "http_5xx"])),
        destination=draw(st.sampled_from([None, "https://example.com:443", "http://[::1]:80"])),
        last_status_code=draw(st.sampled_from([None, 200, 503])),
        ids=draw(st.none() | st.just((ID,))),
    )


@given(filters())
def test_a_filter_is_written_so_that_it_is_read_as_the_same(wanted: Filter) -> None:
    """Nothing is lost on the way from a page to the action that it starts, nor in what is stored of it."""
    assert parse(to_query(wanted)) == wanted
    assert msgspec.json.decode(msgspec.json.encode(wanted), type=Filter) == wanted


def test_every_field_of_a_filter_has_a_name() -> None:
    """A field that could not be written would make a search wider than it was."""
    values: dict[str, Any] = dict.fromkeys(Filter.__struct_fields__, "x")
    values |= {
        "last_status_code": 503,
        "ids": (ID,),
        "created_from": 1,
        "created_before": 2,
        "finished_from": 1,
        "finished_before": 2,
    }
    full = Filter(**values)
    assert set(to_query(full)) == set(BY_NAME)
    assert len(BY_NAME) == len(Filter.__struct_fields__)


@pytest.mark.parametrize(
    ("text", "milliseconds"),
    [
        ("90s", 1_899_999_910_000),
        ("15m", 1_899_999_100_000),
        ("2h", 1_899_992_800_000),
        ("3d", 1_899_740_800_000),
        ("1w", 1_899_395_200_000),
        ("2030-03-17T17:46:40Z", 1_900_000_000_000),
        ("2030-03-17T18:46:40+01:00", 1_900_000_000_000),
        ("2030-03-17T17:46:40", 1_900_000_000_000),
        ("2030-03-17", 1_899_936_000_000),
        ("today", 1_899_936_000_000),
        ("Yesterday", 1_899_849_600_000),
        ("yesterday 14:30", 1_899_901_800_000),
        ("today 17:46:40", 1_900_000_000_000),
        ("7:05", 1_899_961_500_000),
        ("17:46:40", 1_900_000_000_000),
        ("17:46:41", 1_899_913_601_000),
        ("18:46:40+01:00", 1_900_000_000_000),
        ("16:46:41 -01:00", 1_899_913_601_000),
        ("yesterday 14:30 +02:00", 1_899_894_600_000),
        ("today+07:00", 1_899_997_200_000),
        ("17:46:40z", 1_900_000_000_000),
    ],
)
def test_a_time_is_one_of_the_calendar_or_so_long_ago(text: str, milliseconds: int) -> None:
    """Without a zone, it is in UTC."""
    assert parse({"from": text}, clock) == Filter(created_from=milliseconds)


def test_a_url_is_taken_for_its_destination() -> None:
    """Operators paste what they have."""
    assert parse({"destination": " HTTPS://Example.com/hook?x=1 "}).destination == "https://example.com:443"


def test_fields_of_a_form_that_are_empty_are_not_given() -> None:
    """A form sends all of its fields."""
    assert parse(dict.fromkeys(BY_NAME, " ")) == Filter()


@pytest.mark.parametrize(
    ("name", "text", "says"),
    [
        ("status", "Dead", "pending, retrying, delivered, dead"),
        ("error", "http_0xx", "http_4xx"),
        ("error", "oops", "timeout"),
        ("destination", "example.com", "http://"),
        ("from", "tomorrow", "3d"),
        ("from", "24:00", "14:00"),
        ("from", "yesterday14:00", "yesterday 14:00"),
        ("from", "14:00+2", "+02:00"),
        ("from", "14:00+25:00", "+02:00"),
        ("from", "99999999d", "1970"),
        ("before", "1969-01-01", "1970"),
        ("from", "0001-01-01T00:00:00+14:00", "1970"),
        ("before", "２h", "2h"),
        ("id", "x", "ids"),
        ("id", ",", "ids"),
        ("id", ",".join(new_id(each) for each in range(MOST_IDS + 1)), "1000"),
        ("event-id", "a\0b", "NUL"),
        ("key", "\ud800", "Unicode"),
        ("flow", "x" * 3000, "2048"),
        ("stauts", "dead", "status"),
        ("zzz", "dead", "event-id"),
    ],
)
def test_what_cannot_be_read_is_refused_by_name(name: str, text: str, says: str) -> None:
    """The message says what is allowed, and does not repeat what was given."""
    with pytest.raises(FilterInvalid) as raised:
        parse({name: text}, clock)
    assert raised.value.field == name
    assert says in str(raised.value)
    assert len(str(raised.value)) < 300


def test_a_time_before_another_is_refused() -> None:
    """Nothing could be found."""
    with pytest.raises(FilterInvalid) as raised:
        parse({"from": "1h", "before": "2h"}, clock)
    assert raised.value.field == "before"


def test_a_scope_is_of_one_organization_or_of_all() -> None:
    """A dashboard principal's is of their own."""
    assert Scope(None).allows("acme")
    assert Scope("acme").allows("acme")
    assert not Scope("acme").allows("globex")


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
