from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from markupsafe import Markup

from flowactions_plugin.insights.results import Attempt, Bucket
from flowactions_plugin.pages import formats
from flowactions_plugin.pages.charts import HEIGHT, LEAST, TICKS, axis_end, chart, steps


@pytest.mark.parametrize(
    ("milliseconds", "text"),
    [
        (999, "999 ms"),
        (1000, "1.0 s"),
        (59_000, "59 s"),
        (60_000, "1 min"),
        (61_000, "1 min 1 s"),
        (3_605_000, "1 h"),
        (7_500_000, "2 h 5 min"),
        (90_000_000, "1 d 1 h"),
        (-5, "0 ms"),
        (None, formats.NOTHING),
    ],
)
def test_a_duration_is_written_in_its_two_largest_units(milliseconds: object, text: str) -> None:
    """Or as nothing."""
    assert formats.span(milliseconds) == text


@pytest.mark.parametrize("moment", [None, "x" * 0, 10**18, -(10**18), 1.5, b"x"])
def test_what_is_no_time_is_nothing(moment: object) -> None:
    """Whatever a column holds."""
    assert formats.utc(moment).endswith((formats.NOTHING, "UTC"))


def test_a_time_is_written_in_utc() -> None:
    """To the second."""
    assert formats.utc(1_700_000_000_123) == "2023-11-14 22:13:20 UTC"
    assert formats.utc("2023-11-14T22:13:20.123Z") == "2023-11-14 22:13:20 UTC"


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("https://hooks.example.com:443", "hooks.example.com"),
        ("https://hooks.example.com/a/b?c=d", "hooks.example.com/a/b"),
        ("http://[::1]:80/a", "http://[::1]/a"),
        ("https://a.example:8443", "a.example:8443"),
        ("", ""),
        ("nothing", "nothing"),
    ],
)
def test_a_place_is_a_host_with_what_is_not_usual(url: str, shown: str) -> None:
    """And its path; never its query."""
    assert formats.place(url) == shown


def test_a_time_in_a_sentence_is_an_element() -> None:
    """The script writes it in the reader's zone; the rest is text."""
    said = formats.timed("<b>: due at 2030-01-31T12:00:00Z, not 2030-01-31")
    assert said == (
        '&lt;b&gt;: due at <time datetime="2030-01-31T12:00:00Z">2030-01-31 12:00:00 UTC</time>, not 2030-01-31'
    )


@given(st.text())
def test_nothing_that_is_written_is_unseen_or_turns_the_line(text: str) -> None:
    """Line breaks and tabs apart; what a template has escaped is left as it is."""
    shown = formats.plain(text)
    laid_out = "".join(each for each in shown if each not in formats._LAID_OUT)
    assert laid_out.isprintable()
    assert formats.plain("\0\x1b\u202e\u2066\u200b\ufeff\x85\u2028").isascii()
    shown.encode()
    assert formats.plain(Markup(text)) == text  # noqa: S704


def test_shares_are_rounded_for_people() -> None:
    """One decimal below ten percent."""
    assert [formats.share(*each) for each in ((0, 0), (0, 5), (1, 1000), (1, 3), (5, 5))] == [
        formats.NOTHING,
        "0 %",
        "0.1 %",
        "33 %",
        "100 %",
    ]


def buckets(*counts: tuple[int, int]) -> list[Bucket]:
    return [Bucket(at=i * 300_000, delivered=ok, failed=bad) for i, (ok, bad) in enumerate(counts)]


@given(st.lists(st.tuples(st.integers(0, 2**63), st.integers(0, 2**63)), max_size=40))
def test_a_chart_stays_within_its_frame(counts: list[tuple[int, int]]) -> None:
    """And what is not zero can be seen."""
    drawn = chart(buckets(*counts), "5 min")
    assert len(drawn.bars) == len(counts)
    assert len(drawn.bars[:: drawn.step]) <= TICKS
    for bar in drawn.bars:
        assert 0 <= bar.ok + bar.bad <= HEIGHT + 0.02
        assert (bar.bad > 0) is (bar.bucket.failed > 0)


@given(st.integers(0, 2**64))
def test_the_axis_ends_at_a_round_number_just_above(highest: int) -> None:
    """One digit and zeros, at most twice the highest value; its half is a whole number, or there is none."""
    top = axis_end(highest)
    assert highest <= top <= max(1, 2 * highest)
    assert str(top).rstrip("0") in {"1", "2", "4", "6", "8"}
    half = chart(buckets((highest, 0)), "hour").half
    assert half is None if top == 1 else half is not None and 2 * half == top


def test_the_axis_of_a_chart() -> None:
    """Without a value it ends at 1; beside a very high value, the others can be seen; each fourth has its time."""
    nothing = chart(buckets(*[(0, 0)] * 12), "5 min")
    assert (nothing.top, nothing.half, nothing.unit) == (1, None, "attempts per 5 min")
    assert {(bar.ok, bar.bad) for bar in nothing.bars} == {(0, 0)}
    (one,) = chart(buckets((1, 0)), "hour").bars
    assert one.ok == HEIGHT
    high = chart(buckets((1, 1), *[(0, 0)] * 10, (900_000, 100_000)), "5 min")
    assert (high.top, high.half) == (1_000_000, 500_000)
    assert (high.bars[0].ok, high.bars[0].bad) == (LEAST, LEAST)
    assert (high.bars[-1].ok, high.bars[-1].bad, high.step) == (HEIGHT * 9 / 10, HEIGHT / 10, 3)


def test_a_time_to_the_minute() -> None:
    """On the axis without its day, for the script in an element; a dash for what is none."""
    assert formats.utc(1_700_000_000_000, "clock") == "22:13"
    assert formats.utc(1_700_000_000_000, "minute") == "2023-11-14 22:13 UTC"
    assert formats.utc(2**63, "clock") == formats.NOTHING


def an_attempt(number: int, started_at: str | None, duration_ms: int = 100, **changes: object) -> Attempt:
    values: dict[str, object] = {"status_code": 503, "error": None, "response": "", "certainty": "answered"}
    return Attempt(number=number, started_at=started_at, duration_ms=duration_ms, **{**values, **changes})  # type: ignore[arg-type]


class TestSteps:
    def test_waits_lie_between_attempts(self) -> None:
        """From the enqueue to the first, then from the end of one to the start of the next."""
        made = [
            an_attempt(1, "2030-01-01T00:00:02.000Z", 500),
            an_attempt(2, "2030-01-01T00:00:10.000Z", status_code=200),
        ]
        found = steps("2030-01-01T00:00:00.000Z", made)
        assert [each.waited for each in found] == [2000, 7500]
        assert [each.ok for each in found] == [False, True]

    def test_what_is_not_known_is_left_out(self) -> None:
        """Corrupt rows have no times."""
        assert steps(None, [an_attempt(1, None)])[0].waited is None


def test_a_place_breaks_behind_its_parts() -> None:
    """In a narrow column, and not within its port."""
    assert formats.breakable("http://a.b:8443/c<") == "http://<wbr>a.<wbr>b:8443/<wbr>c&lt;"
